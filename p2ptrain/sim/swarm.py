"""A swarm in virtual time: the very same peers, in one process, on simulated hosts.

    swarm = SimSwarm(config, seed=7)

    async def story() -> None:
        await swarm.host()
        await swarm.join()
        await swarm.commits(3)

    swarm.run(story())

Peers are named by their host, an IP address; peer number n is `host_names[n - 1]`. Every peer is watched by the
checkers. A machine (disk, clock, processors, identity) outlives the process on it: `restart` goes on from there.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable
from contextvars import Context
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from p2ptrain.config import RunConfig
from p2ptrain.errors import NetworkError, P2PTrainError, UnreachableError
from p2ptrain.events import Event, Events
from p2ptrain.ids import PeerId, digest
from p2ptrain.link import JoinLink
from p2ptrain.net.identity import Identity
from p2ptrain.peer import Peer, PeerOptions
from p2ptrain.runtime import Address, Runtime
from p2ptrain.sim.checkers import Checkers
from p2ptrain.sim.compute import SimCompute
from p2ptrain.sim.history import History
from p2ptrain.sim.learners import SharedTraining
from p2ptrain.sim.memo import Memo
from p2ptrain.sim.ports import WALL_START, SimClock, SimWorld
from p2ptrain.sim.storage import SimStorage

if TYPE_CHECKING:
    from p2ptrain.sim.profiles import HostProfile, NetworkProfile

Result = TypeVar("Result")

STEP_SECONDS = 0.1  # of virtual time per inner step, unless a story says otherwise
SETTLE_TIMEOUT = 120.0  # virtual seconds after which a swarm that has not come to one head never will
BOOTSTRAP_PORT = 4001  # of the peer that hosts the run: it comes back where others look for it
RETRY_SECONDS = 10.0  # after a start that failed, for who is to come back

Hook = Callable[[str, str, str], None]


class SimSwarm:
    """Peers on the hosts of one simulated network."""

    def __init__(
        self,
        config: RunConfig,
        *,
        seed: int,
        latency: float = 0.02,
        network: "NetworkProfile | None" = None,
        use_directory: bool = False,
        step_seconds: float = STEP_SECONDS,
    ) -> None:
        """`latency`: one way between any two hosts (s), when no profile gives each its own place and access.

        `step_seconds`: of an inner step on a reference device. `use_directory`: whether peers take part in the DHT.
        """
        self.config, self.seed = config, seed
        self.step_seconds, self.use_directory = step_seconds, use_directory
        self.world = SimWorld(seed=seed, latency=latency if network is None else 0.0)
        self.checkers = Checkers(self.world)
        self.memo = Memo()
        """What peers work out from the same bytes is worked out once."""
        self.chance = random.Random(digest("sim-swarm", str(seed).encode()))
        """For choices of a story, such as whom a fault hits."""
        self.host_names: list[str] = []
        """In the order in which they were first wanted."""
        self.peers: dict[str, Peer] = {}  # alive, by host
        self.starting: dict[str, asyncio.Task[Peer]] = {}  # by host: those that are on their way in
        self.leaving: dict[str, Peer] = {}  # by host: those that are saying goodbye
        self.hosts: dict[PeerId, str] = {}
        self.events: list[tuple[str, Event]] = []  # host ("" for the story's own) and event, in order
        self.history = History(self._live_peers)
        self.on_message: Hook = lambda host, direction, method: None
        """Told of every request that a peer sends or handles, before it does."""
        self.on_call: Callable[[str, str, str, PeerId], None] = lambda host, direction, method, other: None
        """Told of the same, and who is at the other end."""
        self.on_event: Callable[[str, Event], None] = lambda host, event: None
        """Told of every event of every peer, when it happens."""
        self.on_life: Callable[[str, str], None] = lambda host, what: None
        """Told of every process that "began", was "killed" or "left"."""
        self.keeps_event: Callable[[Event], bool] = lambda event: True
        """Which events stay in `events`: of a large swarm not all can."""
        self.make_options: Callable[..., PeerOptions] = partial(PeerOptions, make_training=SharedTraining())
        """Makes the options of each peer; those of a test may bring a task or a merge rule of their own."""
        self.hooks: list[Hook] = []
        """Told the same as `on_message`, for as long as they are here: faults wait for messages so."""
        self.network = network
        """Where machines that are made from now on stand, and what they are; None: on a plain network."""
        self._identities: dict[str, Identity] = {}
        self._is_trainer: dict[str, bool] = {}
        self.first_trained_at: float | None = None
        """Virtual second at which anybody was the first to have made an inner step."""
        self._trains_since: dict[str, float] = {}
        self._tokens_per_step = 0.0  # as learners say: it is the task's own
        self._open_rounds: dict[tuple[str, int], list[PeerId]] = {}  # by leader's host and fragment: who was called
        self._link: JoinLink | None = None
        self._tasks: list[asyncio.Task[Any]] = []
        self._cleanups: list[asyncio.Task[None]] = []

    def run(self, story: Coroutine[Any, Any, Result]) -> Result:
        """Run a story on the virtual loop, then stop every peer; the checkers' complaints end it."""

        async def whole() -> Result:
            telling = asyncio.create_task(story)

            def end() -> None:
                telling.cancel()

            self.checkers.on_violation = end
            try:
                return await telling
            finally:
                await self.close()

        try:
            return self.world.run(whole())
        finally:
            self.raise_failures()

    async def close(self) -> None:
        """End whatever the story began, and kill every peer."""
        for task in self._tasks:
            task.cancel()
        for host in [*self.peers, *self.starting, *self.leaving]:
            self.kill(host)
        await asyncio.gather(*self._tasks, *self._cleanups, return_exceptions=True)

    def raise_failures(self) -> None:
        """Raise what a task of any peer died of: a checker's complaint, or a bug."""
        if self.checkers.violation is not None:
            raise self.checkers.violation
        failures = [(host, event) for host, event in self.events if event.kind == "task-failed"]
        assert not failures, "\n".join(f"{host} at {event.elapsed:.3f} s: {event.fields}" for host, event in failures)

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Do something besides the story, as the world and not as a peer; it is cancelled at the story's end."""
        self._tasks = [task for task in self._tasks if not task.done()]
        task = asyncio.create_task(coroutine, context=Context())
        self._tasks.append(task)
        task.add_done_callback(self._background_failed)
        return task

    def _background_failed(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.note("task-failed", task="of the story", error=f"{type(error).__name__}: {error}")

    def note(self, kind: str, host: str = "", **fields: Any) -> None:
        """Add an event of the story's own to those of the peers: a fault, a start that failed."""
        now = asyncio.get_running_loop().time()
        self._hear(host, Event(kind, WALL_START + now, now, fields))

    # Peers come and go

    async def host(self, *, train: bool = True, step_seconds: float | None = None) -> str:
        """Start the first peer, which makes the run; return its host."""
        name = self.new_host(dialable=True)
        return await self._begin_hosting(name, step_seconds, train=train)

    async def resume(self, name: str) -> str:
        """Let a killed peer host the run again that it hosted before."""
        return await self._begin_hosting(name, None, train=self._is_trainer.get(name, True))

    async def join(
        self,
        *,
        train: bool = True,
        step_seconds: float | None = None,
        hidden: bool = False,
        wall_skew: float | None = None,
    ) -> str:
        """Start one more peer, which joins by the link of a live one; return its host. Nobody can dial a `hidden` one."""
        name = self.new_host()
        if hidden:
            self.world.network.hide(name)
        return await self.restart(name, train=train, step_seconds=step_seconds, wall_skew=wall_skew)

    async def start_with_link(self, link: JoinLink) -> str:
        """Start one more peer with this very link."""
        return await self._begin_joining(self.new_host(), link)

    async def restart(
        self,
        name: str,
        *,
        train: bool | None = None,
        step_seconds: float | None = None,
        wall_skew: float | None = None,
    ) -> str:
        """Start the peer of a machine (again), with its identity, on its disk; what is not given stays as it was."""
        link = self.join_link()
        return await self._begin_joining(name, link, train=train, step_seconds=step_seconds, wall_skew=wall_skew)

    async def start_again(self, name: str) -> str:
        """Restart a peer; who hosted the run resumes it when nobody is left."""
        if not self.peers and name == self.host_names[0]:
            return await self.resume(name)
        return await self.restart(name)

    async def bring_back(self, name: str, *, after: float = 0.0) -> None:
        """Start a peer again, as often as it takes; what stands in the way becomes an event."""
        await asyncio.sleep(after)
        while name not in self.peers and name not in self.starting:
            try:
                await self.start_again(name)
            except P2PTrainError:
                await asyncio.sleep(RETRY_SECONDS)

    def join_link(self) -> JoinLink:
        """Return the link of a live peer, or else of the one that lived last; UnreachableError when nobody ever did."""
        awake = [peer for host, peer in self.peers.items() if not self.world.process(host).frozen]
        if awake or self.peers:
            candidates = awake or list(self.peers.values())
            sharer = next((one for one in candidates if one.members.own_record.reachable), candidates[0])
            self._link = sharer.join_link()  # who shares a link knows whether others can use it
        if self._link is None:
            raise UnreachableError("nobody is alive whose link could be used")
        return self._link

    def copy_identity(self, name: str, source: str) -> None:
        """Put the identity of one machine on another one, as somebody does who copies a folder."""
        self._identities[name] = self._identities[source]

    def new_host(self, *, dialable: bool = False) -> str:
        """Make a machine on which no peer has started yet; return its name. `dialable`: by everybody."""
        number = len(self.host_names) + 1
        chance = random.Random(digest("sim-machine", f"{self.seed} {number}".encode()))
        if self.network is None:
            name = f"10.0.{number // 250}.{number % 250 + 1}"
        else:
            profile = self.network.draw_host(chance)
            name = self.world.network.allocate(_dialable(profile) if dialable else profile)
            self.world.compute(name).device = self.network.draw_device(chance)
        self.world.compute(name).step_seconds = self.step_seconds
        self.host_names.append(name)
        return name

    async def _begin_hosting(self, name: str, step_seconds: float | None, *, train: bool) -> str:
        runtime, identity, events = self._process(name, step_seconds)
        self._is_trainer[name] = train

        async def beginning() -> Peer:
            peer = await Peer.hosting(runtime, identity, self.config, self._options(name), events)
            return await self._started(name, peer)

        return await self._begin(name, beginning())

    async def _begin_joining(
        self,
        name: str,
        link: JoinLink,
        *,
        train: bool | None = None,
        step_seconds: float | None = None,
        wall_skew: float | None = None,
    ) -> str:
        runtime, identity, events = self._process(name, step_seconds, wall_skew)
        self._is_trainer[name] = self._is_trainer.get(name, True) if train is None else train
        peer = Peer.joining(runtime, identity, link, self._options(name), events)
        return await self._begin(name, self._started(name, peer))

    def _options(self, name: str) -> PeerOptions:
        return self.make_options(
            listen=Address(name, BOOTSTRAP_PORT if name == self.host_names[0] else 0),
            train=self._is_trainer[name],
            use_directory=self.use_directory,
            pure=self.memo.pure,
        )

    def _process(
        self, name: str, step_seconds: float | None, wall_skew: float | None = None
    ) -> tuple[Runtime, Identity, Events]:
        runtime = self.world.runtime(name, step_seconds=step_seconds, wall_skew=wall_skew)
        identity = self._identities.setdefault(name, Identity.generate(runtime.entropy))
        events = Events(runtime.clock)
        events.subscribe(lambda event: self._hear(name, event))
        self.on_life(name, "began")
        return runtime, identity, events

    async def _begin(self, name: str, beginning: Coroutine[Any, Any, Peer]) -> str:
        """Start a process; a P2PTrainError of it becomes an event, too. NetworkError when it is killed meanwhile."""
        process = self.world.process(name)
        task = self.starting[name] = asyncio.create_task(beginning, context=process.context)
        try:
            peer = await task
        except asyncio.CancelledError:
            waiting = asyncio.current_task()
            if process.alive or (waiting is not None and waiting.cancelling()):
                raise  # whoever waits for it was cancelled
            raise NetworkError("its process was killed while it started") from None
        except P2PTrainError as error:
            if process.alive:
                self.world.kill(name)
            self.note("start-failed", name, reason=str(error))
            raise
        finally:
            if self.starting.get(name) is task:
                del self.starting[name]
        if not process.alive:
            await peer.abandon()
            raise NetworkError("its process was killed while it started")
        self.peers[name] = peer
        self.history.began(peer.peer_id, self._steps_per_second(name) if peer.learner is not None else 0.0)
        self.checkers.watch(peer, name)
        return name

    async def _started(self, name: str, peer: Peer) -> Peer:
        self.hosts[peer.peer_id] = name
        peer.transport.on_message(lambda direction, method, other: self._pass_on(name, direction, method, other))
        await peer.start()
        return peer

    def kill(self, name: str, *, power_cut: bool = False) -> None:
        """End a peer's process without a word. A power cut: nobody is told, and what was not synced to disk is lost."""
        if name in self.peers or name in self.starting or name in self.leaving:
            self.on_life(name, "killed")
        self.world.kill(name, silent=power_cut)
        if power_cut:
            lost = self.world.disk(name).cut_power()
            if lost:
                self.note("writes-lost", name, blobs=lost)
        if name in self.starting:
            self.starting[name].cancel()
        peer = self._forget(name) or self.leaving.pop(name, None)
        if peer is not None:
            self._cleanups = [task for task in self._cleanups if not task.done()]
            self._cleanups.append(asyncio.create_task(peer.abandon(), context=Context()))

    async def leave(self, name: str) -> None:
        """Let a peer say goodbye, save and end."""
        peer = self._forget(name)
        if peer is None:
            return
        self.leaving[name] = peer
        process = self.world.process(name)
        try:
            await asyncio.create_task(peer.leave(), context=process.context)
        finally:
            if self.leaving.get(name) is peer:
                del self.leaving[name]
                self.world.kill(name)
            self.on_life(name, "left")

    def _forget(self, name: str) -> Peer | None:
        if name in self.peers and len(self.peers) == 1:
            self._link = self.peers[name].join_link()
        peer = self.peers.pop(name, None)
        self._trains_since.pop(name, None)
        self._open_rounds = {key: members for key, members in self._open_rounds.items() if key[0] != name}
        if peer is not None:
            self.history.ended(peer.peer_id)
        return peer

    def freeze(self, name: str) -> None:
        """Stop the process on a host where it is, as SIGSTOP does; its connections stay open. None there: nothing."""
        if self.is_running(name):
            self.world.process(name).freeze()

    def thaw(self, name: str) -> None:
        """Let a frozen process go on."""
        if self.is_running(name):
            self.world.process(name).thaw()

    def is_running(self, name: str) -> bool:
        """Whether a process runs on a host: taking part, on its way in, or on its way out."""
        return name in self.peers or name in self.starting or name in self.leaving

    def _pass_on(self, name: str, direction: str, method: str, other: PeerId) -> None:
        self.on_call(name, direction, method, other)
        self.on_message(name, direction, method)
        for hook in list(self.hooks):
            hook(name, direction, method)

    def _hear(self, name: str, event: Event) -> None:
        if self.keeps_event(event):
            self.events.append((name, event))
        fields = event.fields
        if event.kind == "adopted":
            self.history.adopted(fields)
        if event.kind == "round-called":
            self._open_rounds[name, fields["fragment"]] = fields["members"]
        elif event.kind in ("adopted", "round-committed", "round-aborted"):
            self._open_rounds.pop((name, fields["fragment"]), None)
        elif event.kind == "progress" and fields["inner_steps"]:
            self._tokens_per_step = fields["tokens"] / fields["inner_steps"]
        elif event.kind == "training":
            self._trains_since[name] = now = asyncio.get_running_loop().time()
            self.first_trained_at = now if self.first_trained_at is None else self.first_trained_at
        self.on_event(name, event)

    # What can be seen of the swarm

    @property
    def now(self) -> float:
        """Virtual seconds since the beginning."""
        return asyncio.get_running_loop().time()

    def identity(self, name: str) -> Identity:
        return self._identities[name]

    def disk(self, name: str) -> SimStorage:
        """Return what a host has on disk, whether a peer runs there or not."""
        return self.world.disk(name)

    def clock(self, name: str) -> SimClock:
        return self.world.clock(name)

    def compute(self, name: str) -> SimCompute:
        return self.world.compute(name)

    def is_trainer(self, name: str) -> bool:
        """Whether the peer of a host trains, when it is there."""
        return self._is_trainer.get(name, True)

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        """Return the fields of all events of a kind, in order."""
        return [event.fields for _, event in self.events if event.kind == kind]

    def live_trainers(self, *, for_seconds: float = 0.0) -> list[str]:
        """Return the hosts whose peers are alive, awake, and have been training for so long."""
        began_before = asyncio.get_running_loop().time() - for_seconds
        return [
            host
            for host, since in self._trains_since.items()
            if since <= began_before and host in self.peers and not self.world.process(host).frozen
        ]

    def open_rounds(self) -> list[tuple[str, list[PeerId]]]:
        """Return (leader's host, members) of each round that has called its members and not ended."""
        return [(host, members) for (host, _), members in self._open_rounds.items()]

    def _live_peers(self) -> frozenset[PeerId]:
        hosts = self.live_trainers(for_seconds=self.interval)
        return frozenset(self.peers[host].peer_id for host in hosts)

    @property
    def interval(self) -> float:
        """About how long a round takes: H steps of a reference device (s)."""
        rounds = self.config.rounds
        return max(rounds.inner_steps * self.step_seconds, rounds.least_interval)

    def _steps_per_second(self, name: str) -> float:
        compute = self.world.compute(name)
        return compute.device.speed * compute.device.utilisation / compute.step_seconds

    def heads(self) -> list[str]:
        """Return the digest of the heaviest head of each fragment that a live peer has, in hex."""
        chains = zip(*(peer.chains.followers for peer in self.peers.values()), strict=True)
        return [
            max((follower.archive.head for follower in followers), key=lambda head: head.weight).digest.hex()
            for followers in chains
        ]

    def participation(self, since: float = 0.0) -> float:
        """Return the mean over the final chains' commits (since a virtual time) of contributors / live trainers."""
        return self.history.participation(self.heads(), largest=self.config.limits.max_members, since=since)

    def goodput(self) -> float:
        """Return what of the work that the live machines could have done is in the final chains, from 0 to 1."""
        return self.history.goodput(self.heads(), self._tokens_per_step)

    def merged_tokens(self) -> dict[str, float]:
        """Return how many tokens of each host's peer the final chains hold."""
        return {self.hosts[peer]: tokens for peer, tokens in self.history.merged_tokens(self.heads()).items()}

    def versions(self) -> list[int]:
        """Return the highest adopted version of each fragment."""
        return [max(versions) for versions in zip(*(self._versions(peer) for peer in self.peers.values()), strict=True)]

    def _versions(self, peer: Peer) -> list[int]:
        return [follower.archive.head.version for follower in peer.chains.followers]

    def heads_agree(self, hosts: Iterable[str] | None = None) -> bool:
        """Whether all live peers (of these hosts) have the same head of every fragment, and the same bytes."""
        peers = [self.peers[host] for host in (self.peers if hosts is None else hosts)]
        heads = {tuple(follower.archive.head.digest for follower in peer.chains.followers) for peer in peers}
        if len(heads) != 1:
            return False
        return len({tuple(state.recompute_digest() for state in peer.anchors()) for peer in peers}) == 1

    async def until(self, condition: Callable[[], bool], timeout: float = SETTLE_TIMEOUT, every: float = 0.05) -> None:
        """Let virtual time pass until something is true; TimeoutError when it never is."""
        async with asyncio.timeout(timeout):
            while not condition():
                await asyncio.sleep(every)

    async def commits(self, count: int, timeout: float | None = None) -> None:
        """Let the swarm make `count` more commits of every fragment."""
        before = self.versions()
        await self.until(
            lambda: all(now >= then + count for now, then in zip(self.versions(), before, strict=True)),
            self._patience(count) if timeout is None else timeout,
        )

    async def settle(self, timeout: float | None = None) -> None:
        """Drain the swarm: nobody trains any more, everything pending is merged, all have one head; check all books."""
        for peer in self.peers.values():
            peer.drain()
        timeout = self._patience(1) if timeout is None else timeout
        every = 0.05 if len(self.peers) <= 32 else 0.5  # a look at a crowd takes a while
        await self.until(lambda: not self._is_pending() and self.heads_agree(), timeout, every)
        await asyncio.sleep(max(1.0, self.step_seconds))
        for peer in self.peers.values():
            self.checkers.check_books(peer)

    def _patience(self, num_rounds: int) -> float:
        return max(SETTLE_TIMEOUT, 4.0 * (num_rounds + 1) * self.interval)

    def _is_pending(self) -> bool:
        """Whether anybody has unmerged work; who came back in the middle of the drain is drained, too."""
        learners = []
        for peer in self.peers.values():
            if peer.learner is not None:
                if not peer.learner.is_paused:
                    peer.drain()
                learners.append(peer.learner)
        return any(account.pending_steps for learner in learners for account in learner.accounts)


def _dialable(profile: "HostProfile") -> "HostProfile":
    """Return the same access without what keeps others from dialling in: who hosts a run forwards a port."""
    return replace(profile, nat_kind=None, carrier_kind=None, is_hidden=False)
