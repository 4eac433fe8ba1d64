"""One connection against an end that is slow, silent or hostile, in virtual time."""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar

import pytest

from p2ptrain.errors import NetworkError
from p2ptrain.events import Event, Events
from p2ptrain.ids import RunId
from p2ptrain.net.bodies import WINDOW_BYTES
from p2ptrain.net.handshake import shake_hands
from p2ptrain.net.identity import Identity
from p2ptrain.net.streams import MAX_SERVED, STALL_TIMEOUT
from p2ptrain.net.transport import SMALL_BODY_BYTES, Transport
from p2ptrain.runtime import Address, SecureStream
from p2ptrain.sim.ports import SimWorld
from p2ptrain.wire.frames import (
    PREFIX_BYTES,
    Answer,
    Credit,
    Data,
    Hello,
    Kind,
    Open,
    Ping,
    Refusal,
    Reset,
    Retire,
    encode_frame,
    parse_head,
    parse_prefix,
)
from p2ptrain.wire.messages import Message

RUN = RunId(b"r" * 32)
VICTIM, CLIENT = "10.0.0.1", "10.0.0.2"


class Store(Message):
    method: ClassVar[str] = "test.store"


class Fetch(Message):
    method: ClassVar[str] = "test.fetch"
    body_bytes: int


class Nap(Message):
    method: ClassVar[str] = "test.nap"


class Done(Message):
    pass


class Victim:
    """A transport with a few handlers, and what it noticed."""

    def __init__(self, world: SimWorld, host: str = VICTIM) -> None:
        runtime = world.runtime(host)
        self.events: list[Event] = []
        self.stored: list[bytearray] = []
        events = Events(runtime.clock)
        events.subscribe(self.events.append)
        identity = Identity.generate(runtime.entropy)
        self.host, self.clock = host, runtime.clock
        self.transport = Transport(runtime=runtime, identity=identity, run_id=RUN, events=events)
        self.transport.handle(Store, self._store, max_body_bytes=1 << 30)
        self.transport.handle(Fetch, self._fetch)
        self.transport.handle(Nap, self._nap)

    async def _store(self, sender: str, request: Store, body: bytearray) -> Done:
        self.stored.append(body)
        return Done()

    async def _fetch(self, sender: str, request: Fetch, body: bytearray) -> tuple[Done, bytes]:
        return Done(), bytes(request.body_bytes)

    async def _nap(self, sender: str, request: Nap, body: bytearray) -> Done:
        await asyncio.sleep(3600)
        return Done()

    @property
    def violations(self) -> list[str]:
        return [event.fields["code"] for event in self.events if event.kind == "protocol-error"]

    @property
    def bugs(self) -> list[Event]:
        return [event for event in self.events if event.kind == "task-failed"]


async def raw_client(world: SimWorld, victim: Victim) -> SecureStream:
    """Return a stream on which the handshake is done, and anything may be said."""
    runtime = world.runtime(CLIENT)
    address = await victim.transport.listen(Address(victim.host, 0))
    raw = await runtime.network.connect(address)
    stream = await runtime.network.secure(raw, Identity.generate(runtime.entropy), server=False)

    async def accept(hello: Hello) -> None:
        """Whoever it is."""

    hello = Hello(
        magic="p2ptrain",
        min_protocol=1,
        max_protocol=1,
        build="raw",
        run_id=RUN,
        nonce=b"n" * 16,
        lane="control",
        dial=1,
    )
    await shake_hands(stream, hello, accept)
    return stream


async def read_frame(stream: SecureStream) -> tuple[Message, int]:
    buffer = memoryview(bytearray(1 << 20))
    await stream.read_into(buffer[:PREFIX_BYTES])
    prefix = parse_prefix(buffer[:PREFIX_BYTES])
    await stream.read_into(buffer[: prefix.head_bytes])
    head = parse_head(prefix.kind, buffer[: prefix.head_bytes])
    await stream.read_into(buffer[: prefix.piece_bytes])
    return head, prefix.piece_bytes


def opened(request: Message, *, stream: int = 1, body_bytes: int = 0, max_reply_bytes: int = 0) -> bytes:
    return encode_frame(
        Open(
            stream=stream,
            method_name=request.method,
            body_bytes=body_bytes,
            max_reply_bytes=max_reply_bytes,
            message=request.encode(),
        )
    )


def data(stream: int, count: int) -> bytes:
    return encode_frame(Data(stream=stream), count) + bytes(count)


