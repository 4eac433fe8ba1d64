"""A small swarm of real processes, from its start to its judgement."""

import io
import json
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from p2ptrain.config import shipped
from p2ptrain.errors import ConfigError, P2PTrainError
from p2ptrain.real.main import run
from p2ptrain.simulate.supervisor import SimulateOptions, simulate


def unhurried_quadratic(folder: Path) -> str:
    """Return a run whose rounds are some tenths of a second apart, although its inner steps take a tenth of a millisecond."""
    text = shipped("configs")["sim-quadratic"].read_text()
    path = folder / "unhurried.toml"
    path.write_text(text.replace("inner_steps = 20", "inner_steps = 2000"))
    return str(path)


@pytest.mark.swarm
def test_two_peers_train_together_and_leave_nothing_behind(tmp_path: Path) -> None:
    # BUG-L09: whatever a simulation starts has ended with it
    out = io.StringIO()
    options = SimulateOptions(run=unhurried_quadratic(tmp_path), num_peers=2, seconds=8.0, report=tmp_path)
    summary = run(lambda: simulate(options, Console(file=out)))
    assert summary["anchors_agree"], out.getvalue()
    assert summary["num_unclean_exits"] == summary["num_crashed"] == 0, out.getvalue()
    assert summary["tokens_conserved"], out.getvalue()
    assert all(peer["tokens"] > 0 for peer in summary["peers"])
    assert summary["goodput"] > 0.0
    assert summary["anchors_compared"] == 2 * 4
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    assert not psutil.Process().children(recursive=True)


@pytest.mark.swarm
def test_a_host_that_cannot_start_ends_the_simulation_with_its_own_words(tmp_path: Path) -> None:
    config = tmp_path / "mine.toml"
    config.write_text('name = "mine"\n[data]\nsource = "path"\npath = "/nowhere/at/all.txt"\n')
    with pytest.raises(P2PTrainError, match=r"peer 1 could not start: .*nowhere") as caught:
        run(lambda: simulate(SimulateOptions(run=str(config), num_peers=2, seconds=5.0), Console(file=io.StringIO())))
    assert caught.value.exit_code != 0
    assert not psutil.Process().children(recursive=True)


def test_a_run_that_is_not_there_is_refused_before_any_process_starts() -> None:
    with pytest.raises(ConfigError, match="no run named 'pycod'"):
        run(lambda: simulate(SimulateOptions(run="pycod"), Console(file=io.StringIO())))
