"""Faults as data: what goes wrong in a simulated swarm, when, and to whom.

Each kind is a section of a scenario's [[faults]] (docs/scenarios.md has the table). Peers are named by their number, from
1 in the order in which they joined, or by what they are when it happens:

    any         somebody who is alive
    leader      the leader of a round that is open (it waits until there is one)
    member      somebody whom the leader of an open round has called
    newcomer    somebody who is on the way in (if nobody is, somebody begins to join)
    bootstrap   who hosts the run
    all         everybody who is alive

Choices follow from the swarm's seed. A fault that has `seconds` ends by itself.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import BeforeValidator, Field, model_validator

from p2ptrain.config import Section
from p2ptrain.errors import P2PTrainError
from p2ptrain.sim.swarm import SimSwarm

LEADER_PATIENCE: Final = 600.0  # virtual seconds for which a fault waits for an open round before it takes anybody
LOOK_INTERVAL: Final = 0.05  # virtual seconds between two looks for one
BYTES_PER_MBIT: Final = 125_000

Number = Annotated[int, Field(ge=1, le=100_000)]
Who = Literal["any", "leader", "member", "newcomer", "bootstrap", "all"]


def _one_or_many(value: Any) -> Any:
    """Return what a file says of peers, a single number as a list; ValueError when it is neither numbers nor a word."""
    numbers = [value] if isinstance(value, int) and not isinstance(value, bool) else value
    is_list = isinstance(numbers, list) and numbers and all(type(one) is int and one >= 1 for one in numbers)
    if is_list or (isinstance(numbers, str) and numbers in get_args(Who)):
        return numbers
    words = ", ".join(f'"{word}"' for word in get_args(Who))
    raise ValueError(f"peers are a list of numbers from 1, or one of {words}")


Peers = Annotated[list[Number] | Who, BeforeValidator(_one_or_many)]
Seconds = Annotated[float, Field(gt=0.0, le=1e7)]
After = Annotated[float, Field(ge=0.0, le=1e7)]


class FaultBase(Section):
    """What all faults have."""

    at: Annotated[float, Field(ge=0.0, le=1e7)] = 0.0
    """Virtual seconds since the swarm stood."""

    @property
    def lasts(self) -> float:
        """Seconds from its beginning until it is over, as far as can be said before."""
        return max((getattr(self, name, None) or 0.0) for name in ("seconds", "restart_after", "return_after"))

    def numbers(self) -> list[int]:
        """Return the numbers of all peers that it names."""
        peers = getattr(self, "peers", [])
        return peers if isinstance(peers, list) else []

    async def begin(self, swarm: SimSwarm) -> None:
        raise NotImplementedError


class OnPeers(FaultBase):
    """A fault of some peers."""

    peers: Peers = "any"
    count: Annotated[int, Field(ge=1, le=100_000)] = 1
    """How many, when they are not named by number."""

    async def begin(self, swarm: SimSwarm) -> None:
        for host in await resolve(self.peers, swarm, self.count):
            self.hit(swarm, host)

    def hit(self, swarm: SimSwarm, host: str) -> None:
        raise NotImplementedError


class OnPeersForAWhile(OnPeers):
    """A state of some peers that ends by itself after `seconds`; without it, it stays."""

    seconds: Seconds | None = None

    def hit(self, swarm: SimSwarm, host: str) -> None:
        _later(swarm, self.seconds, self.change(swarm, host))

    def change(self, swarm: SimSwarm, host: str) -> Callable[[], object]:
        """Change something; return what changes it back."""
        raise NotImplementedError


# Processes


class Kill(OnPeers):
    """A process ends without a word; connections are reset."""

    kind: Literal["kill"]
    restart_after: After | None = None
    """Seconds after which it is started again. None: it stays away."""

    def hit(self, swarm: SimSwarm, host: str) -> None:
        swarm.kill(host)
        _bring_back(swarm, host, self.restart_after)


class PowerCut(OnPeers):
    """Machines lose their power at once: nobody hears of it, and what is not yet on disk is lost."""

    kind: Literal["power-cut"]
    restart_after: After | None = None

    def hit(self, swarm: SimSwarm, host: str) -> None:
        swarm.kill(host, power_cut=True)
        _bring_back(swarm, host, self.restart_after)


class LoseUnsynced(OnPeers):
    """Disks begin to lie; `window` seconds later the machines lose their power, and what was written since then."""

    kind: Literal["lose-unsynced"]
    window: Seconds = 60.0
    restart_after: After | None = 5.0

    async def begin(self, swarm: SimSwarm) -> None:
        hosts = await resolve(self.peers, swarm, self.count)
        for host in hosts:
            swarm.disk(host).lies_for = 2 * self.window
        await asyncio.sleep(self.window)
        for host in hosts:
            swarm.kill(host, power_cut=True)
            swarm.disk(host).lies_for = 0.0
            _bring_back(swarm, host, self.restart_after)


class CrashAtMessage(FaultBase):
    """A process dies right before it sends, or handles, the n-th message of a kind."""

    kind: Literal["crash-at-message"]
    method: Annotated[str, Field(pattern=r"^[a-z-]+\.[a-z-]+$")]
    """As in "round.contribute"."""
    direction: Literal["send", "receive"] = "send"
    nth: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    peers: list[Number] | Literal["any"] = "any"
    """Whose messages count; any: everybody's."""
    restart_after: After | None = None

    async def begin(self, swarm: SimSwarm) -> None:
        left, whose = self.nth, None if self.peers == "any" else _hosts(self.peers, swarm)

        def watch(host: str, direction: str, method: str) -> None:
            nonlocal left
            if (direction, method) == (self.direction, self.method) and (whose is None or host in whose):
                left -= 1
                if left == 0:
                    swarm.hooks.remove(watch)
                    swarm.note("crashed-at-message", host, method=method, direction=direction)
                    swarm.kill(host)
                    _bring_back(swarm, host, self.restart_after)

        swarm.hooks.append(watch)


