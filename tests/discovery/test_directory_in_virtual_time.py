"""The DHT in virtual time: the same code as on loopback, with clocks, losses and partitions that loopback does not have."""

import asyncio
import random
from collections.abc import Callable, Sequence

import pytest

from p2ptrain.discovery.directory import Directory, bucket_of, member_key
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
        self.transport = Transport(runtime=self.runtime, identity=self.identity, run_id=RUN_ID, events=self._events)
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
    def address(self) -> Address:
        return Address(self.host, PORT)

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


async def num_missed(readers: Sequence[Peer], others: Sequence[Peer], seed: int, count: int = 40) -> int:
    """Return how many of `count` random pairs of a reader and another peer do not find that peer's record."""
    chance, missed = random.Random(seed), 0
    for _ in range(count):
        reader = chance.choice(readers)
        other = chance.choice([peer for peer in others if peer is not reader])
        missed += not await reader.finds(other)
    return missed


async def publish(peers: Sequence[Peer]) -> None:
    await asyncio.gather(*(peer.directory.publish() for peer in peers))


async def end(peers: Sequence[Peer]) -> None:
    """Kill everybody; nothing must have failed, and nothing that hivemind started may live on."""
    for peer in peers:
        await peer.kill()
    assert not [event.fields for peer in peers for event in peer.events if event.kind == "task-failed"]
    await asyncio.sleep(1.0)
    running = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert not running


def test_a_peer_outside_the_view_is_found() -> None:
    world = SimWorld(seed=3)

    async def story() -> None:
        peers = await swarm_of(world, 32, view=8)
        await asyncio.sleep(60.0)
        await publish(peers)
        pairs = [(reader, other) for reader in peers for other in peers if reader is not other]
        strangers = [(reader, other) for reader, other in pairs if not reader.sees(other)]
        assert len(strangers) > len(pairs) / 2
        for reader, other in random.Random(3).sample(strangers, 60):
            assert await reader.finds(other)
        await end(peers)

    world.run(story())


def test_records_outlive_the_sudden_loss_of_a_third_of_the_nodes() -> None:
    world = SimWorld(seed=4)

    async def story() -> None:
        peers = await swarm_of(world, 30)
        await asyncio.sleep(30.0)
        await publish(peers)
        dead = random.Random(4).sample(peers, 9)
        for peer in dead:
            world.network.kill(peer.host, silent=True)
        living = [peer for peer in peers if peer not in dead]
        assert await num_missed(living, living, seed=4) <= 1  # each record had five holders
        await asyncio.sleep(120.0)
        assert await num_missed(living, living, seed=5) == 0  # and who lost a holder has published anew
        for peer in living:
            assert not set(peer.contacts) & {other.id for other in dead}
        await end(peers)

    world.run(story())


@pytest.mark.parametrize("spread", [6.0, 200.0])
def test_clocks_that_differ_by_seconds_or_minutes_hide_nobody(spread: float) -> None:
    world = SimWorld(seed=5)

    async def story() -> None:
        peers = await swarm_of(world, 10, skew=spread)  # at most 100 s ahead of the true time
        await asyncio.sleep(60.0)
        await publish(peers)
        assert await num_missed(peers, peers, seed=5, count=60) == 0
        await asyncio.sleep(900.0)
        assert await num_missed(peers, peers, seed=6, count=60) == 0
        await end(peers)

    world.run(story())


# BUG-X12
@pytest.mark.parametrize("skew", [900.0, -900.0])
def test_a_clock_that_is_too_wrong_hides_only_its_own_peer(skew: float) -> None:
    world = SimWorld(seed=6)

    async def story() -> None:
        peers = await swarm_of(world, 8)
        wrong = await Peer(world, 8, wall_skew=skew).start([0])
        await asyncio.sleep(60.0)
        await publish([*peers, wrong])
        assert await num_missed(peers, [wrong], seed=6, count=8) == 8
        await asyncio.sleep(900.0)
        assert await num_missed(peers, peers, seed=8) == 0
        world.clock(wrong.host).wall_skew = 0.0
        await asyncio.sleep(600.0)
        assert await num_missed(peers, [wrong], seed=9, count=8) == 0
        await end([*peers, wrong])

    world.run(story())


def test_a_node_that_comes_back_takes_part_again() -> None:
    world = SimWorld(seed=7)

    async def story() -> None:
        peers = await swarm_of(world, 8)
        await asyncio.sleep(30.0)
        await peers[0].kill()  # the one by which all have joined
        await asyncio.sleep(120.0)
        peers[0] = await Peer(world, 0).start()
        await until(lambda: all(len(peer.contacts) == 7 for peer in peers))
        await publish(peers)
        assert await num_missed(peers, peers[:1], seed=7, count=8) == 0
        assert await num_missed(peers[:1], peers, seed=7, count=8) == 0
        await end(peers)

    world.run(story())


def test_two_dhts_become_one_after_a_single_contact() -> None:
    world = SimWorld(seed=8)

    async def story() -> None:
        left = [await Peer(world, number).start([0] if number else []) for number in range(6)]
        right = [await Peer(world, number).start([10] if number > 10 else []) for number in range(10, 16)]
        await asyncio.sleep(60.0)
        await publish([*left, *right])
        assert await num_missed(left, right, seed=8, count=12) == 12
        await left[3].transport.dial(right[4].address)
        await until(lambda: all(len(peer.contacts) == 11 for peer in [*left, *right]))
        assert await num_missed(left, right, seed=8) == await num_missed(right, left, seed=8) == 0
        await end([*left, *right])

    world.run(story())


def test_who_dies_while_asking_leaves_nothing_behind() -> None:
    world = SimWorld(seed=9)

    async def story() -> None:
        peers = await swarm_of(world, 10)
        await asyncio.sleep(30.0)
        for peer in peers[1:]:
            world.network.kill(peer.host, silent=True)
        asker = peers[0]
        asking = [asyncio.create_task(asker.finds(other), context=asker.process.context) for other in peers[1:]]
        await asyncio.sleep(0.5)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        await end(peers)

    world.run(story())
