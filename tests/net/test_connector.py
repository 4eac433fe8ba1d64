"""How connections come up when several things happen at once, in virtual time."""

import asyncio
import random
from typing import Any, ClassVar

import pytest

from p2ptrain.errors import NetworkError
from p2ptrain.events import Events
from p2ptrain.ids import PeerId, RunId
from p2ptrain.net.identity import Identity
from p2ptrain.net.transport import Transport, TransportLimits
from p2ptrain.runtime import Address
from p2ptrain.sim.ports import SimWorld
from p2ptrain.wire.messages import Message

RUN = RunId(b"r" * 32)


class Hail(Message):
    method: ClassVar[str] = "test.hail"


class Nap(Message):
    method: ClassVar[str] = "test.nap"


class Done(Message):
    pass


async def answer(sender: PeerId, request: Message, body: bytearray) -> Done:
    return Done()


async def nap(sender: PeerId, request: Message, body: bytearray) -> Done:
    await asyncio.sleep(3600)
    return Done()


def start(world: SimWorld, host: str, *, identity: Identity | None = None, **arguments: Any) -> Transport:
    runtime = world.runtime(host)
    identity = identity or Identity.generate(runtime.entropy)
    transport = Transport(runtime=runtime, identity=identity, run_id=RUN, events=Events(runtime.clock), **arguments)
    transport.handle(Hail, answer)
    transport.handle(Nap, nap)
    return transport


async def hail(caller: Transport, called: Transport, *, timeout: float = 30) -> None:
    await caller.call(called.peer_id, Hail(), Done, timeout=timeout)


def test_two_hundred_simultaneous_dials_leave_one_connection_each():  # BUG-T10
    world, chance = SimWorld(seed=3), random.Random(3)

    async def meet(number: int) -> None:
        hosts = f"10.1.{number}.1", f"10.1.{number}.2"
        world.network.set_latency(*hosts, chance.choice([0.001, 0.02, 0.2]))
        one, other = (start(world, host) for host in hosts)
        first, second = [await peer.listen(Address(host, 0)) for peer, host in zip((one, other), hosts, strict=True)]
        one.learn(other.peer_id, [second])
        other.learn(one.peer_id, [first])

        async def call_from(caller: Transport, called: Transport, delay: float) -> None:
            await asyncio.sleep(delay)
            for _ in range(2):
                await hail(caller, called)

        delay = chance.choice([0.0, 0.001, 0.03, 0.3])
        await asyncio.gather(call_from(one, other, 0.0), call_from(other, one, delay))
        await asyncio.sleep(1)
        assert one.counters()["num_connections"] == other.counters()["num_connections"] == 1
        await asyncio.gather(one.close(), other.close())

    async def story() -> None:
        await asyncio.gather(*(meet(number) for number in range(200)))

    world.run(story())


def test_a_dead_address_does_not_delay_the_live_one_for_long():
    world = SimWorld(seed=1)
    world.network.hide("10.0.0.9")

    async def story() -> None:
        one, other = start(world, "10.0.0.1"), start(world, "10.0.0.2")
        one.learn(other.peer_id, [Address("10.0.0.9", 4001), await other.listen(Address("10.0.0.2", 0))])
        await hail(one, other)
        assert asyncio.get_running_loop().time() < 1
        await asyncio.gather(one.close(), other.close())

    world.run(story())


def test_every_reason_is_told_when_no_address_answers():
    world = SimWorld(seed=1)

    async def story() -> None:
        one, other = start(world, "10.0.0.1"), start(world, "10.0.0.2")
        world.network.hide("10.0.0.8")
        one.learn(other.peer_id, [Address("10.0.0.8", 4001), Address("10.0.0.9", 4001)])
        with pytest.raises(NetworkError, match=r"10\.0\.0\.8:4001: timed out; 10\.0\.0\.9:4001: refused"):
            await hail(one, other)
        await asyncio.gather(one.close(), other.close())

    world.run(story())


