"""hivemind's averaging under churn and skewed clocks, in virtual time: how large are its groups, how long does a round take?

What runs is hivemind's own `Matchmaking` over its own `DHTNode` (1.1.12), each peer with a clock of its own. Around it
stands what hivemind's `Optimizer` and `DecentralizedAverager` do: peers train until the swarm as a whole has trained
long enough (an epoch), then each looks for a group, and the groups reduce. A step that found no group in time, or whose
all-reduce failed, has lost the work of its epoch; its peer goes on with the next.

    result = simulate_matchmaking(64, seed=7, hours=1.0)
    print(result.participation, [one.group_sizes for one in result.rounds])

Modelled, not run: the all-reduce. It takes `all_reduce_seconds` once every member of the group has entered it. Is a
member dead, or does it never come, then the others wait for `all_reduce_timeout` and fail. That is hivemind's behaviour
with time-outs set, at its best: really some of them would report success with half-averaged tensors.

Limits: one peer is always there and helps others into the DHT (it never averages). Peers die silently, as machines do
that lose their power. Bytes cost nothing, nobody is behind a NAT, handshakes take no time, and who comes back has the
state at once. Every peer notices the end of an epoch within half a second. A swarm of hundreds keeps one record of
them all under one key, which each reads anew: real time per round grows with the square of their number.

Importing this module imports hivemind, which takes seconds: import it where it is needed.
"""

import asyncio
import gc
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, AsyncIterator, Final  # noqa: UP035 - hivemind reads the annotation, and knows typing's only

from hivemind.averaging.group_info import GroupInfo
from hivemind.averaging.matchmaking import Matchmaking, MatchmakingException
from hivemind.dht.node import DHTNode
from hivemind.p2p import P2PContext, P2PDaemonError, P2PHandlerError, PeerID, ServicerBase
from hivemind.proto import averaging_pb2

from p2ptrain.discovery.kademlia import ports
from p2ptrain.ids import ED25519_PREFIX, digest
from p2ptrain.sim import loop as virtual
from p2ptrain.sim.p2pd import Daemon, Wire
from p2ptrain.sim.ports import WALL_START

Draw = Callable[[random.Random], float]
Plan = Sequence[Sequence[tuple[float, float]]]
"""Of each peer, when it is on: (from, until), in seconds and in order."""

TICK: Final = 0.5  # s between two looks at how much the swarm has trained: hivemind's min_refresh_period
WARM_UP: Final = 30.0  # s for the first peers to join the DHT, before time counts
JOIN_SECONDS: Final = 5.0  # after its start until a newcomer takes part
PREFIX: Final = "simulated"

