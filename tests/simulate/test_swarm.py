"""A small swarm of real processes, from its start to its judgement."""

import io
import json
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from p2ptrain.errors import ConfigError, P2PTrainError
from p2ptrain.real.main import run
from p2ptrain.simulate.supervisor import SimulateOptions, simulate


@pytest.mark.swarm
def test_two_peers_train_together_and_leave_nothing_behind(tmp_path: Path) -> None:
    # BUG-L09: whatever a simulation starts has ended with it
    out = io.StringIO()
    options = SimulateOptions(run="sim-quadratic", num_peers=2, seconds=8.0, report=tmp_path)
    summary = run(lambda: simulate(options, Console(file=out)))
    assert summary["num_unclean_exits"] == summary["num_crashed"] == 0, out.getvalue()
    assert summary["tokens_conserved"], out.getvalue()
    assert all(peer["tokens"] > 0 for peer in summary["peers"])
    assert summary["goodput"] > 0.0
    assert summary["anchors_compared"] == 2 * 4
    assert not [reason for reason in summary["disagreements"] if "the same" in reason], out.getvalue()
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
    with pytest.raises(ConfigError, match="no configs named 'pycod'"):
        run(lambda: simulate(SimulateOptions(run="pycod"), Console(file=io.StringIO())))
