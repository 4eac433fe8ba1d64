"""The other ports of a simulated peer, and the world that hands them out.

    world = SimWorld(seed=7)
    async def story():
        runtime = world.runtime("10.0.0.1")
        ...
    world.run(story())

A host's disk outlives its process: `world.kill` ends the process, `world.runtime` starts the next one on that disk.
"""

import asyncio
import random
import re
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

from p2ptrain.errors import StorageError
from p2ptrain.ids import digest
from p2ptrain.runtime import Runtime
from p2ptrain.sim import loop as virtual
from p2ptrain.sim.network import SimNetwork
from p2ptrain.sim.process import SimProcess

Result = TypeVar("Result")

WALL_START: Final = 1_700_000_000.0  # s since 1970 at virtual second 0
STORAGE_NAME: Final = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)*", re.ASCII)


class SimClock:
    """Virtual time; `wall_skew` is how far this machine's clock is wrong (s, may be changed during a run)."""

    def __init__(self, wall_skew: float = 0.0) -> None:
        self.wall_skew = wall_skew

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        return WALL_START + self.monotonic() + self.wall_skew


class SimEntropy:
    """Chance that follows from a seed."""

    def __init__(self, seed: bytes) -> None:
        self._random = random.Random(seed)

    def bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)

    @property
    def random(self) -> random.Random:
        return self._random


class SimDrive:
    """Calls `step` each time `step_seconds` of virtual time have passed."""

    def __init__(self, step: Callable[[], float], step_seconds: float) -> None:
        self._stopping = False
        self._task = asyncio.create_task(self._drive(step, step_seconds))

    def stop(self) -> None:
        self._stopping = True

    async def stopped(self) -> None:
        await asyncio.shield(self._task)

    def cancel(self) -> None:
        """End at once, as a killed process does."""
        self._task.cancel()

    async def _drive(self, step: Callable[[], float], step_seconds: float) -> None:
        while not self._stopping:
            await asyncio.sleep(step_seconds)
            if not self._stopping:
                await asyncio.sleep(step())


class SimCompute:
    """Runs work inline; a driven step costs `step_seconds` of virtual time."""

    def __init__(self, step_seconds: float = 1.0) -> None:
        self.step_seconds = step_seconds
        self._drives: list[SimDrive] = []

    async def run(self, function: Callable[..., Result], *args: Any) -> Result:
        await asyncio.sleep(0)  # others get a turn, as they do while a thread works
        return function(*args)

    def drive(self, step: Callable[[], float]) -> SimDrive:
        drive = SimDrive(step, self.step_seconds)
        self._drives.append(drive)
        return drive

    def post(self, function: Callable[..., None], *args: Any) -> None:
        with suppress(RuntimeError):  # outside a run there is no loop any more
            asyncio.get_running_loop().call_soon(function, *args)

    def kill(self) -> None:
        for drive in self._drives:
            drive.cancel()


class SimStorage:
    """Named blobs in a dict."""

    def __init__(self) -> None:
        self._blobs: dict[str, bytes] = {}

    def read(self, name: str) -> bytes | None:
        return self._blobs.get(_checked(name))

    def write(self, name: str, data: bytes | bytearray | memoryview) -> None:
        self._blobs[_checked(name)] = bytes(data)

    def delete(self, name: str) -> None:
        self._blobs.pop(_checked(name), None)

    def names(self) -> list[str]:
        return sorted(self._blobs)


class SimWorld:
    """One seed, one network, any number of hosts."""

    def __init__(self, *, seed: int, latency: float = 0.01) -> None:
        self.seed = seed
        self.network = SimNetwork(latency=latency)
        self._disks: dict[str, SimStorage] = {}
        self._computes: dict[str, SimCompute] = {}
        self._num_starts: dict[str, int] = {}
        self._processes: dict[str, SimProcess] = {}

    def runtime(self, host: str, *, wall_skew: float = 0.0, step_seconds: float = 1.0) -> Runtime:
        """Start a process on a host: new chance and ports, the disk that was there."""
        start = self._num_starts[host] = self._num_starts.get(host, 0) + 1
        self._processes[host] = SimProcess(host, start)
        compute = self._computes[host] = SimCompute(step_seconds)
        return Runtime(
            clock=SimClock(wall_skew),
            entropy=SimEntropy(digest("sim-entropy", f"{self.seed} {host} {start}".encode())),
            network=self.network.host(host),
            compute=compute,
            storage=self.disk(host),
        )

    def process(self, host: str) -> SimProcess:
        """Return the process that was started on a host last; the peer's tasks are to be begun in its context."""
        return self._processes[host]

    def disk(self, host: str) -> SimStorage:
        return self._disks.setdefault(host, SimStorage())

    def kill(self, host: str) -> None:
        """End the process on a host without a word: connections reset, learner gone, disk kept.

        Its tasks see a dead network; whoever started them cancels them.
        """
        self.network.kill(host)
        if host in self._processes:
            self._processes[host].end()
        if host in self._computes:
            self._computes[host].kill()

    def run(self, story: Coroutine[Any, Any, Result]) -> Result:
        """Run a story from virtual second 0."""
        return virtual.run(story)


def _checked(name: str) -> str:
    if not STORAGE_NAME.fullmatch(name) or ".." in name:
        raise StorageError(f"{name!r} is no name for a blob: words of letters, digits, '.', '_', '-', divided by '/'")
    return name
