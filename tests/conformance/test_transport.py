"""The transport over both networks: stories of two peers."""

import asyncio
import gc
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from p2ptrain.errors import IdentityInUseError, LinkError, NetworkError, Refused
from p2ptrain.events import Event, Events
from p2ptrain.ids import RunId
from p2ptrain.net.identity import Identity
from p2ptrain.net.transport import Transport, TransportLimits
from p2ptrain.runtime import Address, Runtime
from p2ptrain.wire.messages import Message

DEADLINE = 30.0
RUN = RunId(b"r" * 32)


class Echo(Message):
    method: ClassVar[str] = "test.echo"
    text: str


class Wait(Message):
    method: ClassVar[str] = "test.wait"


class Fetch(Message):
    method: ClassVar[str] = "test.fetch"
    body_bytes: int


class Said(Message):
    text: str


class Peer:
    """A transport with a few handlers, and what happened to it."""

    def __init__(self, world: Any, number: int, **arguments: Any) -> None:
        self.runtime: Runtime = arguments.pop("runtime", None) or world.runtime(number)
        self.host: str = world.host(number)
        self.events: list[Event] = []
        self.waiting = asyncio.Event()  # a Wait is being handled
        self.was_cancelled = asyncio.Event()
        events = Events(self.runtime.clock)
        events.subscribe(self.events.append)
        identity = arguments.pop("identity", None) or Identity.generate(self.runtime.entropy)
        run_id = arguments.pop("run_id", RUN)
        self.transport = Transport(runtime=self.runtime, identity=identity, run_id=run_id, events=events, **arguments)
        self.id, self.identity = self.transport.peer_id, identity
        self.transport.handle(Echo, self._echo, max_body_bytes=1 << 26)
        self.transport.handle(Wait, self._wait)
        self.transport.handle(Fetch, self._fetch)

    async def listen(self) -> Address:
        return await self.transport.listen(Address(self.host, 0))

    async def _echo(self, sender: str, request: Echo, body: bytearray) -> tuple[Said, bytearray]:
        return Said(text=request.text), body

    async def _wait(self, sender: str, request: Wait, body: bytearray) -> Said:
        self.waiting.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            self.was_cancelled.set()
            raise
        return Said(text="awake")

    async def _fetch(self, sender: str, request: Fetch, body: bytearray) -> tuple[Said, bytes]:
        return Said(text="here"), bytes(request.body_bytes)

    async def echo(self, other: "Peer", text: str = "hello", **arguments: Any) -> Any:
        return await self.transport.call(other.id, Echo(text=text), Said, timeout=DEADLINE, **arguments)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not condition():
            await asyncio.sleep(0.005)


async def pair(world: Any, **arguments: Any) -> tuple[Peer, Peer]:
    """Return two connected peers; the first one dialled."""
    one, other = Peer(world, 1, **arguments), Peer(world, 2)
    await one.listen()
    await one.transport.dial(await other.listen())
    await until(lambda: bool(other.transport.connected()))
    return one, other


async def close(*peers: Peer) -> None:
    await asyncio.gather(*(peer.transport.close() for peer in peers))
    for peer in peers:
        assert [event for event in peer.events if event.kind == "task-failed"] == []
    leftover = asyncio.all_tasks() - {asyncio.current_task()}
    assert not leftover


def test_either_end_calls_over_one_connection(world):
    async def story():
        dialler, listener = await pair(world)
        assert (await dialler.echo(listener, "to you")).message.text == "to you"
        assert (await listener.echo(dialler, "and back")).message.text == "and back"
        assert dialler.transport.connected() == [listener.id]
        assert dialler.transport.counters()["num_connections"] == listener.transport.counters()["num_connections"] == 1
        await close(dialler, listener)

    world.run(story)


def test_a_body_goes_there_and_back_on_the_bulk_connection(world):
    async def story():
        one, other = await pair(world)
        body = bytes(range(256)) * 20_000
        parts = [body[:1000], memoryview(body)[1000:4_000_000], bytearray(body[4_000_000:])]
        reply = await one.echo(other, body=parts, bulk=True, max_body_bytes=len(body))
        assert reply.body == body
        assert one.transport.counters()["num_connections"] == 2
        memory = bytearray(len(body))
        reply = await one.echo(other, body=body, bulk=True, into=memoryview(memory))
        assert memory == body
        assert reply.body == b""
        await close(one, other)

    world.run(story)


