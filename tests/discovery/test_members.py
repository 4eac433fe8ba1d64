"""Members find each other, and notice who is gone: stories of a small swarm in virtual time."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from p2ptrain.discovery.members import Members
from p2ptrain.discovery.messages import Tell, Told
from p2ptrain.errors import IdentityInUseError, LinkError, UnreachableError
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
    """A process on a host of its own: a transport and its members."""

    def __init__(
        self,
        world: SimWorld,
        number: int,
        bootstrap: Sequence["int | LinkPeer"] = (),
        *,
        identity: int | None = None,
        run_id: RunId = RUN_ID,
        wall_skew: float = 0.0,
    ) -> None:
        self.world, self.host = world, host_of(number)
        self.events: list[Event] = []
        runtime = world.runtime(self.host, wall_skew=wall_skew)
        events = Events(runtime.clock)
        events.subscribe(self.events.append)
        own = identity_of(number if identity is None else identity)
        self.transport = Transport(runtime=runtime, identity=own, run_id=run_id, events=events)
        self.members = Members(
            runtime=runtime,
            transport=self.transport,
            identity=own,
            events=events,
            role="trainer",
            bootstrap=[link_to(entry) if isinstance(entry, int) else entry for entry in bootstrap],
            own_addresses=[Address(self.host, PORT)],
        )

    @property
    def id(self) -> PeerId:
        return self.transport.peer_id

    async def start(self) -> "Peer":
        await self.transport.listen(Address(self.host, PORT))
        await self.members.start()
        return self

    async def leave(self) -> None:
        await self.members.leave()
        await self.transport.close()

    async def kill(self) -> None:
        """End without a word, as SIGKILL does."""
        self.world.kill(self.host)
        await self.members.close()
        await self.transport.close()

    def sees(self, *others: "Peer") -> bool:
        return self.members.trainers() == sorted(other.id for other in others)

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]


def host_of(number: int) -> str:
    return f"10.0.{number // 250}.{number % 250 + 1}"


def identity_of(number: int) -> Identity:
    return Identity(number.to_bytes(32, "big"))


def link_to(number: int) -> LinkPeer:
    return LinkPeer(identity_of(number).peer_id, Address(host_of(number), PORT))


async def until(condition: Callable[[], bool], timeout: float = 120.0) -> float:
    """Wait in virtual time until a condition holds; return how long that took."""
    loop = asyncio.get_running_loop()
    started_at = loop.time()
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.05)
    return loop.time() - started_at


def one_swarm(peers: Sequence[Peer]) -> bool:
    return all(peer.sees(*(other for other in peers if other is not peer)) for peer in peers)


async def swarm_of(world: SimWorld, count: int) -> list[Peer]:
    """Start `count` peers that all know the first; return them when everybody sees everybody."""
    peers = [await Peer(world, number, [0] if number else []).start() for number in range(count)]
    await until(lambda: one_swarm(peers))
    return peers


# BUG-D01
@pytest.mark.parametrize("bootstrap_position", [0, 4, 7])
def test_peers_that_start_together_always_become_one_swarm(bootstrap_position: int) -> None:
    for seed in range(30):
        world = SimWorld(seed=seed)

        async def story(world: SimWorld = world) -> None:
            order = list(range(1, 8))
            order.insert(bootstrap_position, 0)
            peers = []
            for number in order:
                peers.append(await Peer(world, number, [0] if number else []).start())
                await asyncio.sleep(0.006)
            assert await until(lambda: one_swarm(peers), 20.0) < 20.0
            assert all(peer.members.isolated_since is None for peer in peers)
            for peer in peers:
                await peer.leave()

        world.run(story())


# BUG-D01
def test_two_halves_that_know_the_same_list_find_each_other() -> None:
    world = SimWorld(seed=1)

    async def story() -> None:
        world.network.partition(map(host_of, (0, 1)), map(host_of, (2, 3)))
        peers = [await Peer(world, number, range(4)).start() for number in range(4)]
        await until(lambda: peers[0].sees(peers[1]) and peers[2].sees(peers[3]))
        world.network.heal()
        await until(lambda: one_swarm(peers), 60.0)

    world.run(story())


# BUG-D01
def test_a_peer_whose_bootstrap_is_not_there_yet_says_that_it_is_alone_and_joins_when_it_comes() -> None:
    world = SimWorld(seed=2)

    async def story() -> None:
        early = await Peer(world, 1, [0]).start()
        await asyncio.sleep(20.0)
        assert early.members.isolated_since is not None
        assert early.members.live() == []
        late = await Peer(world, 0).start()
        await until(lambda: one_swarm([early, late]), 31.0)
        assert early.members.isolated_since is None
        assert [kind for kind in early.kinds() if kind in ("isolated", "rejoined")] == ["isolated", "rejoined"]

    world.run(story())


# BUG-D02
def test_one_live_address_among_ten_dead_ones_is_enough() -> None:
    world = SimWorld(seed=3)

    async def story() -> None:
        for number in range(10, 15):
            world.network.hide(host_of(number))  # dialled without any answer; the other five refuse
        host = await Peer(world, 0).start()
        newcomer = await Peer(world, 1, [*range(10, 20), 0]).start()
        await newcomer.members.wait_joined(5.0)
        assert await until(lambda: one_swarm([host, newcomer]), 5.0) < 5.0

    world.run(story())


# BUG-D02
def test_when_all_addresses_are_dead_there_is_one_line_for_each() -> None:
    world = SimWorld(seed=4)

    async def story() -> str:
        world.network.hide(host_of(10))
        newcomer = await Peer(world, 1, range(10, 21)).start()
        with pytest.raises(UnreachableError) as caught:
            await newcomer.members.wait_joined(15.0)
        return str(caught.value)

    lines = world.run(story()).splitlines()
    assert [line.split("  ")[0] for line in lines] == [f"{host_of(number)}:{PORT}" for number in range(10, 21)]
    assert lines[0].split("  ")[1:] == ["timed out", "5.0 s"]
    assert lines[1].split("  ")[1:] == ["refused", "0.0 s"]


# BUG-D02
def test_peers_of_an_earlier_run_are_remembered_on_disk() -> None:
    world = SimWorld(seed=5)

    async def story() -> None:
        host, friend, third = await swarm_of(world, 3)
        await third.leave()
        await host.kill()
        again = await Peer(world, 2, [0]).start()
        await again.members.wait_joined(5.0)
        assert again.sees(friend)

    world.run(story())


# BUG-D03
def test_a_peer_returns_after_a_long_outage_and_says_since_when_it_was_cut_off() -> None:
    world = SimWorld(seed=6)

    async def story() -> None:
        peers = await swarm_of(world, 3)
        cut_off, rest = peers[2], peers[:2]
        world.network.partition([cut_off.host], [peer.host for peer in rest])
        await asyncio.sleep(900.0)  # longer than any record lives
        assert cut_off.members.live() == [] and all(len(peer.members.live()) == 1 for peer in rest)
        assert cut_off.members.isolated_since is not None
        world.network.heal()
        assert await until(lambda: one_swarm(peers), 60.0) < 60.0
        assert "isolated" in cut_off.kinds() and cut_off.kinds()[-3:].count("rejoined") <= 1

    world.run(story())


# BUG-D14
def test_an_address_that_failed_is_never_given_up() -> None:
    world = SimWorld(seed=7)

    async def story() -> None:
        world.network.hide(host_of(0))
        peer = await Peer(world, 1, [0]).start()
        await asyncio.sleep(3600.0)
        world.network._unreachable.clear()
        host = await Peer(world, 0).start()
        await until(lambda: one_swarm([peer, host]), 60.0)

    world.run(story())


def test_a_killed_peer_is_not_listed_a_second_later() -> None:
    world = SimWorld(seed=8)

    async def story() -> None:
        peers = await swarm_of(world, 4)
        await peers[3].kill()
        await asyncio.sleep(1.0)
        assert one_swarm(peers[:3])
        assert all(peer.kinds().count("peer-down") == 1 for peer in peers[:3])

    world.run(story())


def test_a_killed_peer_that_starts_again_is_listed_again() -> None:
    world = SimWorld(seed=9)

    async def story() -> None:
        peers = await swarm_of(world, 4)
        await peers[3].kill()
        await asyncio.sleep(5.0)
        peers[3] = await Peer(world, 3, [0]).start()
        await until(lambda: one_swarm(peers), 5.0)

    world.run(story())


def test_a_peer_is_outbid_by_its_next_life_even_when_its_clock_was_fast() -> None:
    world = SimWorld(seed=10)

    async def story() -> None:
        peers = await swarm_of(world, 2)
        fast = await Peer(world, 2, [0], wall_skew=100.0).start()
        await until(lambda: one_swarm([*peers, fast]))
        await fast.leave()
        await until(lambda: one_swarm(peers))
        again = await Peer(world, 2, [0]).start()
        await until(lambda: one_swarm([*peers, again]), 30.0)

    world.run(story())


# BUG-D16
def test_a_peer_that_leaves_is_gone_for_everybody_at_once_although_its_record_was_just_renewed() -> None:
    world = SimWorld(seed=11)

    async def story() -> None:
        peers = await swarm_of(world, 4)
        peers[3].members.update_own(num_inner_steps=1)
        await asyncio.sleep(5.1)
        started_at = asyncio.get_running_loop().time()
        await peers[3].leave()
        assert asyncio.get_running_loop().time() - started_at < 3.0
        assert one_swarm(peers[:3])
        await asyncio.sleep(100.0)
        assert one_swarm(peers[:3])

    world.run(story())


# BUG-D12
def test_a_peer_that_is_given_its_own_address_never_lists_itself_and_is_not_isolated() -> None:
    world = SimWorld(seed=12)

    async def story() -> None:
        host = await Peer(world, 0, [0]).start()
        await host.members.wait_joined(0.1)
        await asyncio.sleep(60.0)
        assert host.members.live() == [] and host.members.isolated_since is None
        assert host.transport.connected() == []

    world.run(story())


# BUG-D13
def test_a_copied_identity_stops_the_later_process_and_disturbs_nobody() -> None:
    world = SimWorld(seed=13)

    async def story() -> None:
        peers = await swarm_of(world, 3)
        await until(lambda: all(len(peer.transport.connected()) == 2 for peer in peers))
        copy = await Peer(world, 9, [0, 1], identity=2).start()
        with pytest.raises(IdentityInUseError):
            await copy.members.wait_joined(15.0)
        await copy.kill()
        assert one_swarm(peers)
        assert all("peer-down" not in peer.kinds() for peer in peers)

    world.run(story())


# BUG-D13
def test_a_copied_identity_that_first_meets_somebody_who_does_not_know_the_original_is_told_later() -> None:
    world = SimWorld(seed=13)

    async def story() -> None:
        original = await Peer(world, 2).start()
        friend = await Peer(world, 0, [2]).start()
        await until(lambda: original.sees(friend))
        stranger = await Peer(world, 1).start()
        copy = await Peer(world, 9, [0, 1], identity=2).start()
        told: list[Exception] = []
        copy.members.on_fatal(told.append)
        await until(lambda: copy.sees(stranger), 1.0)
        await until(lambda: bool(told), 15.0)
        assert isinstance(told[0], IdentityInUseError)
        await copy.leave()
        assert one_swarm([original, friend]) and len(told) == 1

    world.run(story())


def test_a_link_to_another_run_is_refused_at_once() -> None:
    world = SimWorld(seed=14)

    async def story() -> None:
        await Peer(world, 0, run_id=RunId(digest("test", b"another run"))).start()
        newcomer = await Peer(world, 1, [0]).start()
        with pytest.raises(LinkError):
            await newcomer.members.wait_joined(60.0)
        assert asyncio.get_running_loop().time() < 2.0

    world.run(story())


# BUG-D15
def test_peers_return_to_a_restarted_bootstrap_without_a_storm() -> None:
    world = SimWorld(seed=15)
    count = 40

    async def story() -> None:
        host = await Peer(world, 0).start()
        peers = [await Peer(world, number, [0]).start() for number in range(1, count)]
        await until(lambda: all(host.id in peer.transport.connected() for peer in peers))
        attempts = count_dials(world, host_of(0))
        await host.kill()
        await asyncio.sleep(5.0)
        host = await Peer(world, 0).start()
        assert not any(host.id in peer.members.trainers() for peer in peers)
        await until(lambda: all(host.id in peer.members.trainers() for peer in peers), 60.0)
        restarted = [second for second in attempts.elements() if second >= min(attempts) + 5]
        assert len(restarted) < 3 * count

    world.run(story())


def count_dials(world: SimWorld, host: str) -> Counter[int]:
    """Count, by virtual second, how often a host is dialled from now on."""
    attempts: Counter[int] = Counter()
    listener_at = world.network.listener_at

    def counted(address: Address) -> Any:
        if address.host == host:
            attempts[int(asyncio.get_running_loop().time())] += 1
        return listener_at(address)

    world.network.listener_at = counted  # type: ignore[method-assign]
    return attempts


def test_news_travels_through_a_swarm_that_nobody_knows_as_a_whole() -> None:
    world = SimWorld(seed=16)

    async def story() -> None:
        peers = [await Peer(world, 0).start()]
        for number in range(1, 30):
            peers.append(await Peer(world, number, [number - 1]).start())  # each knows one other
        await until(lambda: one_swarm(peers), 60.0)

    world.run(story())


# BUG-D17, BUG-X08
def test_records_that_cannot_be_believed_are_dropped_and_counted() -> None:
    world = SimWorld(seed=17)

    async def story() -> None:
        victim, liar = await swarm_of(world, 2)
        junk = [b"", b"\xc1", liar.members.signed_record(liar.id)[:-1], bytes(1024)]  # type: ignore[index]
        await liar.transport.call(victim.id, Tell(records=tuple(junk)), Told, timeout=1.0)
        assert victim.members._roster.num_refused == len(junk)
        assert victim.sees(liar)

    world.run(story())


def test_progress_reaches_the_others_without_a_record_for_every_step() -> None:
    world = SimWorld(seed=18)

    async def story() -> None:
        a, b = await swarm_of(world, 2)
        first = b.members.own_record.sequence
        for step in range(300):
            b.members.update_own(num_inner_steps=step)
            await asyncio.sleep(0.1)
        await until(lambda: a.members.live()[0].num_inner_steps == 299, 30.0)
        assert b.members.own_record.sequence - first <= 8

    world.run(story())
