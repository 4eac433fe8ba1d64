"""The DHT in virtual time: the same code as on loopback, with clocks, losses and partitions that loopback does not have."""

import asyncio
import random
from collections.abc import Callable, Sequence

import pytest

from p2ptrain.discovery.directory import NUM_BUCKETS, Directory, bucket_of, member_key
from p2ptrain.discovery.members import Members
from p2ptrain.events import Event, Events
from p2ptrain.ids import PeerId, RunId, digest, public_key_of
from p2ptrain.link import LinkPeer
from p2ptrain.net.identity import Identity
from p2ptrain.net.transport import Transport
from p2ptrain.runtime import Address
from p2ptrain.sim.ports import SimWorld

RUN_ID = RunId(digest("test", b"run"))
PORT = 4001


class Peer:
    """A peer on a simulated host: transport, members, directory."""

    def __init__(self, world: SimWorld, number: int, *, wall_skew: float = 0.0, view: int | None = None) -> None:
        self.world, self.number, self.host = world, number, host_of(number)
        self.runtime = world.runtime(self.host, wall_skew=wall_skew)
        self.events: list[Event] = []
        self._events = Events(self.runtime.clock)
        self._events.subscribe(self.events.append)
        self.identity = identity_of(number)
        self.transport = Transport(
            runtime=self.runtime, identity=self.identity, run_id=RUN_ID, events=self._events
        )
        self._view = view

    async def start(self, bootstrap: Sequence[int] = ()) -> "Peer":
        self.process = self.world.process(self.host)
        await asyncio.create_task(self._start([link_to(number) for number in bootstrap]), context=self.process.context)
        return self

    async def _start(self, bootstrap: Sequence[LinkPeer]) -> None:
        await self.transport.listen(Address(self.host, PORT))
        self.members = Members(
            runtime=self.runtime, transport=self.transport, identity=self.identity, events=self._events, role="trainer",
            bootstrap=bootstrap, own_addresses=[Address(self.host, PORT)],
        )  # fmt: skip
        if self._view is not None:
            self.members._roster.view._capacity = self._view
        self.directory = Directory(
            runtime=self.runtime, transport=self.transport, identity=self.identity, events=self._events,
            members=self.members,
        )  # fmt: skip
        await self.members.start()
        await self.directory.start()

    @property
    def id(self) -> PeerId:
        return self.transport.peer_id

    @property
    def contacts(self) -> list[PeerId]:
        assert self.directory._table is not None
        return self.directory._table.contacts()

    def sees(self, other: "Peer") -> bool:
        return any(record.peer == other.id for record in self.members.live())

    async def finds(self, other: "Peer") -> bool:
        """Whether the DHT has the record of another peer, asked from here."""
        assert self.directory._table is not None
        found = await self.directory._table.find(member_key(RUN_ID, bucket_of(other.id)))
        return public_key_of(other.id) in found

    async def kill(self) -> None:
        self.world.kill(self.host)
        await self.members.close()
        await self.directory.close()
        await self.transport.close()

    def failures(self) -> list[Event]:
        return [event for event in self.events if event.kind == "task-failed"]


def host_of(number: int) -> str:
    return f"10.0.{number // 250}.{number % 250 + 1}"


def identity_of(number: int) -> Identity:
    return Identity(number.to_bytes(32, "big"))


def link_to(number: int) -> LinkPeer:
    return LinkPeer(identity_of(number).peer_id, Address(host_of(number), PORT))


async def until(condition: Callable[[], bool], timeout: float = 120.0) -> None:
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.5)


async def swarm_of(world: SimWorld, count: int, *, view: int | None = None, skew: float = 0.0) -> list[Peer]:
    """Start `count` peers that all know the first, their clocks spread over `skew` seconds."""
    peers = []
    for number in range(count):
        peer = Peer(world, number, view=view, wall_skew=skew * (number / max(1, count - 1) - 0.5))
        peers.append(await peer.start([0] if number else []))
    return peers


async def share_found(peers: Sequence[Peer], chance: random.Random, count: int = 40) -> float:
    """Return how many of some random pairs find each other's record."""
    found = 0
    for _ in range(count):
        reader, other = chance.sample(list(peers), 2)
        found += await reader.finds(other)
    return found / count


async def end(peers: Sequence[Peer]) -> None:
    failures = [event for peer in peers for event in peer.failures()]
    for peer in peers:
        await peer.kill()
    assert not failures


def test_a_peer_outside_the_view_is_found() -> None:
    world = SimWorld(seed=3)

    async def story() -> None:
        peers = await swarm_of(world, 32, view=8)
        await asyncio.sleep(60.0)
        for peer in peers:
            await peer.directory.publish()
        pairs = [(reader, other) for reader in peers for other in peers if reader is not other]
        strangers = [(reader, other) for reader, other in pairs if not reader.sees(other)]
        assert len(strangers) > len(pairs) / 2
        chosen = random.Random(3).sample(strangers, 60)
        found = [await reader.finds(other) for reader, other in chosen]
        print("found", sum(found), len(found))
        assert sum(found) >= 0.95 * len(found)
        await end(peers)

    world.run(story())
