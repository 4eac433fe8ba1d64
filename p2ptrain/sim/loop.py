"""An event loop whose time is a variable.

When no callback is ready the loop jumps to the next timer, so an hour of waiting costs nothing and two runs take the
same turns. Nothing outside can wake it, so a loop with no timer left will never run again: it says so (`Deadlock`)
instead of hanging. Executor calls run inline, since a thread's end has no place in virtual time. Tasks hash by their
number: asyncio keeps them in sets, and a set ordered by address would make a run depend on the memory allocator.
"""

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context
from selectors import SelectorKey, SelectSelector
from typing import Any, TypeVar

Result = TypeVar("Result")


class Deadlock(RuntimeError):
    """Every task waits for something that no timer will bring about."""


class _JumpingSelector(SelectSelector):
    """Selects nothing; where a real selector would sleep, it moves the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        if timeout is None:
            raise Deadlock(f"at {self.now:g} s every task waits and no timer is set")
        self.now += max(timeout, 0.0)
        return []


class _NumberedTask(asyncio.Task[Any]):
    """A task that hashes by its number of creation."""

    def __init__(self, number: int, coroutine: Coroutine[Any, Any, Any], **arguments: Any) -> None:
        self._number = number  # before Task's own constructor, which already hashes the task
        super().__init__(coroutine, **arguments)

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop in virtual seconds that begin at 0."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        self._numbers = itertools.count(1)
        self.set_task_factory(self._create_task)

    def time(self) -> float:
        return self._jumping.now

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, function: Callable[..., Result], *args: Any
    ) -> asyncio.Future[Result]:
        """Run the function now; the future that is returned is done."""
        future: asyncio.Future[Result] = self.create_future()
        try:
            future.set_result(function(*args))
        except Exception as error:  # noqa: BLE001 - it belongs to whoever awaits the future, as with a real executor
            future.set_exception(error)
        return future

    def _create_task(
        self, loop: asyncio.AbstractEventLoop, coroutine: Any, *, context: Context | None = None
    ) -> asyncio.Task[Any]:
        return _NumberedTask(next(self._numbers), coroutine, loop=loop, context=context)


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine in virtual time on a loop of its own, then cancel what it left behind."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