async def until_closed(stream: SecureStream) -> None:
    with pytest.raises(NetworkError):
        async with asyncio.timeout(120):
            while True:
                await read_frame(stream)


def told(story: Callable[[SimWorld, Victim], Any], **arguments: Any) -> Victim:
    """Run a story about a victim and return it."""
    world = SimWorld(seed=1, **arguments)
    victims: list[Victim] = []

    async def whole() -> None:
        victims.append(Victim(world))
        await story(world, victims[0])
        await victims[0].transport.close()

    world.run(whole())
    assert victims[0].bugs == []
    return victims[0]


@pytest.mark.parametrize(
    "words",
    [
        b"\xff" * 64,
        bytes([Kind.PING, 0, 0, 1, 0, 0, 0, 0, 0xC1]),
        bytes([Kind.DATA, 0, 0, 1]) + (1 << 31).to_bytes(4, "big") + b"\x80",
        data(1, 10),
        encode_frame(Credit(stream=99, more_bytes=1)),
        encode_frame(Answer(stream=2, body_bytes=0, message=b"\x80")),
        opened(Nap(), stream=2),
        opened(Nap(), stream=1) + opened(Nap(), stream=1),
        opened(Nap(), stream=1) + data(1, 10),
        opened(Store(), body_bytes=100) + data(1, 200),
        encode_frame(Open(stream=1, method_name="test.fetch", body_bytes=0, max_reply_bytes=0, message=b"\xc1")),
        encode_frame(Retire()) + opened(Nap()),
        encode_frame(Reset(stream=1)),
    ],
)
def test_whatever_breaks_the_protocol_ends_its_connection_and_nothing_else(words):  # BUG-X02, BUG-X04
    async def story(world: SimWorld, victim: Victim) -> None:
        client = await raw_client(world, victim)
        await client.write(words)
        await until_closed(client)
        assert victim.transport.connected() == []

    assert len(told(story).violations) == 1


def test_random_damage_never_ends_more_than_a_connection():  # BUG-X02
    chance = random.Random(4)
    frames = [
        opened(Store(), body_bytes=50),
        data(1, 50),
        encode_frame(Ping(token=1)),
        encode_frame(Credit(stream=1, more_bytes=9)),
    ]

    async def story(world: SimWorld, victim: Victim) -> None:
        client = await raw_client(world, victim)
        words = bytearray(b"".join(chance.choice(frames) for _ in range(20)))
        for _ in range(chance.randrange(1, 10)):
            words[chance.randrange(len(words))] = chance.randrange(256)
        await client.write(words)
        await asyncio.sleep(1)
        client.abort()
        await asyncio.sleep(1)

    for _ in range(60):
        told(story)


def test_a_stream_that_has_ended_may_still_receive_what_was_under_way():
    async def story(world: SimWorld, victim: Victim) -> None:
        client = await raw_client(world, victim)
        await client.write(opened(Store(), body_bytes=1000))
        assert await read_frame(client) == (Credit(stream=1, more_bytes=1000), 0)
        await client.write(data(1, 500), encode_frame(Reset(stream=1)), data(1, 500), encode_frame(Ping(token=7)))
        head, _ = await read_frame(client)
        assert head.model_dump() == {"token": 7}
        assert victim.stored == []

    assert told(story).violations == []


def test_a_body_is_only_sent_within_the_credit_that_was_given():
    async def story(world: SimWorld, victim: Victim) -> None:
        client = await raw_client(world, victim)
        size = 3 * WINDOW_BYTES
        await client.write(opened(Fetch(body_bytes=size), max_reply_bytes=size))
        received = 0
        assert isinstance((await read_frame(client))[0], Answer)
        while received < WINDOW_BYTES:
            received += (await read_frame(client))[1]
        assert received == WINDOW_BYTES
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3):
                await read_frame(client)

    told(story)


@pytest.mark.parametrize("bytes_per_second", [0, 2])
def test_a_body_that_stands_still_or_drips_is_given_up(bytes_per_second):  # BUG-X03, BUG-T11
    async def story(world: SimWorld, victim: Victim) -> None:
        client = await raw_client(world, victim)
        await client.write(opened(Store(), body_bytes=100_000))
        await read_frame(client)
        began_at = victim.clock.monotonic()

        async def drip() -> None:
            while bytes_per_second:
                await client.write(data(1, bytes_per_second))
                await asyncio.sleep(1)

        dripping = asyncio.ensure_future(drip())
        assert await read_frame(client) == (Reset(stream=1), 0)
        assert victim.clock.monotonic() - began_at < 2 * STALL_TIMEOUT
        dripping.cancel()

    told(story)


