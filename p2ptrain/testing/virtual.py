"""A swarm in virtual time that is driven from ordinary, synchronous code.

    swarm.add_peers(8, network="home-internet")
    swarm.partition(swarm.peers[:4], swarm.peers[4:])
    swarm.run(minutes=10)
    swarm.heal()
    swarm.run(minutes=5)
    assert swarm.heads_agree() and swarm.participation > 0.9

Virtual time passes in `run`, and in what has to wait for the peers (`add_peers`, `restart`, `leave`, `settle`,
`heads_agree`); between two calls the world stands still. The checkers of `p2ptrain.sim.checkers` look at every adoption;
what they find is raised by the call during which it happened, as an AssertionError with seed, time and last events.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar

from p2ptrain.config import RunConfig, Section, validated
from p2ptrain.errors import ConfigError, P2PTrainError
from p2ptrain.events import Event
from p2ptrain.monitor.view import clock_time
from p2ptrain.peer import Peer
from p2ptrain.sim.checkers import GRACE, LOOK_INTERVAL
from p2ptrain.sim.churn import Churn, ChurnConfig
from p2ptrain.sim.faults import Fault, FaultBase, apply
from p2ptrain.sim.loop import VirtualLoop
from p2ptrain.sim.profiles import NetworkProfile, load_network_profile
from p2ptrain.sim.swarm import SimSwarm
from p2ptrain.testing.experiment import Experiment

STEP_SECONDS: Final = 5.0  # of an inner step, unless a test says otherwise: with H = 20, rounds are 100 s apart
ARRIVAL_INTERVAL: Final = 0.5  # virtual seconds between two peers that are added at once
JOIN_PATIENCE: Final = 900.0  # virtual seconds for all added peers to train: a bad link takes several tries
AGREE_PATIENCE: Final = 30.0  # virtual seconds: a commit may be on its way to the others at any moment
NO_PEERS: Final = "the swarm has no peers yet: add_peers comes first"
NUM_LAST_EVENTS: Final = 12  # in what a failed test shows

Result = TypeVar("Result")


class SwarmEvent(NamedTuple):
    """Something that a peer said, or that was done to it."""

    at: float
    """Virtual seconds since the swarm began."""
    peer: int
    """The peer's number; 0 for the world."""
    kind: str
    fields: Mapping[str, Any]


class VirtualPeer:
    """One machine of a virtual swarm, and the peer on it. It stays the same machine when the peer is started again."""

    def __init__(self, swarm: SimSwarm, host: str, number: int) -> None:
        self.host = host
        """Its address in the simulated network."""
        self.number = number
        """From 1, in the order in which peers were added."""
        self._swarm = swarm

    def __repr__(self) -> str:
        return f"peer {self.number} ({self.host}{'' if self.is_alive else ', dead'})"

    @property
    def peer(self) -> Peer | None:
        """The running peer, with all its insides; None while it is dead."""
        return self._swarm.peers.get(self.host)

    @property
    def is_alive(self) -> bool:
        return self.peer is not None

    @property
    def versions(self) -> list[int]:
        """The version of each fragment that it has adopted; empty while it is dead."""
        peer = self.peer
        return [] if peer is None else [follower.archive.head.version for follower in peer.chains.followers]

    @property
    def tokens(self) -> int:
        """Tokens that it has trained in its present life."""
        peer = self.peer
        return 0 if peer is None or peer.learner is None else peer.learner.progress.tokens

    @property
    def loss(self) -> float:
        """Its training loss, just now; NaN while it does not train."""
        peer = self.peer
        return float("nan") if peer is None or peer.learner is None else peer.learner.progress.loss


Peers = VirtualPeer | int | Iterable["VirtualPeer | int"]


class _Faults(Section):
    faults: list[Fault]


