"""An event loop whose time is a variable.

When no callback is ready the loop jumps to the next timer, so an hour of waiting costs nothing and two runs take the
same turns. Nothing outside can wake it, so a loop with no timer left will never run again: it says so (`Deadlock`)
instead of hanging. Executor calls run inline, since a thread's end has no place in virtual time. Tasks hash by their
number: asyncio keeps them in sets, and a set ordered by address would make a run depend on the memory allocator.
Timers of one instant fire in the order in which they were set. The callbacks of a frozen process (process.py) wait.
"""

# mypy: disable-error-code="attr-defined"
# asyncio's own loop is extended here, and its insides are not in the type stubs.

import asyncio
import heapq
import itertools
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context
from selectors import SelectorKey, SelectSelector
from typing import Any, TypeVar

from p2ptrain.sim.process import CURRENT_PROCESS

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
        context: Context | None = arguments.get("context")
        self.process = CURRENT_PROCESS.get() if context is None else context.get(CURRENT_PROCESS)
        super().__init__(coroutine, **arguments)

    def __hash__(self) -> int:
        return self._number


class _ProcessHandle(asyncio.Handle):
    """A callback that waits while its process is frozen."""

    __slots__ = ()

    def _run(self) -> None:
        process = self._context.get(CURRENT_PROCESS)
        if process is not None and process.held is not None:
            process.held.append(self)
        else:
            super()._run()


class _ProcessTimer(asyncio.TimerHandle):
    """The same at an instant; timers of one instant are ordered by their number."""

    __slots__ = ("_number",)

    def __init__(self, number: int, when: float, callback: Any, args: Any, loop: Any, context: Any) -> None:
        super().__init__(when, callback, args, loop, context)
        self._number = number

    def __lt__(self, other: "_ProcessTimer") -> bool:  # type: ignore[override]
        return (self._when, self._number) < (other._when, other._number)

    def _run(self) -> None:
        process = self._context.get(CURRENT_PROCESS)
        if process is not None and process.held is not None:
            process.held.append(self)
        else:
            super()._run()


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop in virtual seconds that begin at 0."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        self._numbers = itertools.count(1)
        self.set_task_factory(self._create_task)

    def time(self) -> float:
        return self._jumping.now

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        self._check_closed()
        timer = _ProcessTimer(next(self._numbers), when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True
        return timer

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        self._check_closed()
        handle = _ProcessHandle(callback, args, self, context)
        self._ready.append(handle)
        return handle

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