def test_a_caller_gives_up_a_reply_that_stands_still():
    async def story(world: SimWorld, victim: Victim) -> None:
        client = await raw_client(world, victim)
        while not victim.transport.connected():
            await asyncio.sleep(0.01)
        peer = victim.transport.connected()[0]
        call = asyncio.ensure_future(
            victim.transport.call(peer, Fetch(body_bytes=1), Done, timeout=3600, max_body_bytes=50_000)
        )
        request, _ = await read_frame(client)
        assert isinstance(request, Open)
        await client.write(
            encode_frame(Answer(stream=request.stream, body_bytes=50_000, message=b"\x80")), data(2, 10_000)
        )
        with pytest.raises(NetworkError, match="stands still"):
            await call
        heads = [(await read_frame(client))[0] for _ in range(2)]
        assert Reset(stream=2) in heads  # beside the PING of a connection that was silent for as long

    told(story)


@pytest.mark.parametrize("is_rest_sent", [True, False])
def test_a_cancelled_call_has_let_go_of_the_callers_memory(is_rest_sent):
    async def story(world: SimWorld, victim: Victim) -> None:
        client = await raw_client(world, victim)
        while not victim.transport.connected():
            await asyncio.sleep(0.01)
        peer, memory = victim.transport.connected()[0], bytearray(20_000)
        call = asyncio.ensure_future(victim.transport.call(peer, Nap(), Done, timeout=3600, into=memoryview(memory)))
        await read_frame(client)
        half_a_piece = (encode_frame(Data(stream=2), 20_000) + b"\x01" * 20_000)[:-10_000]
        await client.write(encode_frame(Answer(stream=2, body_bytes=20_000, message=b"\x80")), half_a_piece)
        await asyncio.sleep(1)
        call.cancel()
        if is_rest_sent:
            await client.write(b"\x01" * 10_000)
        await asyncio.wait({call})
        memory[:] = bytes(20_000)
        with suppress(NetworkError):
            await client.write(b"\x01" * 10_000)
        await asyncio.sleep(1)
        assert call.cancelled()
        assert memory == bytes(20_000)
        assert victim.clock.monotonic() < 5

    told(story)


def test_a_reply_larger_than_the_caller_takes_is_a_violation():  # BUG-X04
    async def story(world: SimWorld, victim: Victim) -> None:
        client = await raw_client(world, victim)
        while not victim.transport.connected():
            await asyncio.sleep(0.01)
        peer = victim.transport.connected()[0]
        call = asyncio.ensure_future(victim.transport.call(peer, Nap(), Done, timeout=3600))
        request, _ = await read_frame(client)
        assert isinstance(request, Open)
        await client.write(encode_frame(Answer(stream=request.stream, body_bytes=1 << 30, message=b"\x80")))
        with pytest.raises(NetworkError):
            await call

    assert told(story).violations == ["frame"]


def test_too_many_calls_at_once_are_refused_as_busy():  # BUG-X04
    async def story(world: SimWorld, victim: Victim) -> None:
        client = await raw_client(world, victim)
        for number in range(MAX_SERVED + 1):
            await client.write(opened(Nap(), stream=2 * number + 1))
        refusal, _ = await read_frame(client)
        assert isinstance(refusal, Refusal)
        assert (refusal.stream, refusal.code) == (2 * MAX_SERVED + 1, "busy")

    told(story)


def test_somebody_who_asks_and_never_reads_is_cut_off():  # BUG-X04
    async def story(world: SimWorld, victim: Victim) -> None:
        client = await raw_client(world, victim)
        for number in range(8):  # more than the window between the hosts holds
            await client.write(opened(Fetch(body_bytes=1 << 20), stream=2 * number + 1, max_reply_bytes=1 << 20))
        with pytest.raises(NetworkError):
            for token in range(10_000):
                await client.write(encode_frame(Ping(token=token)))
                await asyncio.sleep(0.001)
        assert victim.clock.monotonic() < 30
        assert victim.transport.connected() == []

    told(story)


def test_somebody_who_reads_nothing_for_long_is_cut_off():  # BUG-X04
    async def story(world: SimWorld, victim: Victim) -> None:
        client = await raw_client(world, victim)
        for number in range(8):
            await client.write(opened(Fetch(body_bytes=1 << 20), stream=2 * number + 1, max_reply_bytes=1 << 20))
        await asyncio.sleep(35)
        assert victim.transport.connected() == []

    told(story)


