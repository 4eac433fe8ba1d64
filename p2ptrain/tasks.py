"""Every task has an owner.

The event loop holds tasks only weakly, and an exception in a task that nobody awaits is lost. A `TaskOwner` keeps its
tasks, turns what they raise into an event, and cancels them all when it closes. It keeps them in order of creation:
asyncio's TaskGroup holds a set ordered by address, which would make a simulated run depend on the memory allocator.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from p2ptrain.errors import P2PTrainError
from p2ptrain.events import Events


class TaskOwner:
    """Owns tasks; `close` cancels what still runs and waits for it."""

    def __init__(self, events: Events, *, on_failure: Callable[[BaseException], None] | None = None) -> None:
        self._events = events
        self._on_failure = on_failure
        self._tasks: dict[asyncio.Task[Any], str] = {}
        self._closed = False

    def spawn(self, name: str, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task; what it raises becomes the event `task-failed` (and goes to `on_failure` if that was given)."""
        if self._closed:
            coroutine.close()
            raise asyncio.CancelledError(f"{name}: its owner has closed")
        task = asyncio.create_task(coroutine, name=name)  # noqa: TID251 - the one place where tasks begin
        self._tasks[task] = name
        task.add_done_callback(self._done)
        return task

    def after(self, seconds: float, function: Callable[..., None], *args: Any) -> asyncio.TimerHandle:
        """Call a function in so many seconds; whoever asks for it also cancels it, at its own end at the latest."""
        return asyncio.get_running_loop().call_later(seconds, function, *args)  # noqa: TID251 - and where timers begin

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def is_closed(self) -> bool:
        """Whether no task can begin any more."""
        return self._closed

    def _done(self, task: asyncio.Task[Any]) -> None:
        name = self._tasks.pop(task, "")
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        self._events.emit("task-failed", task=name, error=describe(error))
        if self._on_failure is not None:
            self._on_failure(error)

    async def close(self) -> None:
        """Cancel every task and wait until each has ended."""
        self._closed = True
        current = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not current]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def describe(error: BaseException) -> str:
    """Return an error as one line: our own by their sentence, others with their type."""
    if isinstance(error, P2PTrainError):
        return str(error)
    return f"{type(error).__name__}: {error}"
