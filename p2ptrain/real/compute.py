"""Threads: a few workers for short work, and one thread per driven learner."""

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

Result = TypeVar("Result")

MAX_WORKERS: Final = 4  # hashing, codecs, disk: more would only take cores from the learner


class ThreadCompute:
    """The Compute port. Created in a running event loop, to which `post` comes back."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        workers = min(MAX_WORKERS, max(2, os.cpu_count() or 2))
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="worker")

    async def run(self, function: Callable[..., Result], *args: Any) -> Result:
        return await self._loop.run_in_executor(self._pool, function, *args)

    def drive(self, step: Callable[[], float]) -> "ThreadDrive":
        return ThreadDrive(step, self)

    def post(self, function: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            if not self._loop.is_closed():
                raise


class ThreadDrive:
    """A thread that steps a learner until it is told to stop. A daemon: it never keeps the process alive."""

    def __init__(self, step: Callable[[], float], compute: ThreadCompute) -> None:
        self._step, self._compute = step, compute
        self._stopping = threading.Event()
        self._stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        threading.Thread(target=self._drive, name="learner", daemon=True).start()

    def stop(self) -> None:
        self._stopping.set()

    async def stopped(self) -> None:
        await asyncio.shield(self._stopped)

    def _drive(self) -> None:
        failure: BaseException | None = None
        try:
            while not self._stopping.is_set():
                seconds = self._step()
                if seconds > 0:
                    self._stopping.wait(seconds)
        except BaseException as error:  # noqa: BLE001 - it crosses to the loop's thread, to whoever awaits `stopped`
            failure = error
        self._compute.post(self._end, failure)

    def _end(self, failure: BaseException | None) -> None:
        if self._stopped.done():
            return
        if failure is None:
            self._stopped.set_result(None)
        else:
            self._stopped.set_exception(failure)
