"""The virtual loop: hours in milliseconds, in the same order every time."""

import asyncio

import pytest

from p2ptrain.sim.loop import Deadlock, run


def test_an_hour_passes_at_once():
    async def story() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    assert run(story()) == pytest.approx(3600)


def test_timers_fire_in_order_of_time():
    async def story() -> list[int]:
        fired: list[int] = []

        async def fire(seconds: int) -> None:
            await asyncio.sleep(seconds)
            fired.append(seconds)

        await asyncio.gather(*(fire(seconds) for seconds in (5, 1, 4, 2, 3)))
        return fired

    assert run(story()) == [1, 2, 3, 4, 5]


def test_waiting_for_what_never_comes_is_a_deadlock():
    async def story() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match="every task waits"):
        run(story())


def test_timeouts_follow_virtual_time():
    async def story() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(120):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert run(story()) == pytest.approx(120)


def test_sets_of_tasks_are_ordered_by_creation():
    async def story() -> list[str]:
        tasks = {asyncio.create_task(asyncio.sleep(1), name=str(number)) for number in range(50)}
        names = [task.get_name() for task in tasks]
        await asyncio.wait(tasks)
        return names

    assert run(story()) == run(story())


def test_executor_calls_run_inline():
    async def story() -> int:
        return await asyncio.get_running_loop().run_in_executor(None, max, 3, 4)

    assert run(story()) == 4