class Freeze(OnPeersForAWhile):
    """A process stops where it is, as a laptop that falls asleep; then it goes on."""

    kind: Literal["freeze"]

    def change(self, swarm: SimSwarm, host: str) -> Callable[[], object]:
        swarm.freeze(host)
        return lambda: swarm.thaw(host)


class Thaw(OnPeers):
    """A frozen process goes on."""

    kind: Literal["thaw"]

    def hit(self, swarm: SimSwarm, host: str) -> None:
        swarm.thaw(host)


class Leave(OnPeers):
    """A peer says goodbye."""

    kind: Literal["leave"]
    return_after: After | None = None

    def hit(self, swarm: SimSwarm, host: str) -> None:
        async def leave() -> None:
            await swarm.leave(host)
            if self.return_after is not None:
                await swarm.bring_back(host, after=self.return_after)

        swarm.spawn(leave())


class Join(FaultBase):
    """Newcomers join, all at once."""

    kind: Literal["join"]
    count: Annotated[int, Field(ge=1, le=10_000)] = 1
    train: bool = True
    hidden: bool = False
    """Whether nobody can dial them."""
    step_seconds: Seconds | None = None

    async def begin(self, swarm: SimSwarm) -> None:
        for _ in range(self.count):
            swarm.spawn(self.join(swarm))

    async def join(self, swarm: SimSwarm) -> None:
        """Let one of them join, however often it has to try."""
        name = swarm.new_host()
        if self.hidden:
            swarm.world.network.hide(name)
        try:
            await swarm.restart(name, train=self.train, step_seconds=self.step_seconds)
        except P2PTrainError:  # noted by the swarm
            await swarm.bring_back(name, after=5.0)


class Start(FaultBase):
    """Peers that are away are started again, as often as it takes."""

    kind: Literal["start"]
    peers: Annotated[list[Number], Field(min_length=1)]

    async def begin(self, swarm: SimSwarm) -> None:
        for host in _hosts(self.peers, swarm):
            _bring_back(swarm, host, 0.0)


# Machines


class SlowDown(OnPeersForAWhile):
    """A straggler: everything that it computes takes `factor` times longer."""

    kind: Literal["slow-down"]
    factor: Annotated[float, Field(gt=0.0, le=1e4)] = 10.0

    def change(self, swarm: SimSwarm, host: str) -> Callable[[], object]:
        compute = swarm.compute(host)
        compute.straggler *= self.factor
        return lambda: setattr(compute, "straggler", compute.straggler / self.factor)


class Hang(OnPeersForAWhile):
    """An accelerator hangs: no inner step ends, everything else goes on."""

    kind: Literal["hang"]

    def change(self, swarm: SimSwarm, host: str) -> Callable[[], object]:
        swarm.compute(host).hang()
        return swarm.compute(host).resume


class ClockSkew(OnPeersForAWhile):
    """A machine's clock is so many seconds wrong."""

    kind: Literal["clock-skew"]
    skew: Annotated[float, Field(ge=-1e9, le=1e9)]

    def change(self, swarm: SimSwarm, host: str) -> Callable[[], object]:
        clock = swarm.clock(host)
        before, clock.wall_skew = clock.wall_skew, self.skew
        return lambda: setattr(clock, "wall_skew", before)


class ClockStep(OnPeersForAWhile):
    """A machine's clock jumps by so many seconds."""

    kind: Literal["clock-step"]
    step: Annotated[float, Field(ge=-1e9, le=1e9)]

    def change(self, swarm: SimSwarm, host: str) -> Callable[[], object]:
        clock = swarm.clock(host)
        clock.wall_skew += self.step
        return lambda: setattr(clock, "wall_skew", clock.wall_skew - self.step)


