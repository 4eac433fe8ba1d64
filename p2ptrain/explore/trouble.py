"""The faults of the hunt as acts on a simulated swarm, each with its end: what was broken is whole again afterwards.

How long and how hard is drawn from the fault's own chance. Several may be under way at once; `heal_everything` ends
them all.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any, Final

from p2ptrain.errors import P2PTrainError
from p2ptrain.explore.lies import LIES, Liar
from p2ptrain.explore.plan import Kind
from p2ptrain.sim.swarm import SimSwarm

MAX_ALIVE: Final = 12  # peers; before one more joins, an old one goes for good
MAX_SKEW: Final = 55.0  # s that a clock is wrong: two of them differ by less than records may (records.MAX_CLOCK_SKEW)
SLOW_BYTES_PER_SECOND: Final = 40_000.0
STRAGGLER: Final = 10.0
RESTART_INTERVAL: Final = 3.0  # s between two attempts to bring a peer back


class Trouble:
    """Makes trouble for hosts of a swarm, and ends it."""

    def __init__(self, swarm: SimSwarm, *, bootstrap: str) -> None:
        self._swarm, self._bootstrap = swarm, bootstrap
        self._undo: dict[int, Callable[[], None]] = {}  # what ends the trouble that is under way, by number
        self._number = 0
        self._liars: dict[str, int] = {}
        self.down: set[str] = set()
        """Hosts whose process is dead, on its way out, or on its way back."""
        self.retired: set[str] = set()
        """Hosts that are not to come back."""
        self.observers: set[str] = set()
        """Hosts whose peer does not train."""
        self._wanted: dict[str, int] = {}  # how often somebody asked for a host's return

    # What can be done to somebody

    def begin(self, kind: Kind, victim: str, chance: random.Random) -> None:
        """Do it now, at this very instant; its end comes by itself."""
        {
            "kill": self._kill, "power-cut": self._cut_power, "freeze": self._freeze, "partition": self._partition,
            "one-way": self._cut_one_way, "reset": self._reset, "slow": self._slow_down, "clock-step": self._step_clock,
            "disk": self._spoil_disk, "leave": self._leave, "join": self._join, "lie": self._lie,
        }[kind](victim, chance)  # fmt: skip

    def _kill(self, victim: str, chance: random.Random) -> None:
        self._end_process(victim)
        self.spawn(self.bring_back(victim, after=chance.choice([0.3, 2.0, 8.0, 20.0])))

    def _cut_power(self, victim: str, chance: random.Random) -> None:
        """Several machines on one line: what was not yet on disk is lost."""
        others = [host for host in self._up() if host != victim]
        for host in [victim, *chance.sample(others, min(len(others), chance.randrange(3)))]:
            self._end_process(host, power_cut=True)
            self.spawn(self.bring_back(host, after=chance.uniform(2.0, 15.0)))

    def _freeze(self, victim: str, chance: random.Random) -> None:
        process = self._swarm.world.process(victim)
        process.freeze()
        self._later(chance.choice([1.0, 4.0, 12.0, 40.0]), process.thaw)

    def _partition(self, victim: str, chance: random.Random) -> None:
        others = [host for host in self._swarm.host_names if host != victim]
        with_it = chance.sample(others, chance.randrange(len(others)))
        self._cut([victim, *with_it], [host for host in others if host not in with_it], False, chance)

    def _cut_one_way(self, victim: str, chance: random.Random) -> None:
        others = [host for host in self._swarm.host_names if host != victim]
        left, right = ([victim], others) if chance.random() < 0.5 else (others, [victim])
        self._cut(left, right, True, chance)

    def _cut(self, left: list[str], right: list[str], one_way: bool, chance: random.Random) -> None:
        network = self._swarm.world.network
        cut = network.partition(left, right, one_way=one_way)
        self._later(chance.choice([3.0, 12.0, 35.0, 60.0]), lambda: network.heal(cut))

    def part(self, left: list[str], right: list[str]) -> Callable[[], None]:
        """Part two sets of hosts; return what joins them again."""
        network = self._swarm.world.network
        cut = network.partition(left, right)
        number = self._note(lambda: network.heal(cut))
        return lambda: self._end(number)

    def _reset(self, victim: str, chance: random.Random) -> None:
        self._swarm.world.network.reset(victim)

    def _slow_down(self, victim: str, chance: random.Random) -> None:
        """A straggler: its steps take ten times as long, or its line is taken by others."""
        seconds = chance.choice([20.0, 45.0])
        if chance.random() < 0.5:
            compute = self._swarm.compute(victim)
            compute.straggler *= STRAGGLER
            self._later(seconds, lambda: setattr(compute, "straggler", compute.straggler / STRAGGLER))
        else:
            network, site = self._swarm.world.network, self._swarm.world.network.site(victim)
            up, down = site.up.bytes_per_second, site.down.bytes_per_second
            network.set_bandwidth(victim, SLOW_BYTES_PER_SECOND)

            def usual() -> None:
                network.set_bandwidth(victim, up, direction="up")
                network.set_bandwidth(victim, down, direction="down")

            self._later(seconds, usual)

    def _step_clock(self, victim: str, chance: random.Random) -> None:
        clock = self._swarm.clock(victim)
        clock.wall_skew = chance.uniform(-MAX_SKEW, MAX_SKEW)
        if chance.random() < 0.5:
            self._later(chance.uniform(5.0, 40.0), lambda: setattr(clock, "wall_skew", 0.0))

    def _spoil_disk(self, victim: str, chance: random.Random) -> None:
        """Full, slow, or one that says that it has what it has not."""
        disk = self._swarm.disk(victim)
        name, spoilt, whole = chance.choice(
            [("full", True, False), ("loses_unsynced", True, False), ("write_seconds", 2.0, 0.0)]
        )
        setattr(disk, name, spoilt)
        self._later(chance.uniform(20.0, 60.0), lambda: setattr(disk, name, whole))

    def _leave(self, victim: str, chance: random.Random) -> None:
        self.down.add(victim)
        self.spawn(self._leave_and_return(victim, chance.choice([1.0, 10.0, 25.0])))

    def _join(self, victim: str, chance: random.Random) -> None:
        self.newcomer(chance, by=victim)

    def _lie(self, victim: str, chance: random.Random) -> None:
        peer = self._swarm.peers.get(victim)
        if peer is None or victim in self._liars:
            return
        liar = Liar(peer, self._swarm.identity(victim), self._swarm.config, chance)
        self._liars[victim] = self._later(chance.uniform(40.0, 80.0), lambda: self._end_lie(victim, liar))
        self._swarm.checkers.tell_lies(victim)
        liar.begin(chance.choice(LIES))

    def _end_lie(self, victim: str, liar: Liar) -> None:
        self._liars.pop(victim, None)
        liar.stop()

    # Coming and going

    def newcomer(self, chance: random.Random, *, by: str = "") -> str:
        """Let somebody new join; return its host. When there are many, an old one goes for good."""
        ups = [host for host in self._up() if host != self._bootstrap and host not in self.observers]
        if len(ups) >= MAX_ALIVE - 2:
            oldest = chance.choice(ups[: len(ups) // 2])
            self.retired.add(oldest)
            self.down.add(oldest)
            self.spawn(self._leave_and_return(oldest, None))
        host = self._swarm.new_host()
        self.down.add(host)
        self.spawn(self.bring_back(host, after=0.0))
        return host

    def restart_now(self, victim: str) -> None:
        """Kill a process and start it again at once."""
        self._end_process(victim)
        self.spawn(self.bring_back(victim, after=0.05))

    async def bring_back(self, host: str, *, after: float) -> None:
        """Start a host's peer again, as often as it takes; one attempt at a time, whoever asks for it."""
        self._wanted[host] = wanted = self._wanted.get(host, 0) + 1
        await asyncio.sleep(after)
        while host not in self.retired and self._wanted[host] == wanted:
            if host not in self._swarm.starting and (host in self._swarm.peers or await self._started(host)):
                if self._wanted[host] == wanted:
                    self.down.discard(host)
                return
            await asyncio.sleep(RESTART_INTERVAL)

    async def _started(self, host: str) -> bool:
        train = host not in self.observers
        try:
            if host == self._bootstrap and (not self._swarm.peers or self._wanted[host] % 2):
                await self._swarm.resume(host)
            else:
                await self._swarm.restart(host, train=train)
        except (P2PTrainError, asyncio.CancelledError):
            if _is_cancelled():
                raise
            return False
        return host in self._swarm.peers

    async def _leave_and_return(self, host: str, after: float | None) -> None:
        starting = self._swarm.starting.get(host)
        if starting is not None:  # its user has changed his mind
            starting.cancel()
            await asyncio.wait([starting])
            self._swarm.world.kill(host)
        try:
            await self._swarm.leave(host)
        except asyncio.CancelledError:
            if _is_cancelled():
                raise  # otherwise it was killed before it had left
        if after is not None:
            await self.bring_back(host, after=after)

    def leave_for_a_while(self, host: str, after: float) -> None:
        self.down.add(host)
        self.spawn(self._leave_and_return(host, after))

    def _end_process(self, host: str, *, power_cut: bool = False) -> None:
        self.down.add(host)
        self._liars.pop(host, None)
        self._swarm.kill(host, power_cut=power_cut)

    def _up(self) -> list[str]:
        return [host for host in self._swarm.peers if host not in self.down]

    # The end of it

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Do something as the world: trouble often begins in the middle of some peer's work."""
        self._swarm.spawn(coroutine)

    def _later(self, seconds: float, undo: Callable[[], None]) -> int:
        """Undo something after a while, or when everything is healed."""
        number = self._note(undo)
        self.spawn(self._undo_later(number, seconds))
        return number

    def _note(self, undo: Callable[[], None]) -> int:
        self._number += 1
        self._undo[self._number] = undo
        return self._number

    async def _undo_later(self, number: int, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._end(number)

    def _end(self, number: int) -> None:
        undo = self._undo.pop(number, None)
        if undo is not None:
            undo()

    async def heal_everything(self, within: float) -> list[str]:
        """End all trouble; return the hosts that did not come back in so many virtual seconds."""
        for number in list(self._undo):
            self._end(number)
        self._swarm.world.network.heal()
        for host in self._swarm.host_names:
            self._swarm.clock(host).wall_skew = 0.0
        try:
            async with asyncio.timeout(within):
                while self.missing():
                    await asyncio.sleep(0.5)
        except TimeoutError:
            return self.missing()
        return []

    def missing(self) -> list[str]:
        """Return the hosts that should be up and are not."""
        return [
            host
            for host in self._swarm.host_names
            if host not in self.retired and (host not in self._swarm.peers or host in self.down)
        ]


def _is_cancelled() -> bool:
    """Whether the present task itself was told to end, and not one that it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
