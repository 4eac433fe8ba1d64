"""The same verbs with real processes."""

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from p2ptrain.config import RunConfig, load_run_config
from p2ptrain.errors import ConfigError
from p2ptrain.testing import Experiment, LocalSwarm
from p2ptrain.testing.local import to_toml


@pytest.mark.swarm
def test_a_killed_process_comes_back_and_agrees(local_swarm: LocalSwarm) -> None:
    local_swarm.add_peers(3, run=load_run_config("sim-quadratic"), step_seconds=0.05)
    local_swarm.run(seconds=4)
    assert local_swarm.participation > 0.5
    local_swarm.kill(local_swarm.peers[2])
    assert [peer.is_alive for peer in local_swarm.peers] == [True, True, False]
    local_swarm.restart(3)
    local_swarm.run(seconds=4)
    assert local_swarm.heads_agree()
    assert local_swarm.peers[2].tokens > 0 and min(local_swarm.versions) > 2
    assert local_swarm.losses
    local_swarm.close()
    assert not psutil.Process().children(recursive=True)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda swarm: swarm.run(seconds=1), "add_peers comes first"),
        (lambda swarm: swarm.add_peers(0), r"add_peers\(0\)"),
        (lambda swarm: swarm.add_peers(2, run="pycod"), "did you mean 'pycode'"),
        (lambda swarm: swarm.add_peers(2, run=Experiment()), "cannot go into other processes"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, wrong: Callable[[LocalSwarm], object], words: str) -> None:
    with LocalSwarm(tmp_path) as swarm, pytest.raises(ConfigError, match=words) as caught:
        wrong(swarm)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["pycode", "char-mlp", "sim-quadratic"])
def test_a_config_survives_its_file(tmp_path: Path, name: str) -> None:
    config: RunConfig = load_run_config(name)
    path = tmp_path / "run.toml"
    path.write_text(to_toml(config))
    assert load_run_config(str(path)) == config
