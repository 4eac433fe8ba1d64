"""The other ports of a simulated peer, and the world that hands them out.

    world = SimWorld(seed=7)
    async def story():
        runtime = world.runtime("10.0.0.1")
        ...
    world.run(story())

A machine (disk, clock, processors) outlives its process: `world.kill` ends the process, `world.runtime` starts the next
one there.
"""

import asyncio
import random
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from p2ptrain.ids import digest
from p2ptrain.runtime import Runtime
from p2ptrain.sim import loop as virtual
from p2ptrain.sim.compute import SimCompute
from p2ptrain.sim.network import SimNetwork
from p2ptrain.sim.process import SimProcess
from p2ptrain.sim.storage import MountedStorage, SimStorage

Result = TypeVar("Result")

WALL_START: Final = 1_700_000_000.0  # s since 1970 at virtual second 0


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


class SimWorld:
    """One seed, one network, any number of hosts."""

    def __init__(self, *, seed: int, latency: float = 0.01) -> None:
        self.seed = seed
        self.network = SimNetwork(latency=latency, seed=seed)
        self._disks: dict[str, SimStorage] = {}
        self._clocks: dict[str, SimClock] = {}
        self._computes: dict[str, SimCompute] = {}
        self._num_starts: dict[str, int] = {}
        self._processes: dict[str, SimProcess] = {}

    def runtime(self, host: str, *, wall_skew: float | None = None, step_seconds: float | None = None) -> Runtime:
        """Start a process on a host: new chance and connections, the machine that was there (changed as given)."""
        start = self._num_starts[host] = self._num_starts.get(host, 0) + 1
        process = self._processes[host] = SimProcess(host, start)
        clock, compute = self.clock(host), self.compute(host)
        clock.wall_skew = clock.wall_skew if wall_skew is None else wall_skew
        compute.step_seconds = compute.step_seconds if step_seconds is None else step_seconds
        return Runtime(
            clock=clock,
            entropy=SimEntropy(digest("sim-entropy", f"{self.seed} {host} {start}".encode())),
            network=self.network.host(host, process),
            compute=compute,
            storage=MountedStorage(self.disk(host), process),
        )

    def process(self, host: str) -> SimProcess:
        """Return the process that was started on a host last; the peer's tasks are to be begun in its context."""
        return self._processes[host]

    def disk(self, host: str) -> SimStorage:
        return self._disks.setdefault(host, SimStorage())

    def clock(self, host: str) -> SimClock:
        return self._clocks.setdefault(host, SimClock())

    def compute(self, host: str) -> SimCompute:
        """Return the processors of a host; what is set there stays when the process ends."""
        if host not in self._computes:
            chance = random.Random(digest("sim-compute", f"{self.seed} {host}".encode()))
            self._computes[host] = SimCompute(chance=chance, disk_seconds=self.disk(host).take_seconds)
        return self._computes[host]

    def kill(self, host: str, *, silent: bool = False) -> None:
        """End the process on a host without a word: connections reset (silent: not even that), learner gone, disk kept.

        Its tasks see a dead network; whoever started them cancels them.
        """
        self.network.kill(host, silent=silent)
        if host in self._processes:
            self._processes[host].end()
        if host in self._computes:
            self._computes[host].kill()

    def run(self, story: Coroutine[Any, Any, Result]) -> Result:
        """Run a story from virtual second 0."""
        return virtual.run(story)
