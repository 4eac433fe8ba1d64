"""The Compute port."""

import asyncio
import threading

import pytest

DEADLINE = 20.0


def test_work_returns_its_result_or_raises(world):
    async def story():
        compute = world.runtime(1).compute
        assert await compute.run(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await compute.run(divmod, 7, 0)

    world.run(story)


def test_a_driven_learner_stops_at_a_step_boundary(world):
    async def story():
        compute, seen = world.runtime(1).compute, asyncio.Event()
        steps: list[str] = []

        def step() -> float:
            steps.append("begin")
            if len(steps) >= 6:
                compute.post(seen.set)
            steps.append("end")
            return 0.0

        drive = compute.drive(step)
        async with asyncio.timeout(DEADLINE):
            await seen.wait()
            drive.stop()
            await drive.stopped()
            await drive.stopped()  # asking twice is fine
        assert steps[-1] == "end"
        count = len(steps)
        await asyncio.sleep(0.05)
        assert len(steps) == count

    world.run(story)


def test_a_learner_that_wants_to_be_left_alone_still_stops(world):
    async def story():
        compute, seen = world.runtime(1).compute, asyncio.Event()

        def step() -> float:
            compute.post(seen.set)
            return 3.0

        drive = compute.drive(step)
        async with asyncio.timeout(DEADLINE):
            await seen.wait()
            drive.stop()
            await drive.stopped()

    world.run(story)


def test_what_a_learner_raises_reaches_whoever_waits_for_it(world):
    async def story():
        def step() -> float:
            raise ArithmeticError("loss is nan")

        drive = world.runtime(1).compute.drive(step)
        async with asyncio.timeout(DEADLINE):
            with pytest.raises(ArithmeticError, match="loss is nan"):
                await drive.stopped()

    world.run(story)


def test_post_runs_on_the_loop_and_in_order(world):
    async def story():
        compute, done = world.runtime(1).compute, asyncio.Event()
        here, calls = threading.current_thread(), []

        def post_from_worker() -> None:
            for number in range(3):
                compute.post(lambda number=number: calls.append((number, threading.current_thread() is here)))
            compute.post(done.set)

        await compute.run(post_from_worker)
        async with asyncio.timeout(DEADLINE):
            await done.wait()
        assert calls == [(0, True), (1, True), (2, True)]

    world.run(story)


def test_post_after_the_loop_has_closed_does_nothing(world):
    runtimes = []

    async def story():
        runtimes.append(world.runtime(1))

    world.run(story)
    runtimes[0].compute.post(pytest.fail, "ran on a closed loop")
