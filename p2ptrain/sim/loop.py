"""An event loop whose time is a variable.

When no callback is ready the loop jumps to the next timer, so an hour of waiting costs nothing and two runs take the
same turns. Nothing outside can wake it, so a loop with no timer left will never run again: it says so (`Deadlock`)
instead of hanging. Executor calls run inline, since a thread's end has no place in virtual time. Tasks hash by their
number: asyncio keeps them in sets, and a set ordered by address would make a run depend on the memory allocator.
Timers of one instant fire in the order in which they were set. The callbacks of a frozen process (process.py) wait.

A simulated hour of a thousand peers is some hundred million callbacks, so this loop does nothing else than what is said
here: no sockets, no signals, no debug mode, no call from another thread.
"""

# mypy: disable-error-code="attr-defined"
# asyncio's own loop is extended here, and its insides are not in the type stubs.

import asyncio
import heapq
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor
from contextvars import Context, copy_context
from selectors import SelectSelector
from typing import Any, Final, TypeVar

from p2ptrain.sim.process import CURRENT_PROCESS, SimProcess

Result = TypeVar("Result")

FEW_TIMERS: Final = 1024  # cancelled ones are swept out once they are so many, and half of all


def _nothing() -> None:
    """What a cancelled callback does."""


class Deadlock(RuntimeError):
    """Every task waits for something that no timer will bring about."""


class _NumberedTask(asyncio.Task[Any]):
    """A task that hashes by its number of creation."""

    def __init__(self, number: int, coroutine: Coroutine[Any, Any, Any], **arguments: Any) -> None:
        self._number = number  # before Task's own constructor, which already hashes the task
        context: Context | None = arguments.get("context")
        self.process = CURRENT_PROCESS.get() if context is None else context.get(CURRENT_PROCESS)
        super().__init__(coroutine, **arguments)

    def __hash__(self) -> int:
        return self._number


class _Handle(asyncio.Handle):
    """A callback that is due; one of a frozen process waits there."""

    __slots__ = ()

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], context: Context, loop: Any) -> None:
        # Not asyncio's own constructor, which asks about a debug mode each time.
        self._callback, self._args, self._context, self._loop = callback, args, context, loop
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True
        self._callback, self._args = _nothing, ()

    def __repr__(self) -> str:
        return f"<{self._callback!r}>"

    def _run(self) -> None:
        try:
            self._context.run(self._callback, *self._args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - as asyncio does: an error of one callback is that one's
            self._loop.call_exception_handler({"message": f"in {self._callback!r}", "exception": error, "handle": self})


class _Timer(asyncio.TimerHandle):
    """The same at an instant."""

    __slots__ = ()

    def __init__(
        self, when: float, callback: Callable[..., object], args: tuple[Any, ...], context: Context, loop: Any
    ) -> None:
        self._callback, self._args, self._context, self._loop = callback, args, context, loop
        self._when, self._cancelled, self._scheduled = when, False, True

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._callback, self._args = _nothing, ()
            if self._scheduled:
                self._loop.num_cancelled += 1

    _run = _Handle._run
    __repr__ = _Handle.__repr__


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop in virtual seconds that begin at 0."""

    def __init__(self) -> None:
        super().__init__(SelectSelector())
        self._now = 0.0
        self._number = 0
        self._timers: list[tuple[float, int, _Timer]] = []  # a heap; the number settles which of one instant is first
        self.num_cancelled = 0  # of the timers in the heap
        self.set_task_factory(self._create_task)

    def time(self) -> float:
        return self._now

    def timers(self) -> Iterator[tuple[float, Callable[..., object], Context]]:
        """Yield the timers that are set, in order: instant, callback, context."""
        for when, _, timer in sorted(self._timers):
            if not timer._cancelled:
                yield when, timer._callback, timer._context

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = _Timer(when, callback, args, copy_context() if context is None else context, self)
        self._number += 1
        heapq.heappush(self._timers, (when, self._number, timer))
        return timer

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = _Handle(callback, args, copy_context() if context is None else context, self)  # an empty one is false
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def _run_once(self) -> None:
        """Run turn after turn until the loop is stopped."""
        ready, timers = self._ready, self._timers
        while True:
            if not ready:
                self._jump()
            now = self._now
            while timers and timers[0][0] <= now:
                timer = heapq.heappop(timers)[2]
                timer._scheduled = False
                if timer._cancelled:
                    self.num_cancelled -= 1
                else:
                    ready.append(timer)
            for _ in range(len(ready)):
                handle = ready.popleft()
                if handle._cancelled:
                    continue
                if SimProcess.num_frozen:
                    process = handle._context.get(CURRENT_PROCESS)
                    if process is not None and process.held is not None:
                        process.held.append(handle)
                        continue
                handle._run()
            if self._stopping:
                return

    def _jump(self) -> None:
        """Move to the instant of the next timer."""
        timers = self._timers
        if self.num_cancelled > FEW_TIMERS and 2 * self.num_cancelled > len(timers):
            timers[:] = [entry for entry in timers if not entry[2]._cancelled]
            heapq.heapify(timers)
            self.num_cancelled = 0
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)[2]._scheduled = False
            self.num_cancelled -= 1
        if not timers:
            raise Deadlock(f"at {self._now:g} s every task waits and no timer is set")
        self._now = max(self._now, timers[0][0])

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
        self._number += 1
        return _NumberedTask(self._number, coroutine, loop=loop, context=context)


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine in virtual time on a loop of its own, then cancel what it left behind."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
