"""`p2ptrain goodput` as a user types it: tables, files, and each mistake in one line."""

import json
from pathlib import Path

import pytest

from p2ptrain.cli import main
from p2ptrain.errors import ExitCode


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("goodput") / "report"
    assert main(["goodput", "--quick", "--seed", "3", "--report", str(folder)]) == ExitCode.OK
    return folder


def test_the_report_has_the_table_in_percent(report: Path) -> None:
    study = json.loads((report / "goodput.json").read_text())
    assert list(study["table"]) == ["elastic", "2", "4", "8", "16"]
    assert study["chips"] == [150_000, 300_000, 600_000, 1_200_000, 2_400_000]
    for key in ("table", "paper", "difference", "uptime"):
        assert all(len(cells) == 5 for cells in study[key].values())
    assert all(0.0 < cell < 100.0 for cells in study["table"].values() for cell in cells)
    assert study["table"]["elastic"][0] == pytest.approx(88.0, abs=2.0)
    errors = [
        ours - theirs
        for row, cells in study["table"].items()
        for ours, theirs in zip(cells, study["paper"][row], strict=True)
    ]
    assert study["rms_points"] == pytest.approx((sum(error**2 for error in errors) / 25) ** 0.5, abs=0.01)
    assert study["rms_points"] <= 1.5
    assert study["seed"] == 3 and study["volunteers"] is None


def test_the_report_says_where_each_parameter_is_from(report: Path) -> None:
    parameters = json.loads((report / "goodput.json").read_text())["parameters"]
    assert "interruption_interval_per_chip" in parameters["published"]
    assert {"stop_seconds", "readmission_seconds", "mean_repair_seconds"} <= set(parameters["fitted"])
    assert not set(parameters["published"]) & (set(parameters["fitted"]) | set(parameters["chosen"]))


def test_the_report_has_the_other_tables_and_the_plots(report: Path) -> None:
    study = json.loads((report / "goodput.json").read_text())
    assert [one["policy"][:5] for one in study["heterogeneity"]] == ["K = 8", "K = 1", "K = 1"]
    assert len(study["scavenging"]["decoupled"]["ours"]) == len(study["scavenging"]["extra"]) == 5
    for name in ("goodput.png", "scavenging.png"):
        assert (report / name).read_bytes().startswith(b"\x89PNG")
    text = (report / "table.md").read_text()
    assert "| M = 16 |" in text and "RMS difference" in text and "Fitted" in text


def test_the_terminal_shows_ours_beside_the_papers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["goodput", "--quick"]) == ExitCode.OK
    said = capsys.readouterr().out
    for words in ("elastic DP", "M = 16", "RMS difference over the 25", "Uptime", "K = 1 + adaptive grace", "ideal"):
        assert words in said
    assert "Volunteers" not in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--peers", "0"], "--peers 0: sizes are whole numbers from 2 to 4096"),
        (["--peers", "8,many"], "--peers '8,many': whole numbers divided by commas"),
        (["--peers", ""], "whole numbers divided by commas"),
        (["--peers", "-8"], "--peers"),
        (["--hours", "0"], "'0' is not a number from"),
        (["--minutes", "nan"], "'nan' is not a number from"),
        (["--seed", "three"], "'three' is not a whole number"),
        (["--report", __file__], "there is a file of that name"),
        (["--network", "moonbase"], "no network named 'moonbase'"),
        (["--run", "pycod"], "did you mean 'pycode'?"),
        (["--loud"], "--loud"),
    ],
)
def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    try:
        code = main(["goodput", *arguments])
    except SystemExit as error:
        code = int(error.code or 0)
    said = capsys.readouterr()
    assert code == ExitCode.USAGE
    assert words in said.err and len(said.err.strip().splitlines()) == 1 and not said.out
