"""How long volunteers stay, and what becomes of them."""

import asyncio
from random import Random
from statistics import fmean, median

import pytest

from p2ptrain.config import load_run_config, validated
from p2ptrain.errors import ConfigError
from p2ptrain.sim.churn import Churn, ChurnConfig, Durations, SessionsConfig
from p2ptrain.sim.swarm import SimSwarm

CONFIG = load_run_config("sim-quadratic")


@pytest.mark.parametrize(
    ("kind", "shape", "most"),
    [("exponential", None, 0.75), ("weibull", 0.6, 0.6), ("pareto", 1.8, 0.7), ("lognormal", 1.2, 0.55), ("constant", None, 1.01)],
)  # fmt: skip
def test_durations_have_the_mean_that_was_asked_for_and_their_tail(kind: str, shape: float | None, most: float) -> None:
    durations = Durations(kind=kind, mean_minutes=10.0, shape=shape)  # type: ignore[arg-type]
    chance = Random(7)
    drawn = [durations.draw(chance) for _ in range(40_000)]
    assert fmean(drawn) == pytest.approx(600.0, rel=0.15)  # a pareto's mean converges slowly
    assert median(drawn) < most * 600.0  # the heavier the tail, the shorter a usual session
    assert min(drawn) >= 1.0


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"mean_minutes": -1.0}, "mean_minutes = -1.0: input should be greater than 0"),
        ({"kind": "pareto", "shape": 0.9}, "shape = 0.9: a pareto distribution has a mean only for a shape above 1"),
        ({"kind": "zipf"}, "kind = 'zipf': input should be 'exponential', 'weibull', 'pareto', 'lognormal' or 'constant'"),
        ({"mean_minute": 3.0}, "unknown key mean_minute (did you mean 'mean_minutes'?)"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(values: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validated(Durations, values, "here")
    assert words in str(caught.value)


def play(seed: int, config: ChurnConfig, minutes: float, num_peers: int = 4) -> tuple[SimSwarm, Churn]:
    print(f"seed {seed}")
    swarm = SimSwarm(CONFIG, seed=seed, step_seconds=5.0)
    churn = Churn(swarm, config)

    async def story() -> None:
        await swarm.host()
        for _ in range(num_peers - 1):
            await swarm.join()
        churn.start()
        await asyncio.sleep(60.0 * minutes)
        churn.cancel()

    swarm.run(story())
    return swarm, churn


def test_peers_go_and_come_back_or_are_replaced() -> None:
    sessions = SessionsConfig(
        on=Durations(mean_minutes=3.0), off=Durations(kind="constant", mean_minutes=0.5), share_gone=0.3, share_graceful=0.4,
    )  # fmt: skip
    swarm, churn = play(3, ChurnConfig(sessions=sessions, spare=[1]), 12.0)
    assert churn.num_sessions >= 5 and churn.num_newcomers >= 1
    assert len(swarm.host_names) == 4 + churn.num_newcomers
    starts = [host for host, event in swarm.events if event.kind == "started"]
    assert starts.count(swarm.host_names[0]) == 1  # it is spared
    assert any(starts.count(host) > 1 for host in swarm.host_names)
    assert {"left"} <= {event.kind for _, event in swarm.events}


def test_the_same_seed_brings_the_same_churn() -> None:
    sessions = SessionsConfig(on=Durations(mean_minutes=2.0), off=Durations(mean_minutes=0.5))

    def trace(seed: int) -> list[tuple[str, str, float]]:
        swarm, _ = play(seed, ChurnConfig(sessions=sessions), 5.0, num_peers=3)
        return [(host, event.kind, event.at) for host, event in swarm.events]

    first = trace(4)
    assert first == trace(4) and first != trace(5)


def test_a_share_is_replaced_now_and_then() -> None:
    swarm, churn = play(6, ChurnConfig(replace_share=0.5, every_minutes=2.0, spare=[1]), 7.0)
    assert churn.num_newcomers == 6  # half of four, at 2, 4 and 6 minutes
    assert len(swarm.host_names) == 10


def test_somebody_always_stays() -> None:
    sessions = SessionsConfig(on=Durations(mean_minutes=0.5), off=Durations(mean_minutes=30.0), share_gone=0.0)
    swarm = SimSwarm(CONFIG, seed=8, step_seconds=5.0)
    fewest = 4

    async def story() -> None:
        nonlocal fewest
        await swarm.host()
        for _ in range(3):
            await swarm.join()
        Churn(swarm, ChurnConfig(sessions=sessions, least_alive=2)).start()
        for _ in range(300):
            await asyncio.sleep(1.0)
            fewest = min(fewest, len(swarm.peers))

    swarm.run(story())
    assert fewest == 2
