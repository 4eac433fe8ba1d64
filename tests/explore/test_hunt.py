"""A short hunt, always; a long one and the mutants behind the marker `hunt` (`make hunt`)."""

import asyncio
from pathlib import Path

import pytest
from rich.console import Console

from p2ptrain.config import load_run_config
from p2ptrain.explore.hunt import MIN_HITS, ExploreOptions, explore
from p2ptrain.explore.plan import draw_plan
from p2ptrain.explore.story import hunt_config, run_plan
from p2ptrain.real.clock import SystemClock

from .mutants import MUTANTS, Mutant

CONFIG = hunt_config(load_run_config("sim-quadratic"))
NETWORK = "hostile"
FEW_SEEDS = range(15)
MUTANT_SEEDS = range(200)


@pytest.mark.parametrize("seed", FEW_SEEDS)
def test_a_seed_of_the_hunt_finds_nothing(seed: int) -> None:
    print(f"seed {seed}: p2ptrain explore sim-quadratic --network {NETWORK} --replay {seed}")
    outcome = run_plan(CONFIG, draw_plan(seed, network=NETWORK))
    assert not outcome.failed, outcome.failure
    assert len(outcome.hits) >= 8 and min(outcome.versions) >= 5


def test_the_same_seed_does_the_same() -> None:
    first, second = (run_plan(CONFIG, draw_plan(3, network=NETWORK, minutes=4.0, num_faults=6)) for _ in range(2))
    assert first == second and first.num_messages > 1000


@pytest.mark.hunt
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_broken_p2ptrain_is_found(mutant: Mutant) -> None:
    with mutant.at_work():
        for seed in MUTANT_SEEDS:
            outcome = run_plan(CONFIG, draw_plan(seed, network=NETWORK))
            if outcome.failed:
                print(f"{mutant.name}: {seed + 1} seeds, {outcome.rule}")
                return
    assert mutant.is_known_survivor, f"{len(MUTANT_SEEDS)} seeds did not find it"
    print(f"{mutant.name}: not found in {len(MUTANT_SEEDS)} seeds")


@pytest.mark.hunt
@pytest.mark.timeout(6 * 3600)
def test_a_thousand_seeds_find_nothing_and_hit_every_cell(tmp_path: Path) -> None:
    options = ExploreOptions(run="sim-quadratic", network=NETWORK, num_seeds=1000, report=tmp_path)
    hunt = asyncio.run(explore(options, Console(), SystemClock()))
    assert not hunt.failures, hunt.failures[0].failure
    summary = hunt.summary()
    assert summary["rarest_hits"] >= MIN_HITS, summary["rarest_cell"]