def test_a_probe_ends_with_the_handshake_and_leaves_the_connection_alone(world):
    async def story():
        one, other = await pair(world)
        address = one.transport._listener.address
        before = [list(peer.transport._pool.sessions) for peer in (one, other)]
        for _ in range(3):
            await other.transport.probe(address, one.id)
        with pytest.raises(NetworkError, match="another peer is there"):
            await other.transport.probe(address, Identity.generate(one.runtime.entropy).peer_id)
        assert (await other.echo(one, "still here")).message.text == "still here"
        assert [list(peer.transport._pool.sessions) for peer in (one, other)] == before
        assert other.transport.addresses_of(one.id) == []
        await close(one, other)

    world.run(story)


def test_a_peer_that_cannot_be_dialled_is_asked_to_open_the_bulk_connection(world):
    async def story():
        hidden, public = Peer(world, 1), Peer(world, 2)
        await hidden.transport.dial(await public.listen())
        await until(lambda: bool(public.transport.connected()))
        assert public.transport.addresses_of(hidden.id) == []
        reply = await public.echo(hidden, body=b"x" * 100_000, bulk=True, max_body_bytes=100_000)
        assert len(reply.body) == 100_000
        await close(hidden, public)

    world.run(story)


def test_a_call_to_oneself_is_dispatched_in_place(world):
    async def story():
        peer = Peer(world, 1)
        reply = await peer.echo(peer, "monologue", body=b"notes", max_body_bytes=5)
        assert (reply.message.text, reply.body) == ("monologue", b"notes")
        memory = bytearray(5)
        await peer.echo(peer, body=b"notes", into=memoryview(memory))
        assert memory == b"notes"
        await close(peer)

    world.run(story)


def test_an_unknown_method_is_refused_and_the_connection_stays(world):
    class Unheard(Message):
        method: ClassVar[str] = "test.unheard"

    async def story():
        one, other = await pair(world)
        with pytest.raises(Refused) as caught:
            await one.transport.call(other.id, Unheard(), Said, timeout=DEADLINE)
        assert caught.value.code == "unknown-method"
        assert (await one.echo(other)).message.text == "hello"
        await close(one, other)

    world.run(story)


def test_a_refusal_at_the_door_costs_no_body_bytes(world):
    class Give(Message):
        method: ClassVar[str] = "test.give"

    def admit(sender: str, request: Give, body_bytes: int) -> None:
        raise Refused("busy", f"no room for {body_bytes} bytes", retry_after=2.5)

    async def handler(sender: str, request: Give, body: bytearray) -> Said:
        raise AssertionError("a request that was not admitted is not handled")

    async def story():
        one, other = await pair(world)
        other.transport.handle(Give, handler, admit=admit, max_body_bytes=1 << 30)
        with pytest.raises(Refused, match="no room for 5000000 bytes") as caught:
            await one.transport.call(other.id, Give(), Said, timeout=DEADLINE, body=bytes(5_000_000))
        assert (caught.value.code, caught.value.retry_after) == ("busy", 2.5)
        assert one.transport.counters()["bytes_sent"] < 2000
        await close(one, other)

    world.run(story)


def test_a_body_above_the_limit_of_its_method_is_refused_by_size(world):  # BUG-T08, BUG-X04
    async def story():
        one, other = await pair(world)
        with pytest.raises(Refused, match=r"test\.fetch with 10 bytes; the limit is 0") as caught:
            await one.transport.call(other.id, Fetch(body_bytes=1), Said, timeout=DEADLINE, body=bytes(10))
        assert caught.value.code == "too-large"
        with pytest.raises(Refused, match="the reply has 11 bytes, the caller takes 10"):
            await one.transport.call(other.id, Fetch(body_bytes=11), Said, timeout=DEADLINE, max_body_bytes=10)
        await close(one, other)

    world.run(story)


