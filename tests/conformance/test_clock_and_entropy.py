"""The Clock and Entropy ports."""

import asyncio

from p2ptrain.real.entropy import SystemEntropy


def test_time_passes_while_sleeping(world):
    async def story():
        clock = world.runtime(1).clock
        monotonic, wall = clock.monotonic(), clock.wall()
        await asyncio.sleep(0.02)
        assert clock.monotonic() - monotonic >= 0.019
        assert clock.wall() >= wall
        assert clock.wall() > 1_600_000_000

    world.run(story)


def test_two_processes_draw_different_keys_and_choices(world):
    async def story():
        one, other = world.runtime(1).entropy, world.runtime(2).entropy
        assert len(one.bytes(32)) == 32
        assert one.bytes(32) != one.bytes(32) != other.bytes(32)
        assert [one.random.random() for _ in range(4)] != [other.random.random() for _ in range(4)]

    world.run(story)


def test_a_seed_repeats_chance():
    one, other = SystemEntropy(seed=3), SystemEntropy(seed=3)
    assert one.bytes(8) == other.bytes(8)
    assert one.random.random() == other.random.random()
