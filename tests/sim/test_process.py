"""A process in virtual time: what is its own, and what freezing it stops."""

import asyncio

from p2ptrain.sim import loop as virtual
from p2ptrain.sim.process import SimProcess, current_process


def test_tasks_and_timers_belong_to_the_process_that_began_them() -> None:
    seen: list[tuple[str, SimProcess | None]] = []

    async def main() -> None:
        process = SimProcess("10.0.0.1", 1)

        async def child() -> None:
            seen.append(("task", current_process()))
            asyncio.get_running_loop().call_later(1.0, lambda: seen.append(("timer", current_process())))

        async def peer() -> None:
            await asyncio.create_task(child())

        await asyncio.create_task(peer(), context=process.context)
        await asyncio.sleep(2.0)
        seen.append(("world", current_process()))
        assert [what for what, _ in seen] == ["task", "timer", "world"]
        assert [owner for _, owner in seen] == [process, process, None]

    virtual.run(main())


def test_a_frozen_process_does_nothing_and_then_everything_in_order() -> None:
    ticks: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        process = SimProcess("10.0.0.1", 1)

        async def tick() -> None:
            while True:
                await asyncio.sleep(1.0)
                ticks.append(loop.time())

        task = asyncio.create_task(tick(), context=process.context)
        await asyncio.sleep(2.5)
        process.freeze()
        assert process.frozen
        await asyncio.sleep(10.0)
        assert ticks == [1.0, 2.0]
        process.thaw()
        await asyncio.sleep(1.25)
        assert ticks == [1.0, 2.0, 12.5, 13.5]
        task.cancel()

    virtual.run(main())


def test_a_frozen_process_can_be_ended() -> None:
    async def main() -> None:
        process = SimProcess("10.0.0.1", 1)
        task = asyncio.create_task(asyncio.sleep(1.0), context=process.context)
        process.freeze()
        await asyncio.sleep(5.0)
        process.end()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled() and not process.alive

    virtual.run(main())


def test_timers_of_one_instant_fire_in_the_order_in_which_they_were_set() -> None:
    async def main() -> None:
        fired: list[int] = []
        for number in range(50):
            asyncio.get_running_loop().call_at(3.0, fired.append, number)
        await asyncio.sleep(4.0)
        assert fired == list(range(50))

    virtual.run(main())
