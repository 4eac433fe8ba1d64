"""Who can be dialled finds out that it can, who cannot finds out why: stories of a small swarm in virtual time."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from p2ptrain.discovery.members import Members
from p2ptrain.discovery.messages import DialBack, DialledBack
from p2ptrain.discovery.reachability import CHECK_INTERVAL, ROLE_INTERVAL
from p2ptrain.errors import Refused
from p2ptrain.events import Event, Events
from p2ptrain.ids import PeerId, RunId, digest
from p2ptrain.link import LinkPeer
from p2ptrain.net.identity import Identity
from p2ptrain.net.transport import Transport
from p2ptrain.runtime import Address
from p2ptrain.sim.ports import SimWorld

RUN_ID = RunId(digest("test", b"run"))
PORT = 4001


class Peer:
    """A transport and its members on a host."""

    def __init__(
        self, world: SimWorld, host: str, bootstrap: "Peer | None" = None, *, announces: Sequence[Address] | None = None
    ) -> None:
        self.host, self.address = host, Address(host, PORT)
        self.events: list[Event] = []
        runtime = world.runtime(host)
        events = Events(runtime.clock)
        events.subscribe(self.events.append)
        self.identity = Identity.generate(runtime.entropy)
        self.transport = Transport(runtime=runtime, identity=self.identity, run_id=RUN_ID, events=events)
        self.asked: list[str] = []  # by whom, and whom, it is about dialling back
        self.transport.on_message(lambda direction, method, _: self.asked.append(f"{direction} {method}"))
        self.members = Members(
            runtime=runtime,
            transport=self.transport,
            identity=self.identity,
            events=events,
            role="trainer",
            bootstrap=[LinkPeer(bootstrap.id, bootstrap.address)] if bootstrap else [],
            own_addresses=[self.address] if announces is None else announces,
        )

    @property
    def id(self) -> PeerId:
        return self.transport.peer_id

    @property
    def state(self) -> str:
        return self.members.reachability.verdict.state

    async def start(self) -> "Peer":
        await self.transport.listen(self.address)
        await self.members.start()
        return self

    async def close(self) -> None:
        await self.members.close()
        await self.transport.close()

    def verdicts(self) -> list[dict[str, object]]:
        return [event.fields for event in self.events if event.kind == "reachability"]

    def num_asks(self) -> int:
        return self.asked.count("send members.dial-back")

    def says_of(self, other: "Peer") -> bool | None:
        return next(record.reachable for record in self.members.live() if record.peer == other.id)

    async def ask(self, other: "Peer", *addresses: Address) -> tuple[str, ...]:
        """Ask another peer to dial these addresses."""
        signed = self.members.signed_record(self.id)
        assert signed is not None
        request = DialBack(record=signed, addresses=tuple((address.host, address.port) for address in addresses))
        return (await self.transport.call(other.id, request, DialledBack, timeout=10.0)).message.outcomes


async def until(condition: Callable[[], bool], timeout: float = 60.0) -> float:
    """Wait in virtual time until a condition holds; return how long that took."""
    loop = asyncio.get_running_loop()
    started_at = loop.time()
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.05)
    return loop.time() - started_at


async def swarm_of(world: SimWorld, *hosts: str) -> list[Peer]:
    """Start peers on these hosts that all know the first one; return them when all are connected with it."""
    peers = [await Peer(world, hosts[0]).start()]
    for host in hosts[1:]:
        peers.append(await Peer(world, host, peers[0]).start())
    await until(lambda: all(peers[0].id in peer.transport.connected() for peer in peers[1:]))
    return peers


async def close(*peers: Peer) -> None:
    await asyncio.gather(*(peer.close() for peer in peers))
    for peer in peers:
        assert [event.fields for event in peer.events if event.kind == "task-failed"] == []


def test_peers_that_can_be_dialled_learn_it_within_seconds_and_tell_the_others() -> None:
    world = SimWorld(seed=1)

    async def story() -> None:
        peers = await swarm_of(world, "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")
        assert await until(lambda: all(peer.state == "reachable" for peer in peers)) < 3.0
        await until(lambda: all(a.says_of(b) for a in peers for b in peers if a is not b), 3.0)
        assert all(peer.verdicts()[-1]["addresses"] == [str(peer.address)] for peer in peers)
        assert all(peer.members.can_be_dialled(other.id) for peer in peers for other in peers)
        await close(*peers)

    world.run(story())


def test_a_hidden_peer_learns_it_within_seconds_with_the_reason_and_is_dialled_by_nobody_any_more() -> None:
    world = SimWorld(seed=2)
    world.network.hide("10.0.0.9")

    async def story() -> None:
        public = await swarm_of(world, "10.0.0.1", "10.0.0.2", "10.0.0.3")
        hidden = await Peer(world, "10.0.0.9", public[0]).start()
        assert await until(lambda: hidden.state == "unreachable") < 8.0
        assert hidden.verdicts()[-1]["reasons"] == {f"10.0.0.9:{PORT}": "timed out"}
        assert hidden.members.reachability.verdict.why == f"10.0.0.9:{PORT}: timed out"
        await until(lambda: all(peer.says_of(hidden) is False for peer in public), 3.0)
        assert all(peer.transport.addresses_of(hidden.id) == [] for peer in public)
        assert all(not peer.members.can_be_dialled(hidden.id) for peer in public)
        assert all(hidden.id not in [entry.peer for entry in peer.members.dialable()] for peer in public)
        assert len(hidden.transport.connected()) == 3  # it dials them itself
        await close(hidden, *public)

    world.run(story())


def test_two_hidden_peers_list_each_other_without_ever_meeting() -> None:
    world = SimWorld(seed=3)
    for host in ("10.0.0.8", "10.0.0.9"):
        world.network.hide(host)

    async def story() -> None:
        peers = await swarm_of(world, "10.0.0.1", "10.0.0.8", "10.0.0.9")
        await until(lambda: all(peer.state == "unreachable" for peer in peers[1:]))
        await asyncio.sleep(120.0)
        assert all(len(peer.members.live()) == 2 for peer in peers)
        assert peers[1].transport.connected() == peers[2].transport.connected() == [peers[0].id]
        downs = [event for peer in peers for event in peer.events if event.kind == "peer-down" and event.elapsed > 15.0]
        assert downs == []
        await close(*peers)

    world.run(story())


def test_dialling_back_disturbs_no_connection() -> None:
    world = SimWorld(seed=4)

    async def story() -> None:
        peers = await swarm_of(world, "10.0.0.1", "10.0.0.2", "10.0.0.3")
        await until(lambda: all(peer.state == "reachable" for peer in peers))
        await until(lambda: all(len(peer.transport.connected()) == 2 for peer in peers))
        await asyncio.sleep(30.0)  # surplus connections of simultaneous dials have gone
        before = [list(peer.transport._pool.sessions) for peer in peers]
        for asker in peers:
            for other in peers:
                if asker is not other:
                    assert await asker.ask(other, asker.address) == ("reached",)
        await asyncio.sleep(5.0)
        assert [list(peer.transport._pool.sessions) for peer in peers] == before
        assert all(peer.transport.counters()["num_failed_handshakes"] == 0 for peer in peers)
        await close(*peers)

    world.run(story())


def test_a_lone_peer_knows_nothing_and_the_first_that_comes_tells_it() -> None:
    world = SimWorld(seed=5)

    async def story() -> None:
        host = await Peer(world, "10.0.0.1").start()
        await asyncio.sleep(60.0)
        assert host.state == "unknown" and host.members.own_record.reachable is None and host.num_asks() == 0
        joiner = await Peer(world, "10.0.0.2", host).start()
        await until(lambda: host.state == "reachable", 3.0)
        await close(host, joiner)

    world.run(story())


def test_what_one_peer_said_is_checked_again_when_there_are_two() -> None:
    world = SimWorld(seed=6)

    async def story() -> None:
        host = await Peer(world, "10.0.0.1").start()
        first = await Peer(world, "10.0.0.2", host).start()
        await until(lambda: host.state == "reachable")
        await asyncio.sleep(20.0)
        asked = host.num_asks()
        assert asked == 1
        second = await Peer(world, "10.0.0.3", host).start()
        await asyncio.sleep(20.0)
        assert host.num_asks() == asked + 2
        third = await Peer(world, "10.0.0.4", host).start()
        await asyncio.sleep(20.0)
        assert host.num_asks() == asked + 2  # two that agree are enough
        await close(host, first, second, third)

    world.run(story())


def test_one_liar_among_honest_peers_is_outvoted() -> None:
    world = SimWorld(seed=7)
    hidden_host = "10.0.0.9"
    world.network.hide(hidden_host)

    async def say(word: str) -> DialledBack:
        return DialledBack(outcomes=(word,))

    async def story() -> None:
        liar, *honest = await swarm_of(world, "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")
        liar.transport._handlers._methods.pop(DialBack.method)
        liar.transport.handle(DialBack, lambda *_: say("timed out"))
        newcomer = await Peer(world, "10.0.0.5", honest[0]).start()
        await until(lambda: len(newcomer.transport.connected()) == 4)
        for _ in range(5):
            newcomer.members.reachability.recheck()
            await asyncio.sleep(20.0)
            assert newcomer.state == "reachable"
        liar.transport._handlers._methods.pop(DialBack.method)
        liar.transport.handle(DialBack, lambda *_: say("reached"))
        hidden = await Peer(world, hidden_host, honest[0]).start()
        for _ in range(5):
            await asyncio.sleep(30.0)
            hidden.members.reachability.recheck()
        assert hidden.state == "unreachable"
        await close(liar, *honest, newcomer, hidden)

    world.run(story())


def test_it_is_looked_at_again_every_ten_minutes_and_when_the_role_matters() -> None:
    world = SimWorld(seed=8)

    async def story() -> None:
        host, friend, third = peers = await swarm_of(world, "10.0.0.1", "10.0.0.2", "10.0.0.3")
        await until(lambda: all(peer.state == "reachable" for peer in peers))
        await asyncio.sleep(10.0)
        asked = friend.num_asks()
        await asyncio.sleep(0.7 * CHECK_INTERVAL)
        assert friend.num_asks() == asked
        world.network.hide(friend.host)
        await until(lambda: friend.state == "unreachable", 0.65 * CHECK_INTERVAL)
        world.network.show(friend.host)
        await until(lambda: friend.state == "reachable", 200.0)  # after a bad answer it looks sooner
        world.network.hide(third.host)
        for _ in range(10):
            third.members.reachability.role_matters()
            await asyncio.sleep(ROLE_INTERVAL / 4)
        assert third.state == "unreachable"
        await until(lambda: host.says_of(third) is False, 3.0)
        await close(*peers)

    world.run(story())


def test_new_addresses_are_checked_at_once() -> None:
    world = SimWorld(seed=9)

    async def story() -> None:
        peers = await swarm_of(world, "10.0.0.1", "10.0.0.2", "10.0.0.3")
        await until(lambda: all(peer.state == "reachable" for peer in peers))
        moved = peers[2]
        moved.members.set_addresses([Address(moved.host, 4999)])
        assert moved.members.own_record.reachable is None
        await until(lambda: moved.state == "unreachable", 3.0)
        assert moved.verdicts()[-1]["reasons"] == {f"{moved.host}:4999": "refused"}
        moved.members.set_addresses([Address(moved.host, 4999), moved.address])
        await until(lambda: moved.state == "reachable", 6.0)
        assert moved.members.own_record.addresses == (
            moved.address,
            Address(moved.host, 4999),
        )  # what works comes first
        await close(*peers)

    world.run(story())


def test_after_an_isolation_it_is_looked_at_again() -> None:
    world = SimWorld(seed=10)

    async def story() -> None:
        host, lonely = peers = await swarm_of(world, "10.0.0.1", "10.0.0.2")
        await until(lambda: all(peer.state == "reachable" for peer in peers))
        world.network.partition([host.host], [lonely.host])
        await until(lambda: lonely.members.isolated_since is not None, 120.0)
        await asyncio.sleep(30.0)
        asked = lonely.num_asks()
        world.network.heal()
        await until(lambda: lonely.num_asks() > asked, 60.0)
        await close(host, lonely)

    world.run(story())


def test_when_nobody_answers_nothing_changes() -> None:
    world = SimWorld(seed=11)

    async def refuse(*_: object) -> DialledBack:
        raise Refused("busy", "not now")

    async def story() -> None:
        host, friend, joiner = peers = await swarm_of(world, "10.0.0.1", "10.0.0.2", "10.0.0.3")
        await until(lambda: all(peer.state == "reachable" for peer in peers))
        for peer in (host, friend):
            peer.transport._handlers._methods.pop(DialBack.method)
            peer.transport.handle(DialBack, refuse)
        world.network.hide(joiner.host)
        await asyncio.sleep(2 * CHECK_INTERVAL)
        assert joiner.state == "reachable" and joiner.num_asks() < 30
        await close(*peers)

    world.run(story())


@pytest.mark.parametrize(
    ("bootstrap", "expected"), [("203.0.113.1", "unreachable"), ("192.168.1.7", "reachable")], ids=["abroad", "at home"]
)
def test_an_address_of_a_local_network_counts_only_while_nobody_is_outside_of_it(bootstrap: str, expected: str) -> None:
    world = SimWorld(seed=12)

    async def story() -> None:
        peers = await swarm_of(world, bootstrap, "192.168.1.2", "192.168.1.3")
        await until(lambda: all(peer.state != "unknown" for peer in peers[1:]))
        await asyncio.sleep(20.0)
        assert [peer.state for peer in peers[1:]] == [expected, expected]
        await close(*peers)

    world.run(story())


def test_a_peer_that_announces_nothing_cannot_be_dialled() -> None:
    world = SimWorld(seed=13)

    async def story() -> None:
        host = await Peer(world, "10.0.0.1").start()
        mute = await Peer(world, "10.0.0.2", host, announces=()).start()
        await until(lambda: mute.state == "unreachable", 3.0)
        assert mute.members.reachability.verdict.why == "no address to dial"
        await close(host, mute)

    world.run(story())


def test_idle_peers_seldom_ask() -> None:
    world = SimWorld(seed=14)

    async def story() -> None:
        peers = await swarm_of(world, *(f"10.0.0.{number}" for number in range(1, 9)))
        await asyncio.sleep(60.0)
        before = [peer.num_asks() for peer in peers]
        assert max(before) <= 6
        await asyncio.sleep(3600.0)
        assert max(peer.num_asks() - asked for peer, asked in zip(peers, before, strict=True)) <= 2 * 8
        await close(*peers)

    world.run(story())
