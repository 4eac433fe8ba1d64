"""`p2ptrain explore`: a hunt in worker processes, what it writes, and what it says to bad arguments."""

import asyncio
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from p2ptrain.cli import main
from p2ptrain.errors import ConfigError
from p2ptrain.explore import hunt as hunting
from p2ptrain.explore.hunt import ExploreOptions, explore
from p2ptrain.explore.plan import Plan
from p2ptrain.explore.story import Outcome
from p2ptrain.real.clock import SystemClock


def hunt(options: ExploreOptions) -> tuple[hunting.Hunt, str]:
    said = io.StringIO()
    return asyncio.run(explore(options, Console(file=said, width=400), SystemClock())), said.getvalue()


def test_a_hunt_runs_its_seeds_in_processes_and_writes_a_report(tmp_path: Path) -> None:
    options = ExploreOptions(
        run="sim-quadratic", network="hostile", num_seeds=2, first_seed=4, minutes=2.5, num_faults=3, jobs=2,
        report=tmp_path / "report",
    )  # fmt: skip
    found, said = hunt(options)
    summary = json.loads((tmp_path / "report" / "summary.json").read_text())
    assert sorted(outcome.plan.seed for outcome in found.outcomes) == [4, 5] and not found.failures, said
    assert summary["seeds"] == 2 and summary["failures"] == [] and summary["messages"] > 1000
    assert "nothing found" in said and "power-cut" in (tmp_path / "report" / "matrix.txt").read_text()


def test_what_is_found_is_shrunk_and_can_be_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(self: hunting.Crew, plan: Plan, place: int) -> Outcome:
        fails = plan.seed >= 2 and any(fault.number == 3 for fault in plan.faults)
        hits = [(fault.number, fault.cell, fault.at) for fault in plan.faults]
        rule, words = ("ledger", f"seed {plan.seed}, 9.000 s, ledger: oh") if fails else ("", "")
        return Outcome(plan=plan, rule=rule, failure=words, hits=hits, at=300.0)

    monkeypatch.setattr(hunting.Crew, "run", run)
    found, said = hunt(ExploreOptions(run="sim-quadratic", num_seeds=5, jobs=1, report=tmp_path))
    assert [outcome.plan.seed for outcome in found.failures] == [2, 3, 4] and found.smallest is not None
    path = tmp_path / "failing-2.toml"
    assert f"--replay {path}" in said and [fault.number for fault in found.smallest.plan.faults] == [3]
    assert ExploreOptions(run="sim-quadratic", replay=str(path)).replayed() == found.smallest.plan


def test_a_worker_that_dies_is_a_failure_and_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hunting.sys, "executable", "/bin/false")
    outcome = asyncio.run(hunting.Crew("sim-quadratic", 1).run(Plan(seed=3), 0))
    assert outcome.rule == "crash" and "seed 3" in outcome.failure


def test_a_replay_prints_the_faults_and_writes_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.txt"
    arguments = [
        "explore",
        "sim-quadratic",
        "--replay",
        "4",
        "--minutes",
        "2.5",
        "--faults",
        "3",
        "--trace",
        str(trace),
    ]
    assert main(arguments) == 0
    assert "nothing found" in capsys.readouterr().out
    first = trace.read_bytes()
    assert main(arguments) == 0 and trace.read_bytes() == first and first.count(b"\n") > 1000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["explore", "no-such-run"], "no-such-run"),
        (["explore", "sim-quadratic", "--network", "no-such-network"], "no-such-network"),
        (["explore", "sim-quadratic", "--seeds", "0"], "--seeds"),
        (["explore", "sim-quadratic", "--seeds", "many"], "--seeds"),
        (["explore", "sim-quadratic", "--minutes", "-3"], "--minutes"),
        (["explore", "sim-quadratic", "--peers", "1"], "--peers"),
        (["explore", "sim-quadratic", "--first-seed", "x"], "--first-seed"),
        (["explore", "sim-quadratic", "--replay", "x"], "--replay"),
        (["explore", "sim-quadratic", "--replay", "/no/such/plan.toml"], "/no/such/plan.toml"),
        (["explore", "sim-quadratic", "--trace", "x.txt"], "--trace"),
    ],
)
def test_bad_arguments_are_one_line_and_exit_code_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(arguments)
    except SystemExit as error:
        code = int(error.code or 0)
    said = capsys.readouterr().err.strip()
    assert code == 2 and words in said and "\n" not in said


def test_a_report_that_cannot_be_written_is_said_before_the_hunt(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--report"):
        hunt(ExploreOptions(run="sim-quadratic", num_seeds=1, report=tmp_path / "file" / "report"))
