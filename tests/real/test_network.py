"""The real network meets strangers: other protocols, mute ports, port scans, busy ports."""

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from p2ptrain.errors import AddressInUseError, IncompatibleError, NetworkError
from p2ptrain.events import Event, Events
from p2ptrain.ids import RunId
from p2ptrain.net.identity import Identity
from p2ptrain.net.transport import Transport
from p2ptrain.real import network as real_network
from p2ptrain.real.main import run
from p2ptrain.real.runtime import create_runtime
from p2ptrain.runtime import Address

DEADLINE = 20.0
HERE = Address("127.0.0.1", 0)
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def transport_in(directory: Path, events: list[Event] | None = None) -> Transport:
    runtime = create_runtime(directory)
    stream = Events(runtime.clock)
    stream.subscribe((events if events is not None else []).append)
    identity = Identity.generate(runtime.entropy)
    return Transport(runtime=runtime, identity=identity, run_id=RunId(b"r" * 32), events=stream)


@asynccontextmanager
async def stranger(serve: Serve) -> AsyncIterator[Address]:
    """Serve some other protocol on a port."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield Address(*server.sockets[0].getsockname()[:2])
    finally:
        server.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not condition():
            await asyncio.sleep(0.01)


def num_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def speak_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(100)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    writer.close()


async def speak_ssh(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
    await reader.read()
    writer.close()


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readexactly(4)
    writer.transport.abort()


async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


@pytest.mark.parametrize(
    ("serve", "error", "sentence"),
    [
        (speak_http, IncompatibleError, r"127\.0\.0\.1:\d+ is not a p2ptrain port"),
        (speak_ssh, IncompatibleError, r"127\.0\.0\.1:\d+ is not a p2ptrain port"),
        (hang_up, NetworkError, "closed the connection during the TLS handshake"),
        (say_nothing, NetworkError, r"no TLS answer within 0\.2 s"),
    ],
)
def test_dialling_something_else_fails_with_its_own_reason(tmp_path, monkeypatch, serve, error, sentence):  # BUG-T04
    monkeypatch.setattr(real_network, "SECURE_TIMEOUT", 0.2)

    async def story():
        transport = transport_in(tmp_path)
        async with stranger(serve) as address, asyncio.timeout(DEADLINE):
            before = num_descriptors()
            for _ in range(5):
                with pytest.raises(error, match=sentence):
                    await transport.dial(address)
            await until(lambda: num_descriptors() <= before + 1)
        await transport.close()

    run(story)


def test_port_scans_leave_no_trace_but_a_counter(tmp_path, monkeypatch, caplog):  # BUG-T04
    monkeypatch.setattr(real_network, "SECURE_TIMEOUT", 0.3)
    caplog.set_level(logging.INFO)
    events: list[Event] = []

    async def scan(address: Address, words: bytes) -> None:
        _, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(words)
        await asyncio.sleep(0)
        writer.transport.abort()

    async def story():
        transport = transport_in(tmp_path, events)
        address = await transport.listen(HERE)
        await scan(address, b"")  # warms up whatever opens descriptors once
        await until(lambda: transport.counters()["num_failed_handshakes"] == 1)
        before = num_descriptors()
        for words in (b"", b"\x16", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"):
            for _ in range(10):
                await asyncio.gather(*(scan(address, words) for _ in range(10)))
        await until(lambda: transport.counters()["num_failed_handshakes"] == 301)
        await until(lambda: num_descriptors() <= before)
        assert (await transport_dials(tmp_path / "guest", address)) == transport.peer_id
        await transport.close()

    run(story)
    assert caplog.records == []
    assert [event.kind for event in events if event.kind in ("task-failed", "protocol-error")] == []


async def transport_dials(directory: Path, address: Address) -> str:
    guest = transport_in(directory)
    peer = await guest.dial(address)
    await guest.close()
    return peer


def test_slow_strangers_are_closed_and_do_not_keep_others_out(tmp_path, monkeypatch):  # BUG-X03
    monkeypatch.setattr(real_network, "SECURE_TIMEOUT", 1.0)

    async def story():
        transport = transport_in(tmp_path)
        address = await transport.listen(HERE)
        await transport_dials(tmp_path / "first guest", address)  # warms up whatever opens descriptors once
        before = num_descriptors()
        slow = [await asyncio.open_connection(address.host, address.port) for _ in range(100)]
        async with asyncio.timeout(DEADLINE):
            assert await transport_dials(tmp_path / "guest", address) == transport.peer_id
            await asyncio.gather(*(reader.read() for reader, _ in slow), return_exceptions=True)
        for _, writer in slow:
            writer.close()
        await until(lambda: num_descriptors() <= before + 2)  # the guests' directories
        await transport.close()

    run(story)


@pytest.mark.parametrize(("first", "second"), [("0.0.0.0", "127.0.0.1"), ("127.0.0.1", "0.0.0.0")])
def test_a_port_is_busy_for_every_address_that_overlaps(tmp_path, first, second):  # BUG-L07
    async def story():
        network = real_network.TcpNetwork()
        port = await network.listen(Address(first, 0), lambda raw: raw.abort())
        with pytest.raises(AddressInUseError):
            await network.listen(Address(second, port.address.port), lambda raw: raw.abort())
        await port.close()

    run(story)


def test_a_port_is_free_again_right_after_a_crash(tmp_path):  # BUG-L07
    async def story():
        network = real_network.TcpNetwork()
        accepted: asyncio.Queue = asyncio.Queue()
        port = await network.listen(HERE, accepted.put_nowait)
        dialled = await network.connect(port.address)
        (await accepted.get()).abort()  # the listening side closes first: its socket goes to TIME_WAIT
        dialled.abort()
        await port.close()
        again = await network.listen(port.address, lambda raw: raw.abort())
        await again.close()

    run(story)


def test_tiny_socket_buffers_do_not_stop_large_bodies_both_ways(tmp_path, monkeypatch):  # BUG-T11
    tune = real_network._tune

    def tune_tightly(connection: socket.socket) -> None:
        tune(connection)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)

    monkeypatch.setattr(real_network, "_tune", tune_tightly)

    async def story():
        network, entropy = real_network.TcpNetwork(), create_runtime(tmp_path).entropy
        accepted: asyncio.Queue = asyncio.Queue()
        port = await network.listen(HERE, accepted.put_nowait)
        raw = await network.connect(port.address)
        ends = await asyncio.gather(
            network.secure(raw, Identity.generate(entropy), server=False),
            network.secure(await accepted.get(), Identity.generate(entropy), server=True),
        )
        sent = bytes(1 << 18)
        received = [bytearray(len(sent)) for _ in ends]
        async with asyncio.timeout(60):
            reads = (end.read_into(memoryview(memory)) for end, memory in zip(ends, received, strict=True))
            await asyncio.gather(*(end.write(sent) for end in ends), *reads)
        assert received == [sent, sent]
        for end in ends:
            end.abort()
        await port.close()

    run(story)


def test_an_unknown_host_is_a_short_reason():
    async def story():
        with pytest.raises(NetworkError) as caught:
            await real_network.TcpNetwork().connect(Address("nowhere.invalid", 4001))
        assert caught.value.reason == "unknown host"

    run(story)
