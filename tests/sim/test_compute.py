"""What work costs on a simulated machine."""

import asyncio
import random

import pytest

from p2ptrain.sim import loop as virtual
from p2ptrain.sim.compute import DeviceClass, SimCompute, step_seconds_of


def steps_made(compute: SimCompute, seconds: float) -> list[float]:
    """Return when a learner that is driven for so long made its steps."""
    made: list[float] = []

    async def story() -> None:
        def step() -> float:
            made.append(asyncio.get_running_loop().time())
            return 0.0

        compute.drive(step)
        await asyncio.sleep(seconds)
        compute.kill()

    virtual.run(story())
    return made


def test_a_step_takes_as_long_as_the_device_needs() -> None:
    fast = SimCompute(6.0, device=DeviceClass(name="fast", speed=3.0, jitter=0.0))
    assert steps_made(fast, 7.0) == [2.0, 4.0, 6.0]
    shared = SimCompute(6.0, device=DeviceClass(name="shared", speed=3.0, jitter=0.0, utilisation=0.5))
    assert steps_made(shared, 9.0) == [4.0, 8.0]


def test_jitter_stays_within_its_bounds_and_follows_from_the_seed() -> None:
    def times(seed: int) -> list[float]:
        device = DeviceClass(name="home", jitter=0.1)
        return steps_made(SimCompute(1.0, device=device, chance=random.Random(seed)), 60.0)

    made = times(1)
    gaps = [after - before for before, after in zip([0.0, *made], made, strict=False)]
    assert all(0.9 <= gap <= 1.1 for gap in gaps) and max(gaps) - min(gaps) > 0.1
    assert made == times(1) != times(2)


def test_a_straggler_and_a_hanging_accelerator() -> None:
    compute, made = SimCompute(1.0), []

    async def story() -> None:
        def step() -> float:
            made.append(asyncio.get_running_loop().time())
            return 0.0

        drive = compute.drive(step)
        await asyncio.sleep(2.5)
        compute.straggler = 10.0
        await asyncio.sleep(20.0)  # one step was under way at the old speed
        assert made == [1.0, 2.0, 3.0, 13.0]
        compute.straggler = 1.0
        compute.hang()
        await asyncio.sleep(100.0)
        assert len(made) == 4
        compute.resume()
        await asyncio.sleep(2.0)
        assert made[4:] == pytest.approx([122.5, 123.5, 124.5][: len(made) - 4]) and len(made) >= 6
        drive.stop()
        await drive.stopped()

    virtual.run(story())


def test_work_on_a_worker_thread_costs_what_was_said() -> None:
    async def story() -> None:
        compute = SimCompute(1.0, device=DeviceClass(name="fast", speed=2.0))
        assert await compute.run(max, 1, 2) == 2
        assert asyncio.get_running_loop().time() == 0.0
        compute.call_seconds, compute.straggler = 0.4, 3.0
        await compute.run(max, 1, 2)
        assert asyncio.get_running_loop().time() == pytest.approx(0.6)

    virtual.run(story())


def test_the_cost_of_a_step_follows_from_the_models_size() -> None:
    laptop = DeviceClass(name="laptop", teraflops=0.5, step_overhead=0.01)
    assert step_seconds_of(10_000_000, 4096, laptop) == pytest.approx(6 * 1e7 * 4096 / 0.5e12 + 0.01)
