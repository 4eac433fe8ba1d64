"""A simulated disk: full, slow, without power, lying."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from p2ptrain.errors import StorageError
from p2ptrain.sim import loop as virtual
from p2ptrain.sim.ports import SimWorld
from p2ptrain.sim.storage import SimStorage


def run(story: Coroutine[Any, Any, None]) -> None:
    virtual.run(story)


def test_a_full_disk_keeps_what_it_has_and_says_what_is_wrong() -> None:
    disk = SimStorage()
    disk.write("a/b.bin", b"old")
    disk.full = True
    with pytest.raises(StorageError, match=r"a/b.bin cannot be written: No space left on device"):
        disk.write("a/b.bin", b"new")
    assert disk.read("a/b.bin") == b"old"
    disk.full = False
    disk.write("a/b.bin", b"new")
    assert disk.read("a/b.bin") == b"new" and disk.names() == ["a/b.bin"]


def test_the_worker_waits_for_a_slow_disk_and_the_loop_does_not() -> None:
    world = SimWorld(seed=1)

    async def story() -> None:
        runtime = world.runtime("10.0.0.1")
        world.disk("10.0.0.1").write_seconds = 2.0
        world.disk("10.0.0.1").bytes_per_second = 10.0
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(1.0)
                ticks += 1

        ticking = asyncio.create_task(tick())
        await runtime.compute.run(runtime.storage.write, "blob", b"0123456789")
        assert runtime.clock.monotonic() == pytest.approx(3.0)
        both = [runtime.compute.run(runtime.storage.write, name, b"0123456789") for name in ("blob", "other")]
        await asyncio.gather(*both)  # one waits for the other
        assert runtime.clock.monotonic() == pytest.approx(9.0) and ticks >= 8
        ticking.cancel()

    world.run(story())


def test_a_power_cut_inside_a_write_leaves_the_old_blob() -> None:
    async def story() -> None:
        disk = SimStorage()
        disk.write("blob", b"old")
        disk.write_seconds = 2.0
        disk.write("blob", b"new")
        disk.write("another", b"new")
        await asyncio.sleep(3.0)  # the first is safe, the second is not
        assert disk.cut_power() == ["another"]
        assert disk.read("blob") == b"new" and disk.read("another") is None
        disk.delete("blob")
        assert disk.cut_power() == ["blob"] and disk.read("blob") == b"new"

    run(story())


def test_what_a_disk_lied_about_is_gone_after_a_power_cut() -> None:
    async def story() -> None:
        disk = SimStorage()
        disk.loses_unsynced = True
        disk.write("blob", b"first")
        await asyncio.sleep(60.0)
        disk.write("blob", b"second")
        await asyncio.sleep(4.0)
        disk.write("blob", b"third")
        await asyncio.sleep(4.0)
        assert disk.read("blob") == b"third"
        assert disk.cut_power() == ["blob"]
        assert disk.read("blob") == b"first"

    run(story())


def test_an_honest_disk_loses_nothing_that_was_waited_for() -> None:
    world = SimWorld(seed=1)

    async def story() -> None:
        runtime = world.runtime("10.0.0.1")
        world.disk("10.0.0.1").write_seconds = 5.0
        await runtime.compute.run(runtime.storage.write, "blob", b"new")
        assert world.disk("10.0.0.1").cut_power() == []
        assert world.disk("10.0.0.1").read("blob") == b"new"

    world.run(story())


def test_what_a_dead_process_writes_has_no_effect() -> None:
    world = SimWorld(seed=1)
    runtime = world.runtime("10.0.0.1")
    runtime.storage.write("blob", b"alive")
    world.kill("10.0.0.1")
    runtime.storage.write("blob", b"dead")
    runtime.storage.delete("blob")
    assert world.disk("10.0.0.1").read("blob") == b"alive"
