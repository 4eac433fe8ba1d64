"""Every codec and every merge rule in a whole swarm: it agrees to the byte, conserves work, and learns."""

import pytest

from p2ptrain.config import load_run_config
from p2ptrain.sim.swarm import SimSwarm

CONFIG = load_run_config("sim-quadratic")


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        *(("codec", "up", up) for up in ("fp32", "bf16", "int8", "int4", "topk2")),
        *(("codec", "down", down) for down in ("fp32", "bf16", "int8", "int4")),
        ("outer", "optimizer", "adam"),
        *(("rounds", "merge", rule) for rule in ("rda-median", "mean", "trimmed-mean", "median", "centered-clip")),
    ],
)
def test_a_swarm_agrees_and_learns(section: str, name: str, value: str) -> None:
    config = CONFIG.model_copy(update={section: getattr(CONFIG, section).model_copy(update={name: value})})
    if value == "topk2":  # what it sends late comes on top of what was learned meanwhile: small outer steps, please
        outer = config.outer.model_copy(update={"learning_rate": 0.1, "momentum": 0.0})
        config = config.model_copy(update={"outer": outer})
    swarm = SimSwarm(config, seed=5)
    losses: list[float] = []

    async def story() -> None:
        host = await swarm.host()
        losses.append(await swarm.peers[host].validate())
        for _ in range(2):
            await swarm.join()
        await swarm.commits(6)
        await swarm.settle()
        assert swarm.heads_agree()
        losses.append(await swarm.peers[host].validate())

    swarm.run(story())
    print(f"seed 5, losses {losses}")
    assert losses[1] < losses[0] * (0.9 if value == "topk2" else 0.6)
