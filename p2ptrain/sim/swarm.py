"""A swarm in virtual time: the very same peers, in one process, on simulated hosts.

    swarm = SimSwarm(config, seed=7)

    async def story() -> None:
        await swarm.host()
        await swarm.join()
        await swarm.commits(3)

    swarm.run(story())

Every peer is watched by the checkers. A killed peer's disk survives it; `restart` goes on from there.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from p2ptrain.config import RunConfig
from p2ptrain.events import Event, Events
from p2ptrain.ids import PeerId
from p2ptrain.link import JoinLink
from p2ptrain.net.identity import Identity
from p2ptrain.peer import Peer, PeerOptions
from p2ptrain.runtime import Address, Runtime, Storage
from p2ptrain.sim.checkers import Checkers
from p2ptrain.sim.ports import SimWorld

Result = TypeVar("Result")

STEP_SECONDS = 0.1  # of virtual time per inner step, unless a story says otherwise
SETTLE_TIMEOUT = 120.0  # virtual seconds after which a swarm that has not come to one head never will


class SimSwarm:
    """Peers on hosts 10.0.0.1, 10.0.0.2, … of one simulated network."""

    def __init__(self, config: RunConfig, *, seed: int, latency: float = 0.02) -> None:
        self.config = config
        self.world = SimWorld(seed=seed, latency=latency)
        self.checkers = Checkers()
        self.peers: dict[str, Peer] = {}  # alive, by host
        self.hosts: dict[PeerId, str] = {}
        self.events: list[tuple[str, Event]] = []  # host and event, in order
        self._identities: dict[str, Identity] = {}
        self._num_hosts = 0
        self._cleanups: list[asyncio.Task[None]] = []
        self.on_message: Callable[[str, str, str], None] = lambda host, direction, method: None
        """Told of every request that a peer sends or handles, before it does."""

    def run(self, story: Coroutine[Any, Any, Result]) -> Result:
        """Run a story on the virtual loop, then stop every peer; the checkers' complaints end it."""

        async def whole() -> Result:
            try:
                return await story
            finally:
                for host in list(self.peers):
                    self.kill(host)
                await asyncio.gather(*self._cleanups)

        result = self.world.run(whole())
        self.raise_failures()
        return result

    def raise_failures(self) -> None:
        """Raise what a task of any peer died of: a checker's complaint, or a bug."""
        failures = [(host, event) for host, event in self.events if event.kind == "task-failed"]
        assert not failures, "\n".join(f"{host} at {event.elapsed:.3f} s: {event.fields}" for host, event in failures)

    # Peers come and go

    async def host(self, *, train: bool = True, step_seconds: float = STEP_SECONDS) -> str:
        """Start the first peer, which makes the run; return its host."""
        name = self._new_host()
        runtime, identity, events = self._process(name, step_seconds)
        await self._start(name, await self._hosting(name, runtime, identity, events, train=train))
        return name

    async def _hosting(
        self, name: str, runtime: Runtime, identity: Identity, events: Events, *, train: bool = True
    ) -> Peer:
        peer = Peer.hosting(runtime, identity, self.config, _options(name, train), events)
        return await asyncio.create_task(peer, context=self.world.process(name).context)

    async def join(
        self, *, train: bool = True, step_seconds: float = STEP_SECONDS, hidden: bool = False, wall_skew: float = 0.0
    ) -> str:
        """Start one more peer, which joins by the link of a live one; return its host. Nobody can dial a `hidden` one."""
        name = self._new_host()
        if hidden:
            self.world.network.hide(name)
        return await self.restart(name, train=train, step_seconds=step_seconds, wall_skew=wall_skew)

    async def start_with_link(self, link: JoinLink) -> str:
        """Start one more peer with this very link."""
        name = self._new_host()
        runtime, identity, events = self._process(name, STEP_SECONDS)
        await self._start(name, Peer.joining(runtime, identity, link, _options(name, True), events))
        return name

    async def resume(self, name: str) -> str:
        """Let a killed peer host the run again that it hosted before."""
        runtime, identity, events = self._process(name, STEP_SECONDS)
        await self._start(name, await self._hosting(name, runtime, identity, events))
        return name

    async def restart(
        self, name: str, *, train: bool = True, step_seconds: float = STEP_SECONDS, wall_skew: float = 0.0
    ) -> str:
        """Start a killed peer again on its disk, with its identity."""
        link: JoinLink = next(iter(self.peers.values())).join_link()
        runtime, identity, events = self._process(name, step_seconds, wall_skew)
        await self._start(name, Peer.joining(runtime, identity, link, _options(name, train), events))
        return name

    def _process(self, name: str, step_seconds: float, wall_skew: float = 0.0) -> tuple[Runtime, Identity, Events]:
        runtime = self.world.runtime(name, step_seconds=step_seconds, wall_skew=wall_skew)
        identity = self._identities.setdefault(name, Identity.generate(runtime.entropy))
        events = Events(runtime.clock)
        events.subscribe(lambda event: self.events.append((name, event)))
        return runtime, identity, events

    async def _start(self, name: str, peer: Peer) -> None:
        self.hosts[peer.peer_id] = name
        peer.transport.on_message(lambda direction, method, _other: self.on_message(name, direction, method))
        await asyncio.create_task(peer.start(), context=self.world.process(name).context)
        self.peers[name] = peer
        self.checkers.watch(peer)

    def kill(self, name: str) -> None:
        """End a peer's process without a word; one that is still starting fails by its dead network."""
        self.world.kill(name)
        peer = self.peers.pop(name, None)
        if peer is not None:
            self._cleanups.append(asyncio.create_task(peer.abandon()))

    def _new_host(self) -> str:
        self._num_hosts += 1
        return f"10.0.{self._num_hosts // 250}.{self._num_hosts % 250 + 1}"

    # What can be seen of the swarm

    def identity(self, name: str) -> Identity:
        return self._identities[name]

    def disk(self, name: str) -> Storage:
        """Return what a host has on disk, whether a peer runs there or not."""
        return self.world.disk(name)

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        """Return the fields of all events of a kind, in order."""
        return [event.fields for _, event in self.events if event.kind == kind]

    def versions(self) -> list[int]:
        """Return the highest adopted version of each fragment."""
        return [max(versions) for versions in zip(*(self._versions(peer) for peer in self.peers.values()), strict=True)]

    def _versions(self, peer: Peer) -> list[int]:
        return [follower.archive.head.version for follower in peer.chains.followers]

    def heads_agree(self) -> bool:
        """Whether all live peers have the same head of every fragment, and the same bytes."""
        heads = {
            tuple(follower.archive.head.digest for follower in peer.chains.followers) for peer in self.peers.values()
        }
        states = {tuple(state.recompute_digest() for state in peer.anchors()) for peer in self.peers.values()}
        return len(heads) == 1 and len(states) == 1

    async def until(self, condition: Callable[[], bool], timeout: float = SETTLE_TIMEOUT) -> None:
        """Let virtual time pass until something is true; TimeoutError when it never is."""
        async with asyncio.timeout(timeout):
            while not condition():
                await asyncio.sleep(0.05)

    async def commits(self, count: int, timeout: float = SETTLE_TIMEOUT) -> None:
        """Let the swarm make `count` more commits of every fragment."""
        before = self.versions()
        await self.until(
            lambda: all(now >= then + count for now, then in zip(self.versions(), before, strict=True)), timeout
        )

    async def settle(self, timeout: float = SETTLE_TIMEOUT) -> None:
        """Drain the swarm: nobody trains any more, everything pending is merged, all have one head; check all books."""
        for peer in self.peers.values():
            peer.drain()
        await self.until(lambda: self.heads_agree() and not self._pending(), timeout)
        await asyncio.sleep(1.0)
        for peer in self.peers.values():
            self.checkers.check_books(peer)

    def _pending(self) -> int:
        return sum(tally.pending for peer in self.peers.values() if peer.learner for tally in peer.learner.tallies())


def _options(host: str, train: bool) -> PeerOptions:
    return PeerOptions(listen=Address(host, 0), train=train, use_directory=False)