def test_a_handler_that_fails_ends_its_call_only(world):
    class Divide(Message):
        method: ClassVar[str] = "test.divide"

    async def handler(sender: str, request: Divide, body: bytearray) -> Said:
        return Said(text=str(1 // 0))

    async def story():
        one, other = await pair(world)
        other.transport.handle(Divide, handler)
        with pytest.raises(Refused, match="failed at the other end"):
            await one.transport.call(other.id, Divide(), Said, timeout=DEADLINE)
        assert [event.fields["error"] for event in other.events if event.kind == "task-failed"] == [
            "ZeroDivisionError: integer division or modulo by zero"
        ]
        other.events.clear()
        assert (await one.echo(other)).message.text == "hello"
        await close(one, other)

    world.run(story)


def test_a_call_that_is_cancelled_is_cancelled_at_the_other_end(world):
    async def story():
        one, other = await pair(world)
        call = asyncio.ensure_future(one.transport.call(other.id, Wait(), Said, timeout=DEADLINE))
        await other.waiting.wait()
        call.cancel()
        async with asyncio.timeout(DEADLINE):
            await other.was_cancelled.wait()
        assert (await one.echo(other)).message.text == "hello"
        await close(one, other)

    world.run(story)


def test_a_closed_transport_says_so(world):
    async def story():
        one, other = await pair(world)
        address = one.transport.addresses_of(other.id)[0]
        await one.transport.close()
        for attempt in (one.echo(other), one.transport.dial(address)):
            with pytest.raises(NetworkError, match="closed its transport"):
                await attempt
        await close(other)

    world.run(story)


def test_a_call_that_takes_too_long_names_who_and_what(world):
    async def story():
        one, other = await pair(world)
        with pytest.raises(NetworkError, match=rf"{other.id[-6:]} has not answered test\.wait within 0\.1 s"):
            await one.transport.call(other.id, Wait(), Said, timeout=0.1)
        async with asyncio.timeout(DEADLINE):
            await other.was_cancelled.wait()
        await close(one, other)

    world.run(story)


def test_cancelling_a_transfer_stops_its_bytes(world):  # BUG-T02
    async def story():
        one, other = await pair(world)
        fetch = one.transport.call(
            other.id, Fetch(body_bytes=64 << 20), Said, timeout=DEADLINE, bulk=True, max_body_bytes=64 << 20
        )
        call = asyncio.ensure_future(fetch)
        await until(lambda: one.transport.counters()["bytes_received"] > 1 << 20)
        call.cancel()
        await asyncio.wait({call})
        before = one.transport.counters()["bytes_received"]
        for _ in range(3):
            await one.echo(other, bulk=True)  # a round trip on the same connection: what was under way has arrived
        assert one.transport.counters()["bytes_received"] - before < 2 << 20
        await close(one, other)

    world.run(story)


def test_large_bodies_both_ways_at_once_do_not_block_each_other(world):  # BUG-T11
    async def story():
        one, other = await pair(world)
        body = bytes(8 << 20)
        arguments = {"body": body, "bulk": True, "max_body_bytes": len(body)}
        async with asyncio.timeout(DEADLINE):
            replies = await asyncio.gather(
                *(one.echo(other, **arguments) for _ in range(3)), *(other.echo(one, **arguments) for _ in range(3))
            )
        assert all(reply.body == body for reply in replies)
        await close(one, other)

    world.run(story)


def test_simultaneous_dials_leave_one_connection_and_lose_no_call(world):  # BUG-T10
    async def story():
        for _ in range(50):
            one, other = Peer(world, 1, runtime=runtimes[0]), Peer(world, 2, runtime=runtimes[1])
            first, second = await one.listen(), await other.listen()
            one.transport.learn(other.id, [second])
            other.transport.learn(one.id, [first])
            replies = await asyncio.gather(*(a.echo(b) for a, b in ((one, other), (other, one)) for _ in range(2)))
            assert len(replies) == 4
            counters = [peer.transport.counters for peer in (one, other)]
            await until(lambda counters=counters: all(count()["num_connections"] == 1 for count in counters))
            await asyncio.gather(one.echo(other), other.echo(one))
            await close(one, other)

    async def with_two_machines():
        runtimes.extend((world.runtime(1), world.runtime(2)))
        await story()

    runtimes: list[Runtime] = []
    world.run(with_two_machines)


def test_a_peer_recognises_itself_however_it_is_dialled(world):  # BUG-D12
    async def story():
        peer = Peer(world, 1)
        own = await peer.listen()
        for _ in range(2):
            with pytest.raises(NetworkError, match="this is myself"):
                await peer.transport.dial(own)
        assert peer.transport.connected() == []
        await close(peer)

    world.run(story)


def test_a_copied_identity_is_turned_away_by_whoever_knows_the_first(world):  # BUG-D13
    async def story():
        original, friend = await pair(world)
        copy = Peer(world, 3, identity=original.identity)
        address = friend.transport.addresses_of(original.id)
        friend_address = original.transport.addresses_of(friend.id)[0]
        with pytest.raises(IdentityInUseError, match="in use by another live process"):
            await copy.transport.dial(friend_address)
        assert friend.transport.connected() == [original.id]
        assert (await original.echo(friend)).message.text == "hello"
        assert address == []
        await close(original, copy, friend)

    world.run(story)


def test_a_copied_identity_that_dials_the_original_is_told_so(world):  # BUG-D13
    async def story():
        original = Peer(world, 1)
        copy = Peer(world, 2, identity=original.identity)
        address = await original.listen()
        with pytest.raises(IdentityInUseError, match=str(address)):
            await copy.transport.dial(address)
        await close(original, copy)

    world.run(story)


def test_a_restart_is_not_mistaken_for_a_copy(world):  # BUG-D13
    async def story():
        before, friend = await pair(world)
        address = before.transport.addresses_of(friend.id)[0]
        await before.transport.close()
        after = Peer(world, 3, identity=before.identity)
        await after.transport.dial(address)
        assert (await after.echo(friend)).message.text == "hello"
        await close(after, friend)

    world.run(story)


def test_another_run_is_named(world):
    async def story():
        one, other = Peer(world, 1), Peer(world, 2, run_id=RunId(b"s" * 32))
        with pytest.raises(LinkError, match=r"trains run \w+, not \w+"):
            await one.transport.dial(await other.listen())
        assert other.transport.connected() == []
        await close(one, other)

    world.run(story)


def test_another_peer_than_expected_is_named(world):
    async def story():
        one, other, third = (Peer(world, number) for number in (1, 2, 3))
        address = await other.listen()
        with pytest.raises(NetworkError, match="another peer is there"):
            await one.transport.dial(address, expected=third.id)
        one.transport.learn(third.id, [address])
        with pytest.raises(NetworkError, match="another peer is there"):
            await one.echo(third)
        await close(one, other, third)

    world.run(story)


def test_a_peer_without_a_known_address_is_unreachable(world):
    async def story():
        one, other = Peer(world, 1), Peer(world, 2)
        with pytest.raises(NetworkError, match="no address"):
            await one.echo(other)
        await close(one, other)

    world.run(story)


def test_callbacks_tell_who_came_who_left_and_what_record_they_sent(world):
    async def story():
        one, other = Peer(world, 1), Peer(world, 2)
        seen: list[tuple[str, object]] = []
        other.transport.on_connected(lambda peer: seen.append(("up", peer)))
        other.transport.on_disconnected(lambda peer: seen.append(("down", peer)))
        other.transport.on_record(lambda peer, record: seen.append((peer, record)))
        one.transport.set_own_record(b"signed addresses")
        await one.transport.dial(await other.listen())
        await until(lambda: len(seen) == 2)
        await one.transport.close()
        await until(lambda: len(seen) == 3)
        assert sorted(seen[:2]) == sorted([("up", one.id), (one.id, b"signed addresses")])
        assert seen[2] == ("down", one.id)
        await close(other)

    world.run(story)


def test_messages_can_be_watched(world):
    async def story():
        one, other = await pair(world)
        seen: list[tuple[str, str, str]] = []
        for peer in (one, other):
            peer.transport.on_message(lambda direction, method, who: seen.append((direction, method, who)))
        await one.echo(other)
        assert seen == [("send", "test.echo", other.id), ("receive", "test.echo", one.id)]
        await close(one, other)

    world.run(story)


def test_the_idlest_connection_makes_room(world):  # BUG-T15
    async def story():
        hub = Peer(world, 1, limits=TransportLimits.within(4))
        address = await hub.listen()
        guests = [Peer(world, number) for number in range(2, 10)]
        for guest in guests:
            await guest.transport.dial(address)
            assert (await guest.echo(hub)).message.text == "hello"
        await until(lambda: hub.transport.counters()["num_connections"] <= 4)
        assert guests[-1].id in hub.transport.connected()
        assert guests[0].id not in hub.transport.connected()
        await close(hub, *guests)

    world.run(story)


def test_a_burst_of_calls_right_after_a_reconnect_arrives(world):  # BUG-T16
    async def story():
        one, other = await pair(world)
        address = one.transport.addresses_of(other.id)[0]
        for _ in range(5):
            await one.transport.close()
            one = Peer(world, 1, runtime=one.runtime, identity=one.identity)
            one.transport.learn(other.id, [address])
            replies = await asyncio.gather(*(one.echo(other, str(number)) for number in range(300)))
            assert [reply.message.text for reply in replies] == [str(number) for number in range(300)]
        await close(one, other)

    world.run(story)


def test_collecting_garbage_ends_no_task(world):  # BUG-T14
    async def story():
        one, other = await pair(world)
        calls = [asyncio.ensure_future(one.echo(other, body=bytes(300_000), max_body_bytes=300_000)) for _ in range(5)]
        while not all(call.done() for call in calls):
            gc.collect()
            await asyncio.sleep(0.005)
        assert all(len(call.result().body) == 300_000 for call in calls)
        await close(one, other)

    world.run(story)
