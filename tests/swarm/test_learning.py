"""Does the swarm really help? Eight peers against one, at equal inner steps per peer, on real text, in virtual time."""

import asyncio

import pytest

from p2ptrain.config import RunConfig, load_run_config
from p2ptrain.sim.swarm import STEP_SECONDS, SimSwarm

NUM_STEPS = 400  # per peer: twenty rounds of H = 20
LEARNING_RATE = 1.6e-2  # at which a lone peer's steps are noisy; averaging is what takes the noise out


def final_loss(config: RunConfig, num_peers: int, seed: int) -> float:
    """Return the validation loss (nats per byte) of the anchors after NUM_STEPS steps of every peer."""
    swarm = SimSwarm(config, seed=seed)

    async def story() -> float:
        await swarm.host()
        for _ in range(num_peers - 1):
            await swarm.join()
        await asyncio.sleep(NUM_STEPS * STEP_SECONDS)
        await swarm.settle()
        return await next(iter(swarm.peers.values())).validate()

    return swarm.run(story())


@pytest.mark.timeout(300)
def test_eight_peers_beat_one_by_three_tenths_of_a_nat() -> None:
    seed = 1
    print(f"seed {seed}")
    config = load_run_config("char-mlp")
    config = config.model_copy(update={"inner": config.inner.model_copy(update={"learning_rate": LEARNING_RATE})})
    alone, together = final_loss(config, 1, seed), final_loss(config, 8, seed)
    print(f"one peer {alone:.3f}, eight peers {together:.3f} nats per byte")
    assert together < alone - 0.3