class VirtualSwarm:
    """A swarm in virtual time. Close it, or use it in a `with`: then everything that it began has to end."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.events: list[SwarmEvent] = []
        """Everything that was said, but for the regular accounts of progress."""
        self._peers: list[VirtualPeer] = []
        self._sim: SimSwarm | None = None
        self._experiment: Experiment | None = None
        self._churn: Churn | None = None
        self._runner: asyncio.Runner | None = None
        self._disturbed_at = 0.0
        self._has_failed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Making it

    def add_peers(
        self,
        count: int,
        *,
        network: str | NetworkProfile | None = None,
        run: str | RunConfig | Experiment | None = None,
        step_seconds: float | None = None,
        train: bool = True,
    ) -> list[VirtualPeer]:
        """Start peers, and return them once all of them take part.

        `network`: a name in configs/networks/, a path or a profile, from which these machines are drawn; None: as those
        before, at first a plain network. `run` is given with the first peers only (default: sim-quadratic).
        `step_seconds`: of an inner step on a reference device (default 5). `train=False`: they only help others to meet.
        """
        if count < 1:
            raise ConfigError(f"add_peers({count}): at least 1")
        profile = load_network_profile(network) if isinstance(network, str) else network
        if self._sim is None:
            self._make(Experiment.of("sim-quadratic" if run is None else run), profile, step_seconds or STEP_SECONDS)
        elif run is not None and Experiment.of(run) != self._experiment:
            raise ConfigError("add_peers(run=…): the peers of one swarm train one run, that of the first ones")
        sim = self.sim
        sim.network = profile or sim.network
        before = len(sim.host_names)
        self._do(self._start(count, step_seconds, train=train))
        self._peers += [
            VirtualPeer(sim, host, number) for number, host in enumerate(sim.host_names[before:], before + 1)
        ]
        return self.peers[before:]

    def _make(self, experiment: Experiment, network: NetworkProfile | None, step_seconds: float) -> None:
        self._experiment = experiment
        self._sim = SimSwarm(experiment.load(), seed=self.seed, network=network, step_seconds=step_seconds)
        self._sim.make_options = partial(self._sim.make_options, **experiment.peer_options())
        self._sim.on_event = self._hear
        self._sim.keeps_event = lambda event: event.kind != "progress"
        self._runner = asyncio.Runner(loop_factory=VirtualLoop)

    async def _start(self, count: int, step_seconds: float | None, *, train: bool) -> None:
        sim = self.sim
        if not sim.host_names:
            await sim.host(train=train, step_seconds=step_seconds)
            count -= 1
        newcomers = [sim.new_host() for _ in range(count)]
        starting = []
        for host in newcomers:
            starting.append(sim.spawn(self._join(host, step_seconds, train=train)))
            await asyncio.sleep(ARRIVAL_INTERVAL)
        async with asyncio.timeout(JOIN_PATIENCE):
            await asyncio.gather(*starting)
        self._disturbed_at = sim.now

    async def _join(self, host: str, step_seconds: float | None, *, train: bool) -> None:
        try:
            await self.sim.restart(host, train=train, step_seconds=step_seconds)
        except P2PTrainError:  # noted by the swarm; a user would try again
            await self.sim.bring_back(host, after=5.0)

    def _hear(self, host: str, event: Event) -> None:
        if event.kind != "progress":
            number = self.sim.host_names.index(host) + 1 if host in self.sim.host_names else 0
            self.events.append(SwarmEvent(self.sim.now, number, event.kind, event.fields))

    @property
    def sim(self) -> SimSwarm:
        """The simulated swarm itself, for whoever needs more than this class offers; its calls need the running loop."""
        if self._sim is None:
            raise ConfigError(NO_PEERS)
        return self._sim

    @property
    def peers(self) -> list[VirtualPeer]:
        """All peers that were ever added, alive or dead; number n is `peers[n - 1]`. Who came by churn stands last."""
        if self._sim is not None:
            known = len(self._peers)
            for number, host in enumerate(self._sim.host_names[known:], known + 1):
                self._peers.append(VirtualPeer(self._sim, host, number))
        return list(self._peers)

    # Time

    def run(self, *, hours: float = 0.0, minutes: float = 0.0, seconds: float = 0.0) -> None:
        """Let virtual time pass."""
        total = 3600.0 * hours + 60.0 * minutes + seconds
        if not 0.0 < total < 1e8:
            raise ConfigError(f"run({total:g} s): a time greater than 0")
        self._do(asyncio.sleep(total))

    def run_until(self, condition: Callable[[], bool], *, minutes: float = 60.0) -> None:
        """Let virtual time pass until something is true; TimeoutError when it is not within so many minutes."""
        self._do(self.sim.until(condition, timeout=60.0 * minutes, every=0.5))

    @property
    def now(self) -> float:
        """Virtual seconds since the swarm began."""
        return self._get(lambda: self.sim.now)

    # What goes wrong

    def partition(self, one: Peers, other: Peers = (), *, one_way: bool = False) -> None:
        """Cut all traffic between two sets of peers (default: all others); `one_way`: only from the first to the second."""
        left = self._hosts(one)
        right = self._hosts(other) or [host for host in self.sim.host_names if host not in left]
        both = [host for host in left if host in right]
        if not left or both:
            raise ConfigError(
                f"partition: {both[0] if both else 'nobody'} is on {'both' if both else 'the first'} side"
            )
        self._disturb(lambda: self.sim.world.network.partition(left, right, one_way=one_way))

    def heal(self) -> None:
        """End every partition."""
        self._disturb(self.sim.world.network.heal)

    def kill(self, peers: Peers, *, power_cut: bool = False) -> None:
        """End processes without a word; with `power_cut`, nobody is told, and what was not on disk is lost."""
        for host in self._hosts(peers):
            self._disturb(partial(self.sim.kill, host, power_cut=power_cut))

    def restart(self, peers: Peers) -> None:
        """Start dead peers again, on what is on their disks; what stands in the way is raised."""
        for host in self._hosts(peers):
            if host not in self.sim.peers:
                self._do(self.sim.start_again(host))
                self._disturb(lambda: None)

    def leave(self, peers: Peers) -> None:
        """Let peers say goodbye and end."""
        for host in self._hosts(peers):
            self._do(self.sim.leave(host))
            self._disturb(lambda: None)

    def freeze(self, peers: Peers) -> None:
        """Stop processes where they are, as a machine that falls asleep; their connections stay open."""
        for host in self._hosts(peers):
            self._disturb(partial(self.sim.freeze, host))

    def thaw(self, peers: Peers) -> None:
        """Let frozen processes go on."""
        for host in self._hosts(peers):
            self._disturb(partial(self.sim.thaw, host))

    def apply(self, fault: FaultBase | Mapping[str, Any]) -> None:
        """Let any fault of `p2ptrain.sim.faults` happen, as an object or as in a scenario file; `at` counts from now."""
        if isinstance(fault, Mapping):
            fault = validated(_Faults, {"faults": [dict(fault)]}, "apply").faults[0]
        missing = [number for number in fault.numbers() if number > len(self.peers)]
        if missing:
            raise ConfigError(f"apply: there is no peer {missing[0]}, only {len(self.peers)}")

        async def later(fault: FaultBase) -> None:
            await asyncio.sleep(fault.at)
            await apply(fault, self.sim)

        if fault.at:
            self._disturb(lambda: self.sim.spawn(later(fault)))
        else:
            self._do(apply(fault, self.sim))
            self._disturb(lambda: None)

    def churn(self, config: ChurnConfig | None = None, **keys: Any) -> None:
        """Let peers come and go from now on: a ChurnConfig, or its keys as in a scenario's [churn].

        Without either, as the network's [sessions] say, and peer 1 stays.
        """
        sim = self.sim
        if config is None and not keys:
            if sim.network is None or sim.network.sessions is None:
                raise ConfigError("churn(): this network has no [sessions]; say how peers come and go")
            config = ChurnConfig(sessions=sim.network.sessions, spare=[1])
        self.stop_churn()
        churn = self._churn = Churn(sim, validated(ChurnConfig, keys, "churn") if config is None else config)
        self._disturb(churn.start)

    def stop_churn(self) -> None:
        """Let nobody go any more; who is away still comes back in its time."""
        if self._churn is not None:
            self._churn.stop()

    # What can be seen

    def heads_agree(self, within: float = AGREE_PATIENCE) -> bool:
        """Whether all live peers have one head of every fragment, and the same bytes; they have `within` seconds for it.

        Rounds go on meanwhile, and a commit that is on its way is no disagreement. `within=0` looks at this very moment.
        """

        async def come_to_agree() -> bool:
            try:
                await self.sim.until(lambda: self._sim_agrees(), timeout=within, every=0.1)
            except TimeoutError:
                return False
            return True

        return self._do(come_to_agree()) if within > 0.0 else self._get(self._sim_agrees)

    def _sim_agrees(self) -> bool:
        return bool(self.sim.peers) and self.sim.heads_agree()

    def settle(self) -> None:
        """Stop training for good, until everything pending is merged and all agree; check all books. TimeoutError if not."""
        self._do(self.sim.settle())

    @property
    def participation(self) -> float:
        """Contributors / live trainers, as a mean over the rounds since something was done to the swarm for the last time.

        The first interval after that (H steps of a reference device) does not count, if two have passed: peers that were
        cut off have to find the others and their chain. Of the live trainers a leader takes at most
        `limits.max_members`. 0 when there was no round.
        """

        def read() -> float:
            interval = self.sim.interval
            recovers = interval if self.sim.now >= self._disturbed_at + 2.0 * interval else 0.0
            return self.sim.participation(since=self._disturbed_at + recovers)

        return self._get(read)

    def participation_since(self, seconds: float) -> float:
        """Return the same for the rounds since a virtual time, as in `participation_since(0)`."""
        return self._get(lambda: self.sim.participation(since=seconds))

    @property
    def goodput(self) -> float:
        """Tokens in the final chains / tokens that the machines could have trained while their peers ran, from the start."""
        return self._get(self.sim.goodput)

    @property
    def versions(self) -> list[int]:
        """The highest version of each fragment that a live peer has adopted."""
        return self._get(self.sim.versions)

    @property
    def losses(self) -> list[float]:
        """Validation losses of what the peers share, in the order in which they were computed."""
        losses = [event.fields["loss"] for event in self.events if event.kind == "validation"]
        return [loss for loss in losses if loss == loss]

    def events_of(self, kind: str) -> list[SwarmEvent]:
        """Return all events of a kind, in order: "adopted", "reorg", "round-committed", …"""
        return [event for event in self.events if event.kind == kind]

    def story(self, test: str = "") -> str:
        """Return what a person needs to look into a failure: seed, time, who is there, what happened last."""
        again = f"\nagain: pytest '{test}' --swarm-seed {self.seed}" if test else ""
        if self._sim is None:
            return f"seed {self.seed}, no peers yet{again}"
        alive = sum(peer.is_alive for peer in self.peers)
        at = self.events[-1].at if self.events else 0.0
        lines = [f"seed {self.seed}, {alive} of {len(self.peers)} peers alive, last event at {clock_time(at)}{again}"]
        for event in self.events[-NUM_LAST_EVENTS:]:
            fields = " ".join(f"{name}={str(value)[:32]}" for name, value in event.fields.items())
            who = f"peer {event.peer}" if event.peer else "world"
            lines.append(f"  {event.at:.3f} s {who} {event.kind} {fields}"[:200])
        return "\n".join(lines)

    # The end

    def close(self) -> None:
        """Kill every peer, and make sure that nothing outlives it: no task, timer or connection."""
        if self._runner is None or self._sim is None:
            return
        runner, sim, self._runner = self._runner, self._sim, None

        async def end() -> None:
            await sim.close()
            await asyncio.sleep(GRACE + LOOK_INTERVAL)
            if not self._has_failed:
                sim.checkers.check_now()

        try:
            runner.run(end())
        finally:
            runner.close()
        if not self._has_failed:
            sim.raise_failures()

    def _do(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Let something happen in virtual time, and return what came of it; raise what a checker found meanwhile."""
        sim, runner = self._sim, self._runner
        if sim is None or runner is None:
            coroutine.close()
            raise ConfigError("this swarm is closed" if sim else NO_PEERS)

        async def telling() -> Result:
            task = asyncio.create_task(coroutine)

            def end() -> None:
                task.cancel()

            sim.checkers.on_violation = end
            return await task

        try:
            result = runner.run(telling())
        except asyncio.CancelledError:
            self._raise_failures(sim)
            raise
        self._raise_failures(sim)
        return result

    def _raise_failures(self, sim: SimSwarm) -> None:
        try:
            sim.raise_failures()
        except AssertionError:
            self._has_failed = True  # said once, here; not again when it is closed
            raise

    def _get(self, read: Callable[[], Result]) -> Result:
        """Return what can be read without any time passing."""

        async def reading() -> Result:
            return read()

        return self._do(reading())

    def _disturb(self, change: Callable[[], object]) -> None:
        """Change something in the world, now."""

        def changing() -> float:
            change()
            return self.sim.now

        self._disturbed_at = self._get(changing)

    def _hosts(self, peers: Peers) -> list[str]:
        """Return the hosts of peers, which may be one or many, named by number or not."""
        known, hosts = self.peers, []
        for one in [peers] if isinstance(peers, (VirtualPeer, int)) else peers:
            if isinstance(one, int) and not 1 <= one <= len(known):
                raise ConfigError(f"there is no peer {one}, only {len(known)}")
            hosts.append(known[one - 1].host if isinstance(one, int) else one.host)
        return hosts