def test_a_silent_connection_is_noticed():
    async def story(world: SimWorld, victim: Victim) -> None:
        other = Victim(world, "10.0.0.3")
        await victim.transport.dial(await other.transport.listen(Address(other.host, 0)))
        await asyncio.sleep(600)
        assert victim.transport.connected() == [other.transport.peer_id]  # idle, but alive
        world.network.partition({victim.host}, {other.host})
        await asyncio.sleep(31)
        assert victim.transport.connected() == other.transport.connected() == []
        await other.transport.close()

    told(story)


def test_a_call_on_a_dying_connection_fails_at_once():
    async def story(world: SimWorld, victim: Victim) -> None:
        other = Victim(world, "10.0.0.3")
        peer = await victim.transport.dial(await other.transport.listen(Address(other.host, 0)))
        call = asyncio.ensure_future(victim.transport.call(peer, Nap(), Done, timeout=3600))
        await asyncio.sleep(1)
        began_at = victim.clock.monotonic()
        world.kill(other.host)
        with pytest.raises(NetworkError, match="ended"):
            await call
        assert victim.clock.monotonic() - began_at < 1
        await other.transport.close()

    told(story)


def test_control_calls_do_not_wait_behind_bulk():
    async def story(world: SimWorld, victim: Victim) -> None:
        other = Victim(world, "10.0.0.3")
        peer = await victim.transport.dial(await other.transport.listen(Address(other.host, 0)))
        world.network.set_bandwidth(victim.host, 1_000_000)
        transfer = asyncio.ensure_future(
            victim.transport.call(peer, Store(), Done, timeout=600, body=bytes(20_000_000), bulk=True)
        )
        await asyncio.sleep(3)
        for _ in range(20):
            began_at = victim.clock.monotonic()
            await victim.transport.call(peer, Store(), Done, timeout=5)
            assert victim.clock.monotonic() - began_at < 0.2  # a round trip of 0.02 s and a few quanta of the link
            await asyncio.sleep(0.3)
        await transfer
        assert victim.clock.monotonic() < 30
        await other.transport.close()

    told(story)


def test_a_slow_link_is_slow_but_no_failure():
    async def story(world: SimWorld, victim: Victim) -> None:
        other = Victim(world, "10.0.0.3")
        peer = await victim.transport.dial(await other.transport.listen(Address(other.host, 0)))
        world.network.set_bandwidth(victim.host, 25_000)
        bodies = [
            victim.transport.call(peer, Store(), Done, timeout=900, body=bytes(1_000_000), bulk=True) for _ in range(4)
        ]
        await asyncio.gather(*bodies)
        assert victim.clock.monotonic() > 120
        await other.transport.close()

    told(story)


def test_a_small_body_needs_no_connection_of_its_own():
    async def story(world: SimWorld, victim: Victim) -> None:
        other = Victim(world, "10.0.0.3")
        peer = await victim.transport.dial(await other.transport.listen(Address(other.host, 0)))
        await victim.transport.call(peer, Store(), Done, timeout=5, body=bytes(SMALL_BODY_BYTES), bulk=True)
        assert victim.transport.counters()["num_connections"] == 1
        await victim.transport.call(peer, Store(), Done, timeout=5, body=bytes(SMALL_BODY_BYTES + 1), bulk=True)
        assert victim.transport.counters()["num_connections"] == 2
        await other.transport.close()

    told(story)


def test_an_idle_bulk_connection_is_given_back():
    async def story(world: SimWorld, victim: Victim) -> None:
        other = Victim(world, "10.0.0.3")
        peer = await victim.transport.dial(await other.transport.listen(Address(other.host, 0)))
        await victim.transport.call(peer, Store(), Done, timeout=5, body=bytes(40_000), bulk=True)
        assert victim.transport.counters()["num_connections"] == 2
        await asyncio.sleep(200)
        assert victim.transport.counters()["num_connections"] == 1
        await victim.transport.call(peer, Store(), Done, timeout=5, body=bytes(40_000), bulk=True)
        await other.transport.close()

    told(story)


def test_idle_connections_cost_little():
    async def story(world: SimWorld, victim: Victim) -> None:
        other = Victim(world, "10.0.0.3")
        await victim.transport.dial(await other.transport.listen(Address(other.host, 0)))
        before = victim.transport.counters()
        await asyncio.sleep(600)
        after = victim.transport.counters()
        spent = sum(after[name] - before[name] for name in ("bytes_sent", "bytes_received"))
        assert spent < 10 * 200  # bytes per minute
        await other.transport.close()

    told(story)
