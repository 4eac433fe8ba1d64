"""`simulate --virtual` from its options to its report."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from p2ptrain.cli import main
from p2ptrain.errors import ConfigError, ExitCode, StorageError
from p2ptrain.real.clock import SystemClock
from p2ptrain.sim.checkers import Violation
from p2ptrain.sim.swarm import SimSwarm
from p2ptrain.simulate.options import VirtualOptions
from p2ptrain.simulate.virtual import ViolationError, VirtualSimulation, simulate_virtually


def simulate(**options: Any) -> tuple[dict[str, Any], str]:
    out = io.StringIO()
    options = {"run": "sim-quadratic", "num_peers": 4, "hours": 0.4, "seed": 7, **options}
    summary = simulate_virtually(VirtualOptions(**options), Console(file=out, width=200), SystemClock())
    return summary, out.getvalue()


def test_a_swarm_is_judged_like_one_of_real_processes(tmp_path: Path) -> None:
    summary, said = simulate(network="datacenter", report=tmp_path)
    assert summary["anchors_agree"] and summary["tokens_conserved"], said
    assert summary["anchors_compared"] == 4 * 4 and summary["num_reports"] == 4
    assert summary["seconds"] == pytest.approx(0.4 * 3600, abs=2.0)
    assert summary["participation"] > 0.9 and summary["goodput"] > 0.9 and summary["utilisation"] > 0.95
    assert summary["rounds_committed"] >= 4 * 4
    assert summary["bytes_sent"] == pytest.approx(summary["bytes_received"], rel=0.01)
    assert summary["bytes_sent"] == sum(peer["bytes_sent"] for peer in summary["peers"])
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    for name in ("loss.png", "swarm.png", "rounds.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert {event["peer_number"] for event in events} == {1, 2, 3, 4}
    assert [event["at"] for event in events] == sorted(event["at"] for event in events)


def test_a_seed_gives_the_same_summary_to_the_last_digit() -> None:
    first, second, third = (simulate(network="hostile", seed=seed)[0] for seed in (3, 3, 4))
    assert first == second != third


def test_churn_comes_from_the_network_and_can_be_switched_off() -> None:
    with_churn, _ = simulate(num_peers=12, hours=2.0, network="hostile")
    without, _ = simulate(num_peers=12, hours=1.0, network="hostile", churn=False)
    assert with_churn["num_events"].get("left", 0) + sum(len(peer["killed_at"]) for peer in with_churn["peers"]) > 0
    assert with_churn["tokens_conserved"] and with_churn["anchors_agree"]
    assert "left" not in without["num_events"] and not any(peer["killed_at"] for peer in without["peers"])


def test_kills_of_the_command_line_are_faults() -> None:
    summary, _ = simulate(network="datacenter", kill_one_every=400.0, late_join_at=300.0)
    assert sum(len(peer["killed_at"]) for peer in summary["peers"]) == 3
    assert len(summary["peers"]) == 5 and summary["anchors_agree"]
    assert summary["tokens_dropped"]["killed"] > 0 and summary["tokens_conserved"]


def test_a_text_run_trains_its_own_model() -> None:
    summary, said = simulate(run="char-mlp", num_peers=3, hours=0.5, network="datacenter", step_seconds=10.0)
    assert "torch learner" in said and summary["learner"] == "torch"
    assert summary["validation_loss_last"] < summary["validation_loss_first"] - 1.0


def test_the_stand_in_takes_the_place_of_any_run() -> None:
    summary, said = simulate(run="pycode", learner="stand-in", num_peers=2, network="datacenter", hours=0.2)
    assert "stand-in learner" in said and summary["run_name"] == "pycode" and summary["learner"] == "stand-in"


def test_a_scenario_is_played_and_its_expectations_are_judged(tmp_path: Path) -> None:
    scenario = tmp_path / "story.toml"
    text = (
        'name = "story"\npeers = 3\nminutes = 10\nstep_seconds = 3.0\n[[faults]]\nkind = "kill"\npeers = [3]\nat = 60\n'
    )
    scenario.write_text(text + '[expect]\nevents = ["fault"]\nalive_at_least = 2\n')
    summary, said = simulate(scenario=scenario, num_peers=None, hours=None, seed=None)
    assert summary["expectations_not_met"] == [] and summary["anchors_agree"], said
    assert summary["seed"] == 1 and summary["num_peers"] == 3
    scenario.write_text(text + "[expect]\nalive_at_least = 3\n")
    summary, said = simulate(scenario=scenario, num_peers=None, hours=None, seed=5)
    assert summary["seed"] == 5
    assert "NOT MET: peers alive 2; at least 3 was expected" in said


def test_a_violation_ends_it_with_the_command_that_shows_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(swarm: SimSwarm, story: Any) -> None:
        story.close()
        raise Violation("anchor", "the bytes in memory are others", seed=swarm.seed, at=12.5)

    monkeypatch.setattr(SimSwarm, "run", run)
    code = main(
        ["simulate", "sim-quadratic", "--virtual", "--peers", "3", "--hours", "0.1", "--seed", "7", "--no-churn"]
    )
    said = capsys.readouterr().err
    assert code == ExitCode.VIOLATION
    assert "seed 7, 12.500 s, anchor: the bytes in memory are others" in said
    assert (
        "to see it again: p2ptrain simulate sim-quadratic --virtual --peers 3 --hours 0.1 --no-churn --seed 7" in said
    )
    assert "Traceback" not in said


def test_a_task_of_a_peer_that_fails_is_said_like_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(_self: VirtualSimulation) -> None:
        raise AssertionError("10.0.0.1 at 3.000 s: KeyError")

    monkeypatch.setattr(VirtualSimulation, "_story", story)
    with pytest.raises(ViolationError, match="KeyError\nto see it again"):
        simulate()


def test_a_trace_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="--trace"):
        simulate(trace=tmp_path)
    with pytest.raises(ConfigError, match="there is no folder"):
        simulate(trace=tmp_path / "nowhere" / "trace.txt")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--virtual", "--peers", "0"], "'0' is not a whole number from 1 to 5000"),
        (["--virtual", "--hours", "0"], "'0' is not a number"),
        (["--virtual", "--seed", "1.5"], "'1.5' is not a whole number"),
        (["--virtual", "--seed", "x"], "'x' is not a whole number"),
        (["--virtual", "--hours", "1", "--seconds", "5"], "give one of them"),
        (["--virtual", "--network", "home-intrenet"], "did you mean 'home-internet'?"),
        (["--virtual", "--scenario", "nowhere.toml"], "nowhere.toml: No such file"),
        (["--virtual", "--late-join-at", "3600"], "less than the 3600 seconds"),
        (["--virtual", "--learner", "torch"], "no model for torch"),
        (["--virtual", "--step-seconds", "model"], "has no model"),
        (["--virtual", "--step-seconds", "0"], "'0' is not a number"),
        (["--network", "datacenter"], "--network goes with --virtual"),
        (["--hours", "1"], "--hours goes with --virtual"),
        (["--learner", "torch"], "--learner goes with --virtual"),
        (["--trace", "x"], "--trace goes with --virtual"),
        (["--scenario", "x"], "--scenario goes with --virtual"),
        (["--no-churn"], "--no-churn goes with --virtual"),
        (["--dht"], "--dht goes with --virtual"),
        (["--peers", "300"], "more go with --virtual"),
        (["--step-seconds", "model"], "--step-seconds model goes with --virtual"),
    ],
)
def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    try:
        code = main(["simulate", "sim-quadratic", *arguments])
    except SystemExit as error:
        code = int(error.code or 0)
    said = capsys.readouterr().err
    assert code == ExitCode.USAGE and words in said and len(said.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ('[[faults]]\nkind = "kill"\npeers = [9]', ":6: faults.0.peers: there is no peer 9, only 3"),
        ('[[faults]]\nkind = "kill"\npears = [1]', "unknown key faults.0.pears"),
        ("latency_ms = -1.0", "latency_ms = -1.0"),
    ],
)
def test_a_mistake_in_a_scenario_is_one_line_with_its_place(tmp_path: Path, line: str, place: str) -> None:
    scenario = tmp_path / "story.toml"
    scenario.write_text(f'name = "story"\npeers = 3\nminutes = 10\n{line}\n')
    with pytest.raises(ConfigError) as caught:
        simulate(scenario=scenario, num_peers=None, hours=None)
    assert place in str(caught.value) and "\n" not in str(caught.value)


def test_fewer_peers_than_a_scenario_names_are_refused(tmp_path: Path) -> None:
    scenario = tmp_path / "story.toml"
    scenario.write_text('name = "story"\npeers = 3\n[[faults]]\nkind = "kill"\npeers = [3]\n')
    with pytest.raises(ConfigError, match=r"--peers 2: faults\.0 of .* needs peer 3, and there are only 2"):
        simulate(scenario=scenario, num_peers=2)
