"""Does a swarm learn more than one peer, at equal tokens per peer? In virtual time, with the real protocol and torch.

    python benchmarks/learning.py [--run pycode] [--peers 4] [--steps 400] [--seeds 1]

Prints the validation loss (nats per byte) of the anchors of a swarm of one and of a swarm of several, after equal inner
steps per peer, and the difference. CPU only; `pycode` takes about 40 ms of CPU per step and peer.
"""

import argparse
import asyncio

from p2ptrain.config import RunConfig, load_run_config
from p2ptrain.sim.swarm import STEP_SECONDS, SimSwarm


def final_loss(config: RunConfig, num_peers: int, num_steps: int, seed: int) -> float:
    """Return the validation loss of the anchors once every peer has made `num_steps` inner steps and all is merged."""
    swarm = SimSwarm(config, seed=seed)

    async def story() -> float:
        await swarm.host()
        for _ in range(num_peers - 1):
            await swarm.join()
        await asyncio.sleep(num_steps * STEP_SECONDS)
        await swarm.settle()
        return await next(iter(swarm.peers.values())).validate()

    return swarm.run(story())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", default="pycode")
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=1)
    arguments = parser.parse_args()
    config = load_run_config(arguments.run)
    config = config.model_copy(update={"inner": config.inner.model_copy(update={"total_steps": arguments.steps})})
    print(f"{'seed':>4}  {'one peer':>9}  {arguments.peers:>3} peers  gained (nats per byte)")
    for seed in range(arguments.seeds):
        alone = final_loss(config, 1, arguments.steps, seed)
        together = final_loss(config, arguments.peers, arguments.steps, seed)
        print(f"{seed:>4}  {alone:>9.3f}  {together:>9.3f}  {alone - together:>6.3f}", flush=True)


if __name__ == "__main__":
    main()