# What hivemind's averager takes for a failure after which it tries again, until its time is over.
_RETRIED: Final = (
    AssertionError, StopAsyncIteration, asyncio.InvalidStateError, MatchmakingException, P2PHandlerError, P2PDaemonError,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Averaging:
    """How hivemind is set up. Times in seconds; the first four are its own parameters."""

    min_matchmaking_time: float = 5.0
    request_timeout: float = 3.0
    averaging_timeout: float = 60.0
    """How long a peer looks for a group."""
    all_reduce_timeout: float | None = 60.0
    """None is hivemind's default: for ever, so one death hangs the whole group."""
    target_group_size: int | None = None
    """A group begins when it is full, or when `min_matchmaking_time` is over; None: everybody is welcome."""
    all_reduce_seconds: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AveragingRound:
    """What became of one epoch's end."""

    began_at: float
    """True time (s) at which the swarm had trained enough."""
    num_alive: int
    num_present: int
    """Of those alive, who was free to look for a group; the others still waited in the round before."""
    group_sizes: tuple[int, ...]
    """Of all groups that were found, largest first, dead members included."""
    num_merged: int
    """Peers whose all-reduce succeeded."""
    num_failed: int
    """Peers whose all-reduce failed by time-out."""
    num_alone: int
    """Peers that found no group in time."""
    num_died: int
    """Peers that died in the round, or were still hung at the end of the simulation."""
    seconds: float
    """Until the last of its peers was through, whatever it came to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchmakingResult:
    """What a swarm came to."""

    rounds: tuple[AveragingRound, ...]
    trained_seconds: float
    """Peer-seconds of training."""
    merged_seconds: float
    """Those of them that a successful all-reduce covered."""
    on_seconds: float
    """Peer-seconds that peers were on."""
    possible_seconds: float
    """Peer-seconds if everybody had always been on."""
    num_messages: int

    @property
    def goodput(self) -> float:
        """Merged training by what always-on peers would have trained, from 0 to 1."""
        return self.merged_seconds / self.possible_seconds

    @property
    def goodput_while_on(self) -> float:
        """Merged training by the time that peers were on."""
        return self.merged_seconds / self.on_seconds if self.on_seconds else 0.0

    @property
    def participation(self) -> float:
        """Mean over rounds of the share of the peers alive at its beginning that merged."""
        shares = [one.num_merged / one.num_alive for one in self.rounds if one.num_alive]
        return fmean(shares) if shares else 0.0

    @property
    def largest_group_share(self) -> float:
        """Mean over rounds of the largest group by the peers that looked for one: less than 1 is a split swarm."""
        shares = [max(one.group_sizes, default=0) / one.num_present for one in self.rounds if one.num_present]
        return fmean(shares) if shares else 0.0


def simulate_matchmaking(
    num_peers: int,
    *,
    seed: int,
    hours: float,
    interval: float = 300.0,
    sessions: tuple[Draw, Draw] | None = None,
    plan: Plan | None = None,
    latency: tuple[float, float] = (0.02, 0.15),
    skew: float = 0.0,
    **averaging: Any,
) -> MatchmakingResult:
    """Let peers train and average for some virtual hours; all that happens follows from the seed.

    `interval`: seconds of training of a full swarm between two rounds. `plan` says when each peer is on; or `sessions`
    are two functions that draw how long a peer is on, and how long off (s); or all are always on. `latency`: one way
    between two peers (s, from and to). `skew`: between the fastest and the slowest clock (s). Further arguments are
    fields of `Averaging`.
    """
    if num_peers < 1 or hours <= 0.0 or interval <= 0.0:
        raise ValueError("there is at least one peer, and time passes")
    swarm = _Swarm(num_peers, seed, 3600.0 * hours, interval, latency, skew, Averaging(**averaging))
    if plan is None:
        plan = [swarm.plan(number, sessions) for number in range(num_peers)]
    with _rare_collections():
        return virtual.run(swarm.run(plan))


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Look for garbage seldom: there is little, and torch's objects are many."""
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


class _Step:
    """What `Matchmaking` asks of hivemind's `StepControl`, without shared memory."""

    def __init__(self, wall: Callable[[], float], averaging: Averaging) -> None:
        self._wall, now = wall, wall()
        self.scheduled_time = now + averaging.min_matchmaking_time
        self.deadline = now + averaging.averaging_timeout
        self.data_for_gather = b""

    def get_timeout(self) -> float:
        return max(0.0, self.deadline - self._wall())


class _Dht:
    """What `Matchmaking` asks of `hivemind.DHT`, without a process of its own."""

    def __init__(self, node: DHTNode) -> None:
        self._node, self.peer_id = node, node.peer_id

    async def get(self, key: str, *, latest: bool, return_future: bool) -> Any:
        return await self._node.get(key, latest=latest)

    async def store(self, key: str, value: Any, expiration_time: float, subkey: bytes, return_future: bool) -> bool:
        return bool(await self._node.store(key, value, expiration_time, subkey=subkey))


class _Servicer(ServicerBase):  # type: ignore[misc]
    """Where calls to a peer's `Matchmaking` arrive."""

    def __init__(self, matchmaking: Matchmaking) -> None:
        self._matchmaking = matchmaking

    def rpc_join_group(
        self, request: averaging_pb2.JoinRequest, context: P2PContext
    ) -> AsyncIterator[averaging_pb2.MessageFromLeader]:
        answers: AsyncIterator[averaging_pb2.MessageFromLeader] = self._matchmaking.rpc_join_group(request, context)
        return answers


class _AllReduce:
    """One group's all-reduce: done some time after the last member has entered, unless one dies before."""

    def __init__(self, members: int, seconds: float) -> None:
        self._num_missing, self._seconds = members, seconds
        self.is_broken = False
        self.done = asyncio.Event()

    def enter(self) -> None:
        self._num_missing -= 1
        if not self._num_missing:
            asyncio.get_running_loop().call_later(self._seconds, self._end)

    def _end(self) -> None:
        if not self.is_broken:
            self.done.set()


@dataclass(eq=False)
class _Epoch:
    """A round that is under way."""

    began_at: float
    num_alive: int
    num_present: int = 0
    num_open: int = 0
    outcomes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("merged", "failed", "alone", "died"), 0))
    groups: dict[bytes, int] = field(default_factory=dict)  # id -> size
    ended_at: float = 0.0

    def report(self) -> AveragingRound:
        return AveragingRound(
            began_at=self.began_at - WARM_UP, num_alive=self.num_alive, num_present=self.num_present,
            group_sizes=tuple(sorted(self.groups.values(), reverse=True)), seconds=self.ended_at - self.began_at,
            num_merged=self.outcomes["merged"], num_failed=self.outcomes["failed"], num_alone=self.outcomes["alone"],
            num_died=self.outcomes["died"],
        )  # fmt: skip


