"""Scenario files: mistakes are one line with their place, and expectations are really judged."""

from pathlib import Path

import pytest

from p2ptrain.config import load_run_config
from p2ptrain.errors import ConfigError
from p2ptrain.sim.faults import KINDS
from p2ptrain.sim.scenario import Expect, Outcome, Scenario, judge, load_scenario, run_scenario

HEAD = 'name = "mine"\npeers = 4\n'

MISTAKES = [
    ("pers = 3", ":3: unknown key pers (did you mean 'peers'?)"),
    ("latency_ms = -5", ":3: latency_ms = -5: input should be greater than or equal to 0"),
    ("minutes = 0", ":3: minutes = 0: input should be greater than 0"),
    ("seed = 1.5", ":3: seed = 1.5: input should be a valid integer"),
    ("[[faults]]\nkind = 'kil'", ":3: faults.0: "),
    ("[[faults]]\nat = 3", ":3: faults.0: unable to extract tag using discriminator 'kind'"),
    ("[[faults]]\nkind = 'heal'\n\n[[faults]]\nkind = 'kill'\npeer = 3", ":8: unknown key faults.1.peer (did you mean 'peers'?)"),
    ("[[faults]]\nkind = 'kill'\nat = -1", ":5: faults.0.at = -1: input should be greater than or equal to 0"),
    ("[[faults]]\nkind = 'kill'\npeers = 'leaders'", ":5: faults.0.peers = 'leaders': peers are a list of numbers from 1, or one of"),
    ("[[faults]]\nkind = 'kill'\npeers = [0]", ":5: faults.0.peers = [0]: peers are a list of numbers from 1, or one of"),
    ("[[faults]]\nkind = 'kill'\npeers = [5]", ":5: faults.0.peers: there is no peer 5, only 4"),
    ("[[faults]]\nkind = 'partition'\nleft = [1]\nright = [7]", ":6: faults.0.right: there is no peer 7, only 4"),
    ("[[faults]]\nkind = 'partition'\nleft = [1]\nright = [1, 2]", ": peer 1 is on both sides"),
    ("[[faults]]\nkind = 'latency'\nlatency_ms = -3.0", ":5: faults.0.latency_ms = -3.0"),
    ("[[faults]]\nkind = 'crash-at-message'\nmethod = 'contribute'", ":5: faults.0.method = 'contribute'"),
    ("[churn]\nspare = [9]", ":4: churn.spare: there is no peer 9, only 4"),
    ("[churn.sessions.on]\nmean_minutes = -3.0", ":4: churn.sessions.on.mean_minutes = -3.0: input should be greater than 0"),
    ("[expect]\nheads_agree = true", ":4: unknown key expect.heads_agree"),
    ("[expect]\nparticipation_at_least = 1.5", ":4: expect.participation_at_least = 1.5: input should be less than or equal to 1"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "words"), MISTAKES)
def test_a_mistake_is_one_line_with_its_place(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(HEAD + text + "\n")
    with pytest.raises(ConfigError) as caught:
        load_scenario(path)
    said = str(caught.value)
    assert words in said and str(path) in said and "\n" not in said


def test_a_missing_file_and_a_wrong_run_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_scenario(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="no run named 'sim-quadratik'"):
        Scenario(name="mine", run="sim-quadratik").swarm()
    with pytest.raises(ConfigError, match="no network named 'moon'"):
        Scenario(name="mine", network="moon").swarm()
    with pytest.raises(ConfigError, match=r"unknown key rounds\.inner_step"):
        Scenario(name="mine", changes={"rounds": {"inner_step": 3}}).config()


def test_peers_that_join_later_have_numbers(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(HEAD + "[[faults]]\nkind = 'join'\n\n[[faults]]\nkind = 'kill'\nat = 60\npeers = 5\n")
    assert load_scenario(path).faults[1].numbers() == [5]


def test_changes_and_the_stand_in_leave_the_rest_as_it_was() -> None:
    config = Scenario(name="mine", run="pycode", learner="stand-in", changes={"rounds": {"quorum": 3}}).config()
    own = load_run_config("pycode")
    assert config.model.kind == "quadratic" and config.rounds.quorum == 3
    assert config.codec == own.codec and config.rounds.inner_steps == own.rounds.inner_steps


def test_the_guide_names_every_kind_and_its_example_can_be_played(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "scenarios.md").read_text()
    example = tmp_path / "example.toml"
    example.write_text(text.split("```toml\n")[1].split("```")[0])
    assert load_scenario(example).expect.alive_at_least == 6
    assert [kind for kind in KINDS if f"`{kind}`" not in text] == []
    assert [key for key in Expect.model_fields if f"`{key}`" not in text] == []


def test_every_expectation_can_fail() -> None:
    scenario = Scenario(
        name="mine",
        expect=Expect(
            heads_agree_within_seconds=10.0, alive_at_least=3, commits_at_least=2, participation_at_least=0.9,
            goodput_at_least=0.9, merged_share_at_least=0.9, sides_merged_at_least=0.9, longest_gap_intervals=1.0,
            loss_falls_to=0.5, events=["fork"], no_events=["run"],
        ),
    )  # fmt: skip
    swarm = scenario.swarm()

    async def story() -> None:
        await swarm.host()

    swarm.run(story())
    bad = Outcome(agreed_after=11.0, longest_gap=1e6, loss_ratio=0.6, merged_shares={"a": 0.5}, side_shares=[1.0, 0.2])
    words = [
        "one head per fragment 11 s after the last fault; within 10 s was expected", "did not settle", "peers alive 0; at least 3",
        "commits of a fragment 0", "participation 0;", "goodput 0;", "a peer's work that is merged 0.5", "side's work that is merged 0.2",
        "without a commit", "loss at 0.6", "no event 'fork'", "an event 'run'",
    ]  # fmt: skip
    failures = judge(bad, scenario, swarm)
    assert len(failures) == len(words)
    assert all(word in failure for word, failure in zip(words, failures, strict=True))
    assert (
        judge(Outcome(settled=True), Scenario(name="mine", expect=Expect(heads_agree_within_seconds=None)), swarm) == []
    )


def test_the_same_seed_plays_the_same_scenario() -> None:
    def play(seed: int) -> tuple[Outcome, list[tuple[str, str, float]]]:
        scenario = Scenario(
            name="mine", peers=3, minutes=4.0, seed=seed, together=True,
            faults=[{"kind": "kill", "at": 60, "peers": "leader", "restart_after": 20}],  # type: ignore[list-item]
        )  # fmt: skip
        swarm = scenario.swarm()
        outcome = swarm.run(run_scenario(scenario, swarm))
        return outcome, [(host, event.kind, event.at) for host, event in swarm.events]

    first = play(3)
    assert first == play(3) and first[1] != play(4)[1]
    assert first[0].failures == [] and first[0].num_alive == 3
