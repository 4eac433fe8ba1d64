"""Plans: what a seed does, and how a plan is kept in a file."""

from collections import Counter
from pathlib import Path

import pytest

from p2ptrain.errors import ConfigError
from p2ptrain.explore.plan import (
    CELLS,
    FIRST_FAULT_AT,
    KINDS,
    LAST_FAULT_BEFORE_END,
    PHASES,
    ROLES,
    Plan,
    draw_plan,
    load_plan,
    why_impossible,
)


def test_a_thousand_seeds_deal_out_every_cell_equally_often() -> None:
    counts = Counter(fault.cell for seed in range(1000) for fault in draw_plan(seed).faults)
    assert set(counts) == set(CELLS) and min(counts.values()) >= 30
    assert max(counts.values()) - min(counts.values()) <= 1


def test_cells_that_cannot_exist_are_few_and_each_has_a_reason() -> None:
    num_all = len(PHASES) * len(ROLES) * len(KINDS)
    assert num_all - len(CELLS) == 4 * len(ROLES)
    assert "leaving" in (why_impossible("leaving", "member", "leave") or "")


def test_a_plan_follows_from_its_seed_and_lies_within_its_time() -> None:
    plan = draw_plan(7, minutes=10.0)
    assert plan == draw_plan(7, minutes=10.0) != draw_plan(8, minutes=10.0)
    instants = [fault.at for fault in plan.faults]
    assert min(instants) >= FIRST_FAULT_AT and max(instants) <= plan.seconds - LAST_FAULT_BEFORE_END + 10.0


def test_the_chance_of_a_fault_does_not_depend_on_the_others() -> None:
    plan = draw_plan(7)
    fewer = plan.model_copy(update={"faults": plan.faults[5:6]})
    assert plan.chance_of(plan.faults[5]).random() == fewer.chance_of(fewer.faults[0]).random()


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    plan = draw_plan(11, network="hostile", minutes=7.25, num_faults=3)
    (tmp_path / "plan.toml").write_text(plan.to_toml())
    assert load_plan(tmp_path / "plan.toml") == plan


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("peers = 1", "peers"),
        ("minutes = -1.0", "minutes"),
        ("sed = 4", "did you mean 'seed'"),
        (
            '[[faults]]\nnumber = 0\nphase = "leaving"\nrole = "leader"\nkind = "leave"\nat = 1.0',
            "cannot leave once more",
        ),
        ('[[faults]]\nnumber = 0\nphase = "sleeping"\nrole = "leader"\nkind = "kill"\nat = 1.0', "phase"),
    ],
)
def test_a_file_that_is_no_plan_is_one_line(tmp_path: Path, change: str, words: str) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(f"seed = 1\n{change}\n")
    with pytest.raises(ConfigError) as caught:
        load_plan(path)
    assert words in str(caught.value) and "\n" not in str(caught.value) and "plan.toml" in str(caught.value)


def test_a_plan_refuses_more_peers_than_a_hunt_has() -> None:
    with pytest.raises(ValueError, match="peers"):
        Plan(seed=0, peers=1000)