class DiskFull(OnPeersForAWhile):
    """Every write fails."""

    kind: Literal["disk-full"]

    def change(self, swarm: SimSwarm, host: str) -> Callable[[], object]:
        disk = swarm.disk(host)
        disk.full = True
        return lambda: setattr(disk, "full", False)


class DiskSlow(OnPeersForAWhile):
    """Every write takes so many seconds, and it is written at this rate."""

    kind: Literal["disk-slow"]
    write_seconds: Annotated[float, Field(ge=0.0, le=3600.0)] = 2.0
    mbyte_per_second: Annotated[float, Field(gt=0.0, le=1e6)] | None = None

    def change(self, swarm: SimSwarm, host: str) -> Callable[[], object]:
        disk = swarm.disk(host)
        before = disk.write_seconds, disk.bytes_per_second
        disk.write_seconds = self.write_seconds
        disk.bytes_per_second = 1e6 * self.mbyte_per_second if self.mbyte_per_second else None

        def undo() -> None:
            disk.write_seconds, disk.bytes_per_second = before

        return undo


class DiskLies(OnPeersForAWhile):
    """A disk says at once that it has what it was told; a power cut undoes the last `window` seconds."""

    kind: Literal["disk-lies"]
    window: Seconds = 10.0

    def change(self, swarm: SimSwarm, host: str) -> Callable[[], object]:
        disk = swarm.disk(host)
        disk.lies_for = self.window
        return lambda: setattr(disk, "lies_for", 0.0)


# The network


class Partition(FaultBase):
    """Two sets of peers do not hear each other; one-way: nothing passes from left to right."""

    kind: Literal["partition"]
    left: Annotated[list[Number], Field(min_length=1)]
    right: list[Number] = []
    """None: everybody else."""
    one_way: bool = False
    seconds: Seconds | None = None

    @model_validator(mode="after")
    def _sides_differ(self) -> Self:
        both = sorted(set(self.left) & set(self.right))
        if both:
            raise ValueError(f"peer {both[0]} is on both sides")
        return self

    def numbers(self) -> list[int]:
        return [*self.left, *self.right]

    async def begin(self, swarm: SimSwarm) -> None:
        left, network = _hosts(self.left, swarm), swarm.world.network
        right = _hosts(self.right, swarm) or [host for host in swarm.host_names if host not in left]
        cut = network.partition(left, right, one_way=self.one_way)
        _later(swarm, self.seconds, lambda: network.heal(cut))


class Heal(FaultBase):
    """Every partition ends."""

    kind: Literal["heal"]

    async def begin(self, swarm: SimSwarm) -> None:
        swarm.world.network.heal()


class CutLink(OnPeersForAWhile):
    """A black hole: nothing reaches these peers, nothing comes from them, and nobody is told."""

    kind: Literal["cut-link"]

    def change(self, swarm: SimSwarm, host: str) -> Callable[[], object]:
        network = swarm.world.network
        cut = network.partition([host], [other for other in swarm.host_names if other != host])
        return lambda: network.heal(cut)


class ResetConnections(OnPeers):
    """The connections of a peer are reset, once or again and again."""

    kind: Literal["reset-connections"]
    seconds: Seconds | None = None
    every: Annotated[float, Field(ge=0.1, le=1e6)] = 1.0
    """Seconds between two resets, when it goes on for `seconds`."""

    def hit(self, swarm: SimSwarm, host: str) -> None:
        async def storm(seconds: float) -> None:
            until = asyncio.get_running_loop().time() + seconds
            while asyncio.get_running_loop().time() < until:
                await asyncio.sleep(self.every)
                swarm.world.network.reset(host)

        swarm.world.network.reset(host)
        if self.seconds is not None:
            swarm.spawn(storm(self.seconds))


class Bandwidth(OnPeersForAWhile):
    """The links of a peer are this fast. What is not given has no limit."""

    kind: Literal["bandwidth"]
    up_mbit: Annotated[float, Field(gt=0.0, le=1e6)] | None = None
    down_mbit: Annotated[float, Field(gt=0.0, le=1e6)] | None = None

    def change(self, swarm: SimSwarm, host: str) -> Callable[[], object]:
        network, site = swarm.world.network, swarm.world.network.site(host)
        before = site.up.bytes_per_second, site.down.bytes_per_second

        def limit(up: float | None, down: float | None) -> None:
            network.set_bandwidth(host, up, direction="up")
            network.set_bandwidth(host, down, direction="down")

        limit(
            None if self.up_mbit is None else BYTES_PER_MBIT * self.up_mbit,
            None if self.down_mbit is None else BYTES_PER_MBIT * self.down_mbit,
        )
        return lambda: limit(*before)