def test_a_peer_that_moved_replaces_its_connection_that_went_silent():  # BUG-D13
    world = SimWorld(seed=1)

    async def story() -> None:
        friend, before = start(world, "10.0.0.1"), start(world, "10.0.0.2")
        address = await friend.listen(Address("10.0.0.1", 0))
        identity = before._own.identity
        await before.dial(address)
        await asyncio.sleep(1)
        world.network.partition({"10.0.0.1"}, {"10.0.0.2"})
        after = start(world, "10.0.0.3", identity=identity)
        await after.dial(address)
        await asyncio.sleep(1)
        await hail(friend, after)
        assert asyncio.get_running_loop().time() < 6
        await asyncio.gather(friend.close(), before.close(), after.close())

    world.run(story())


def test_a_reconnect_is_used_when_the_preferred_connection_is_dead():
    world = SimWorld(seed=1)

    async def story() -> None:
        one, other = start(world, "10.0.0.1"), start(world, "10.0.0.2")
        addresses = {
            peer.peer_id: await peer.listen(Address(host, 0)) for peer, host in ((one, "10.0.0.1"), (other, "10.0.0.2"))
        }
        small, large = sorted((one, other), key=lambda peer: peer.peer_id)
        await small.dial(addresses[large.peer_id])  # the connection that both prefer
        await asyncio.sleep(1)
        world.network.partition({"10.0.0.1"}, {"10.0.0.2"})
        for session in list(large._pool.sessions):
            session.end(NetworkError("its router forgot the connection"))
        world.network.heal()
        large.learn(small.peer_id, [addresses[small.peer_id]])
        await hail(large, small)
        await asyncio.sleep(5)
        await asyncio.gather(hail(small, large), hail(large, small))
        await asyncio.gather(small.close(), large.close())

    world.run(story())


def test_a_flood_of_mute_connections_does_not_keep_others_out():  # BUG-X03
    world = SimWorld(seed=1)

    async def story() -> None:
        hub, guest = start(world, "10.0.0.1"), start(world, "10.0.0.2")
        address = await hub.listen(Address("10.0.0.1", 0))
        mute = world.runtime("10.0.0.3").network
        for _ in range(300):
            await mute.connect(address)
        await guest.dial(address)
        await asyncio.sleep(20)
        assert hub.counters()["num_connections"] == 1
        assert len(hub._tasks) == 1  # the reader: no handshake is left
        await asyncio.gather(hub.close(), guest.close())

    world.run(story())


def test_a_peer_whose_connections_are_all_busy_says_so():  # BUG-T15
    world = SimWorld(seed=1)

    async def story() -> None:
        hub = start(world, "10.0.0.1", limits=TransportLimits.within(3))
        address = await hub.listen(Address("10.0.0.1", 0))
        guests = [start(world, f"10.0.0.{number}") for number in range(2, 6)]
        for guest in guests[:3]:
            await guest.dial(address)
        naps = [asyncio.ensure_future(guest.call(hub.peer_id, Nap(), Done, timeout=3600)) for guest in guests[:3]]
        await asyncio.sleep(1)
        with pytest.raises(NetworkError, match="has no free connection"):
            await guests[3].dial(address)
        naps[0].cancel()
        await asyncio.sleep(1)
        await guests[3].dial(address)
        for sleeper in naps:
            sleeper.cancel()
        await asyncio.gather(hub.close(), *(guest.close() for guest in guests))

    world.run(story())


def test_a_seed_repeats_a_run_to_the_last_message():
    def trace(seed: int) -> list[tuple[float, str, str, str]]:
        world, seen = SimWorld(seed=seed), []

        async def story() -> None:
            peers = [start(world, f"10.0.0.{number}") for number in range(1, 9)]
            addresses = [await peer.listen(Address(f"10.0.0.{number}", 0)) for number, peer in enumerate(peers, 1)]
            loop = asyncio.get_running_loop()
            for peer in peers:
                for other, address in zip(peers, addresses, strict=True):
                    peer.learn(other.peer_id, [address])
                peer.on_message(lambda direction, method, who: seen.append((loop.time(), direction, method, who)))
            pairs = [(one, other) for one in peers for other in peers]
            await asyncio.gather(*(hail(one, other) for one, other in pairs))
            await asyncio.gather(*(peer.close() for peer in peers))

        world.run(story())
        return seen

    assert trace(5) == trace(5)
    assert trace(5) != trace(6)
