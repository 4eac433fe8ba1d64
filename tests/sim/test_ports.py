"""The ports of a simulated peer."""

import asyncio

import pytest

from p2ptrain.sim.ports import SimWorld


def test_each_machine_has_a_wall_clock_of_its_own():
    world = SimWorld(seed=1)

    async def story():
        right, wrong = world.runtime("10.0.0.1"), world.runtime("10.0.0.2", wall_skew=-90.0)
        assert wrong.clock.wall() - right.clock.wall() == pytest.approx(-90)
        assert wrong.clock.monotonic() == right.clock.monotonic()

    world.run(story())


def test_a_seed_repeats_keys_and_another_one_does_not():
    def key(seed: int) -> bytes:
        return SimWorld(seed=seed).runtime("10.0.0.1").entropy.bytes(32)

    assert key(1) == key(1) != key(2)


def test_a_restart_finds_its_disk_and_draws_new_chance():
    world = SimWorld(seed=1)
    before = world.runtime("10.0.0.1")
    before.storage.write("state.bin", b"kept")
    world.kill("10.0.0.1")
    after = world.runtime("10.0.0.1")
    assert after.storage.read("state.bin") == b"kept"
    assert after.entropy.bytes(8) != before.entropy.bytes(8)


def test_a_step_costs_virtual_time_and_a_kill_ends_it():
    world = SimWorld(seed=1)

    async def story():
        steps: list[float] = []
        runtime = world.runtime("10.0.0.1", step_seconds=2.0)

        def step() -> float:
            steps.append(runtime.clock.monotonic())
            return 0.0

        runtime.compute.drive(step)
        await asyncio.sleep(9)
        assert steps == [2.0, 4.0, 6.0, 8.0]
        world.kill("10.0.0.1")
        await asyncio.sleep(9)
        assert len(steps) == 4

    world.run(story())