class _Peer:
    """One process of one volunteer: a DHT node, and a place in the averaging."""

    def __init__(self, swarm: "_Swarm", number: int) -> None:
        time, now_at_start = asyncio.get_running_loop().time, WALL_START + swarm.skew_of(number)
        self.wall = lambda: now_at_start + time()
        self.surroundings = ports.Surroundings(self.wall, swarm.chance(f"peer {number} {swarm.num_processes}"))
        swarm.num_processes += 1
        public_key = digest("sim-hivemind-peer", f"{swarm.seed} {number}".encode())
        self.daemon = Daemon(swarm.wire, PeerID(ED25519_PREFIX + public_key), self.surroundings)
        self.matchmaking: Matchmaking | None = None
        self.all_reduce: _AllReduce | None = None
        self.unmerged_seconds = 0.0
        """Of training that no all-reduce covers yet."""
        self.trains_since: float | None = None
        self.life: asyncio.Task[None] | None = None

    async def join(self, helper: "PeerID | None", averaging: Averaging | None) -> None:
        """Become a node of the DHT, and averaging's peer if that is wanted."""
        with self.surroundings.entered():
            node = await DHTNode.create(
                p2p=self.daemon,
                initial_peers=[f"/ip4/10.0.0.1/tcp/1/p2p/{helper}"] if helper is not None else None,
                ensure_bootstrap_success=False,  # or whoever's clock is 3 s off could not take part at all
            )
            if averaging is None:
                return
            self.matchmaking = Matchmaking(
                self.daemon, b"schema", _Dht(node), servicer_type=_Servicer, prefix=PREFIX, client_mode=False,
                target_group_size=averaging.target_group_size, min_group_size=2,
                min_matchmaking_time=averaging.min_matchmaking_time, request_timeout=averaging.request_timeout,
            )  # fmt: skip
            await _Servicer(self.matchmaking).add_p2p_handlers(self.daemon, namespace=PREFIX)

    async def find_group(self, averaging: Averaging) -> GroupInfo | None:
        """Look for a group as hivemind's averager does; None when there is none in time."""
        assert self.matchmaking is not None
        with self.surroundings.entered():
            step = _Step(self.wall, averaging)
            while True:
                try:
                    group: GroupInfo | None = await self.matchmaking.look_for_group(step)
                    return group
                except _RETRIED:
                    if not step.get_timeout():
                        return None

    async def die(self) -> None:
        """End without a word."""
        self.daemon.vanish()
        if self.all_reduce is not None:
            self.all_reduce.is_broken = True
        if self.life is not None:
            self.life.cancel()
        await self.surroundings.close()
        if self.life is not None:
            await asyncio.wait([self.life])


