"""One seed, one story: two processes that hash differently write the same trace, to the last byte."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from p2ptrain.config import load_run_config
from p2ptrain.sim.swarm import SimSwarm
from p2ptrain.sim.trace import Trace

HASH_SEEDS = ("1", "4242")


def tell(seed: int, *, use_directory: bool) -> str:
    """Return the trace of a swarm to which much happens, and what it comes to."""
    swarm = SimSwarm(load_run_config("sim-quadratic"), seed=seed, use_directory=use_directory)
    trace = io.StringIO()
    Trace(swarm, trace)

    async def story() -> None:
        first = await swarm.host()
        for number in range(4):
            await swarm.join(wall_skew=1.5 * number - 2.0)
        await swarm.commits(2)
        third, fourth, fifth = swarm.host_names[2:5]
        swarm.kill(fourth)
        sixth = await swarm.join(wall_skew=-30.0)
        await swarm.commits(1)
        swarm.world.network.partition([first, third], [fifth, sixth, swarm.host_names[1]])
        await swarm.commits(2)
        await swarm.restart(fourth)
        swarm.world.network.heal()
        swarm.kill(third, power_cut=True)
        await swarm.commits(1)
        await swarm.restart(third)
        await swarm.leave(sixth)
        await swarm.settle()

    swarm.run(story())
    trace.write("\n".join(swarm.heads()))
    return trace.getvalue()


@pytest.mark.parametrize("use_directory", [True, False], ids=["with the DHT", "without"])
def test_two_processes_that_hash_differently_write_the_same_trace(use_directory: bool) -> None:
    traces = [_told_with(hash_seed, use_directory) for hash_seed in HASH_SEEDS]
    lines = [trace.splitlines() for trace in traces]
    differing = [number for number, pair in enumerate(zip(*lines, strict=False)) if pair[0] != pair[1]]
    for number in differing[:1]:
        pytest.fail(f"line {number + 1} differs:\n" + "\n".join(told[number] for told in lines))
    assert traces[0] == traces[1]
    assert ("kademlia" in traces[0]) is use_directory
    assert len(lines[0]) > 1000


def test_another_seed_is_another_story() -> None:
    assert tell(1, use_directory=False) != tell(2, use_directory=False)


def _told_with(hash_seed: str, use_directory: bool) -> str:
    script = (
        f"from importlib.util import module_from_spec, spec_from_file_location as spec_from\n"
        f"spec = spec_from('told', {str(Path(__file__))!r}); told = module_from_spec(spec)\n"
        f"spec.loader.exec_module(told); print(told.tell(7, use_directory={use_directory}))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