class Latency(OnPeersForAWhile):
    """Everything to and from a peer takes so much longer each way; with loss and jitter, if given."""

    kind: Literal["latency"]
    latency_ms: Annotated[float, Field(ge=0.0, le=60_000.0)]
    jitter_ms: Annotated[float, Field(ge=0.0, le=60_000.0)] = 0.0
    loss: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0

    def change(self, swarm: SimSwarm, host: str) -> Callable[[], object]:
        network, site = swarm.world.network, swarm.world.network.site(host)
        latency, jitter, loss = site.latency, site.jitter, site.loss
        network.set_access(host, latency=self.latency_ms / 1000, jitter=self.jitter_ms / 1000, loss=self.loss)
        return lambda: network.set_access(host, latency=latency, jitter=jitter, loss=loss)


class Hide(OnPeersForAWhile):
    """Nobody can dial a peer any more; it can still dial others."""

    kind: Literal["hide"]

    def change(self, swarm: SimSwarm, host: str) -> Callable[[], object]:
        network = swarm.world.network
        network.hide(host)
        return lambda: network.show(host)


Fault = Annotated[
    Kill | PowerCut | LoseUnsynced | CrashAtMessage | Freeze | Thaw | Leave | Join | Start | SlowDown | Hang | ClockSkew
    | ClockStep | DiskFull | DiskSlow | DiskLies | Partition | Heal | CutLink | ResetConnections | Bandwidth | Latency | Hide,
    Field(discriminator="kind"),
]  # fmt: skip

KINDS: Final[dict[str, type[FaultBase]]] = {
    get_args(one.model_fields["kind"].annotation)[0]: one for one in get_args(get_args(Fault)[0])
}


async def apply(fault: FaultBase, swarm: SimSwarm) -> None:
    """Let a fault begin now, whatever its `at` says; what ends it, or brings peers back, follows by itself."""
    fields = fault.model_dump(exclude={"at", "kind"}, exclude_none=True)
    swarm.note("fault", what=getattr(fault, "kind", ""), **fields)
    await fault.begin(swarm)


async def resolve(peers: Peers, swarm: SimSwarm, count: int = 1) -> list[str]:
    """Return the hosts that are meant, now."""
    if isinstance(peers, list):
        return _hosts(peers, swarm)
    if peers == "all":
        return list(swarm.peers)
    if peers == "bootstrap":
        return swarm.host_names[:1]
    if peers == "newcomer":
        return [await _newcomer(swarm)]
    if peers in ("leader", "member"):
        found = await _in_open_round(swarm, peers)
        if found:
            return _sample(found, swarm, count)
    return _sample(list(swarm.peers), swarm, count)


async def _in_open_round(swarm: SimSwarm, what: str) -> list[str]:
    async with asyncio.timeout(LEADER_PATIENCE) as patience:
        try:
            while True:
                rounds = swarm.open_rounds()
                members = [swarm.hosts[peer] for _, called in rounds for peer in called if peer in swarm.hosts]
                leaders = [host for host, _ in rounds]
                hosts = leaders if what == "leader" else [host for host in members if host not in leaders]
                found = [host for host in dict.fromkeys(hosts) if host in swarm.peers]
                if found:
                    return found
                await asyncio.sleep(LOOK_INTERVAL)
        except asyncio.CancelledError:
            if patience.expired():
                return []
            raise


async def _newcomer(swarm: SimSwarm) -> str:
    if not swarm.starting:
        swarm.spawn(Join(kind="join").join(swarm))
        while not swarm.starting:
            await asyncio.sleep(LOOK_INTERVAL)
        await asyncio.sleep(LOOK_INTERVAL * swarm.chance.randint(1, 20))  # somewhere between connecting and training
    return swarm.chance.choice(list(swarm.starting)) if swarm.starting else swarm.host_names[-1]


def _sample(hosts: Sequence[str], swarm: SimSwarm, count: int) -> list[str]:
    return swarm.chance.sample(list(hosts), min(count, len(hosts)))


def _hosts(numbers: Sequence[int], swarm: SimSwarm) -> list[str]:
    """Return hosts by their numbers; those of peers that have not joined yet are left out."""
    return [swarm.host_names[number - 1] for number in numbers if number <= len(swarm.host_names)]


def _later(swarm: SimSwarm, seconds: float | None, undo: Callable[[], object]) -> None:
    if seconds is not None:
        swarm.spawn(_wait_and(seconds, undo))


async def _wait_and(seconds: float, undo: Callable[[], object]) -> None:
    await asyncio.sleep(seconds)
    undo()


def _bring_back(swarm: SimSwarm, host: str, after: float | None) -> None:
    if after is not None:
        bringing: Coroutine[Any, Any, None] = swarm.bring_back(host, after=after)
        swarm.spawn(bringing)
