"""Long random runs, left out of the ordinary run: `make soak`. Each prints its seed, which replays it."""

import asyncio
import random

import pytest

from p2ptrain.config import load_run_config
from p2ptrain.sim.swarm import SimSwarm

CONFIG = load_run_config("sim-quadratic")
NUM_FAULTS = 15


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(40))
def test_kills_partitions_and_newcomers_in_any_order_end_in_one_chain(seed: int) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    swarm = SimSwarm(CONFIG, seed=seed, latency=chance.choice([0.005, 0.05, 0.15]))

    async def kill_and_restart() -> None:
        victim = chance.choice(sorted(swarm.peers))
        swarm.kill(victim)
        await asyncio.sleep(chance.uniform(0.5, 6.0))
        await swarm.restart(victim)

    async def part_and_heal() -> None:
        hosts = sorted(swarm.peers)
        left = set(chance.sample(hosts, chance.randint(1, len(hosts) - 1)))
        swarm.world.network.partition(left, [host for host in hosts if host not in left])
        await asyncio.sleep(chance.uniform(0.5, 12.0))
        swarm.world.network.heal()

    async def join_another() -> None:
        if len(swarm.peers) < 8:
            await swarm.join(step_seconds=chance.choice([0.05, 0.1, 0.4]))

    async def story() -> None:
        await swarm.host()
        for _ in range(4):
            await swarm.join()
        for _ in range(NUM_FAULTS):
            await asyncio.sleep(chance.uniform(0.2, 3.0))
            await chance.choice([kill_and_restart, kill_and_restart, part_and_heal, join_another])()
        await swarm.commits(2)
        await swarm.settle()
        assert swarm.heads_agree()

    swarm.run(story())