class _Swarm:
    """Everybody, the epochs, and what is counted."""

    def __init__(
        self, num_peers: int, seed: int, seconds: float, interval: float, latency: tuple[float, float], skew: float,
        averaging: Averaging,
    ) -> None:  # fmt: skip
        self.seed, self.averaging = seed, averaging
        self.wire = Wire(latency, self.chance("wire"))
        self._num_peers, self._seconds, self._interval, self._skew = num_peers, seconds, interval, skew
        order = list(range(num_peers))
        self.chance("skew").shuffle(order)
        self._place = {number: place for place, number in enumerate(order)}  # in the order of the clocks
        self._alive: dict[_Peer, None] = {}
        self._reductions: dict[bytes, _AllReduce] = {}
        self._epochs: list[_Epoch] = []
        self.num_processes = 0
        self._next_epoch = asyncio.Event()
        self._is_over = False
        self._trained = self._merged = self._on = 0.0

    def chance(self, what: str) -> random.Random:
        return random.Random(digest("sim-hivemind", f"{self.seed} {what}".encode()))

    def skew_of(self, number: int) -> float:
        """Return how far a peer's clock is wrong (s): they are evenly spread."""
        if number >= self._num_peers or self._num_peers == 1:
            return 0.0
        return self._skew * (self._place[number] / (self._num_peers - 1) - 0.5)

    def plan(self, number: int, sessions: tuple[Draw, Draw] | None) -> list[tuple[float, float]]:
        """Return when a peer is on; with sessions it begins somewhere in one of its cycles."""
        if sessions is None:
            return [(0.0, self._seconds)]
        draw_on, draw_off = sessions
        chance = self.chance(f"sessions {number}")
        on, off = draw_on(chance), draw_off(chance)
        at = -chance.random() * (on + off)
        plan: list[tuple[float, float]] = []
        while at < self._seconds:
            if at + on > 0.0:
                plan.append((max(0.0, at), at + on))
            at += on + off
            on, off = draw_on(chance), draw_off(chance)
        return plan

    async def run(self, plan: Plan) -> MatchmakingResult:
        helper = _Peer(self, self._num_peers)
        await helper.join(None, None)
        volunteers = [
            asyncio.create_task(self._volunteer(number, sessions, helper)) for number, sessions in enumerate(plan)
        ]
        counting = asyncio.create_task(self._count_epochs())
        await asyncio.sleep(WARM_UP + self._seconds)
        counting.cancel()
        await self._average_once_more()
        for task in (counting, *volunteers):
            task.cancel()
        await asyncio.gather(counting, *volunteers, return_exceptions=True)
        await helper.die()
        for task in (counting, *volunteers):
            if not task.cancelled() and task.exception() is not None:
                raise task.exception() or AssertionError
        return MatchmakingResult(
            rounds=tuple(epoch.report() for epoch in self._epochs), trained_seconds=self._trained,
            merged_seconds=self._merged, on_seconds=self._on, possible_seconds=self._seconds * self._num_peers,
            num_messages=self.wire.num_messages,
        )  # fmt: skip

    async def _average_once_more(self) -> None:
        """Let those that are on at the end merge what is pending, as far as that goes."""
        self._is_over = True
        self._begin_epoch()
        averaging = self.averaging
        patience = averaging.averaging_timeout + (averaging.all_reduce_timeout or averaging.all_reduce_seconds) + TICK
        await asyncio.sleep(patience)

    async def _volunteer(self, number: int, sessions: Sequence[tuple[float, float]], helper: _Peer) -> None:
        """Be on when the plan says so."""
        loop, chance = asyncio.get_running_loop(), self.chance(f"volunteer {number}")
        for since, until in sessions:
            arrives_at = since + WARM_UP if since else WARM_UP / 2 * chance.random()
            await asyncio.sleep(arrives_at - loop.time())
            peer = _Peer(self, number)
            try:
                await peer.join(helper.daemon.peer_id, self.averaging)
                begins_at = max(WARM_UP, arrives_at + JOIN_SECONDS)
                await asyncio.sleep(begins_at - loop.time())
                peer.life = asyncio.create_task(self._live(peer, chance))
                if until >= self._seconds:
                    await asyncio.Event().wait()
                await asyncio.sleep(until + WARM_UP - loop.time())
            finally:
                self._on += max(0.0, min(until, self._seconds) + WARM_UP - max(WARM_UP, arrives_at))
                await peer.die()
            if peer.life.cancelled() is False and peer.life.exception() is not None:
                raise peer.life.exception() or AssertionError

    async def _live(self, peer: _Peer, chance: random.Random) -> None:
        """Train, and average whenever the swarm has trained enough."""
        self._alive[peer] = None
        try:
            while not self._is_over:
                peer.trains_since = asyncio.get_running_loop().time()
                await self._next_epoch.wait()
                await asyncio.sleep(TICK * chance.random())
                self._pause(peer)
                await self._average(peer, self._epochs[-1])
            await asyncio.Event().wait()
        finally:
            self._pause(peer)
            del self._alive[peer]

    def _pause(self, peer: _Peer) -> None:
        if peer.trains_since is not None:
            seconds = min(asyncio.get_running_loop().time(), WARM_UP + self._seconds) - peer.trains_since
            self._trained += seconds
            peer.unmerged_seconds += seconds
            peer.trains_since = None

    async def _average(self, peer: _Peer, epoch: _Epoch) -> None:
        """Take part in a round; whatever it comes to, the work of this epoch is merged or lost."""
        epoch.num_present += 1
        outcome = "died"
        try:
            group = await peer.find_group(self.averaging)
            outcome = await self._reduce(peer, group, epoch) if group is not None else "alone"
        finally:
            epoch.outcomes[outcome] += 1
            epoch.ended_at = asyncio.get_running_loop().time()
        if outcome == "merged":
            self._merged += peer.unmerged_seconds
        peer.unmerged_seconds = 0.0

    async def _reduce(self, peer: _Peer, group: GroupInfo, epoch: _Epoch) -> str:
        epoch.groups[group.group_id] = group.group_size
        if group.group_id not in self._reductions:
            self._reductions[group.group_id] = _AllReduce(group.group_size, self.averaging.all_reduce_seconds)
        reduction = self._reductions[group.group_id]
        peer.all_reduce = reduction
        reduction.enter()
        try:
            async with asyncio.timeout(self.averaging.all_reduce_timeout):
                await reduction.done.wait()
        except TimeoutError:
            reduction.is_broken = True  # for those as well that enter later
            return "failed"
        finally:
            peer.all_reduce = None
        return "merged"

    async def _count_epochs(self) -> None:
        """End an epoch when all together have trained as long as a full swarm does in an interval."""
        await asyncio.sleep(WARM_UP - asyncio.get_running_loop().time())
        trained = 0.0
        while True:
            await asyncio.sleep(TICK)
            trained += TICK * sum(peer.trains_since is not None for peer in self._alive)
            if self._alive and trained >= self._interval * len(self._alive):
                trained = 0.0
                self._begin_epoch()

    def _begin_epoch(self) -> None:
        self._epochs.append(_Epoch(asyncio.get_running_loop().time(), len(self._alive)))
        self._next_epoch.set()
        self._next_epoch.clear()
