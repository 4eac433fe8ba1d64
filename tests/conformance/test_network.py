"""The Network port: the real one and the simulated one behave alike."""

import asyncio
from typing import Any

import pytest

from p2ptrain.errors import AddressInUseError, ConfigError, NetworkError
from p2ptrain.net.identity import Identity
from p2ptrain.runtime import Address, Listener, RawStream, SecureStream

DEADLINE = 20.0


async def connected(world: Any) -> tuple[SecureStream, SecureStream, Listener]:
    """Return both ends of a secured connection, the dialler's first."""
    dialler, listener = world.runtime(1), world.runtime(2)
    accepted: asyncio.Queue[RawStream] = asyncio.Queue()
    port = await listener.network.listen(Address(world.host(2), 0), accepted.put_nowait)
    raw = await dialler.network.connect(port.address)
    near, far = await asyncio.gather(
        dialler.network.secure(raw, Identity.generate(dialler.entropy), server=False),
        listener.network.secure(await accepted.get(), Identity.generate(listener.entropy), server=True),
    )
    return near, far, port


async def read(stream: SecureStream, count: int) -> bytes:
    data = bytearray(count)
    async with asyncio.timeout(DEADLINE):
        await stream.read_into(memoryview(data))
    return bytes(data)


def test_bytes_arrive_in_order_in_both_directions(world):
    async def story():
        near, far, port = await connected(world)
        await near.write(b"one ", bytearray(b"two "), memoryview(b"three"))
        await far.write(b"back")
        assert await read(far, 5) + await read(far, 8) == b"one two three"
        assert await read(near, 4) == b"back"
        near.abort()
        await port.close()

    world.run(story)


def test_a_large_piece_is_received_whole(world):
    async def story():
        near, far, port = await connected(world)
        sent = bytes(range(256)) * 12_000  # 3 MB, far above every buffer

        async def write() -> None:
            await near.write(sent)
            await near.write(b"end")

        writing = asyncio.ensure_future(write())
        assert await read(far, len(sent)) == sent
        assert await read(far, 3) == b"end"
        await writing
        near.abort()
        await port.close()

    world.run(story)


def test_each_end_learns_the_key_of_the_other(world):
    async def story():
        dialler, listener = world.runtime(1), world.runtime(2)
        ours, theirs = Identity.generate(dialler.entropy), Identity.generate(listener.entropy)
        accepted: asyncio.Queue[RawStream] = asyncio.Queue()
        port = await listener.network.listen(Address(world.host(2), 0), accepted.put_nowait)
        raw = await dialler.network.connect(port.address)
        near, far = await asyncio.gather(
            dialler.network.secure(raw, ours, server=False),
            listener.network.secure(await accepted.get(), theirs, server=True),
        )
        assert (near.remote_public_key, far.remote_public_key) == (theirs.public_key, ours.public_key)
        assert near.remote == port.address == far.local
        assert near.local == far.remote
        near.abort()
        await port.close()

    world.run(story)


def test_a_writer_waits_for_a_reader(world):
    async def story():
        near, far, port = await connected(world)
        writing = asyncio.ensure_future(near.write(bytes(32 * 1024 * 1024)))
        await asyncio.wait({writing}, timeout=0.2)
        assert not writing.done()
        await asyncio.gather(writing, read(far, 32 * 1024 * 1024))
        near.abort()
        await port.close()

    world.run(story)


def test_close_delivers_what_was_written_and_then_ends(world):
    async def story():
        near, far, port = await connected(world)
        await near.write(b"last words")
        closing = asyncio.ensure_future(near.close())
        assert await read(far, 10) == b"last words"
        with pytest.raises(NetworkError):
            await read(far, 1)
        far.abort()
        await closing
        await port.close()

    world.run(story)


def test_abort_ends_every_call_on_both_ends(world):
    async def story():
        near, far, port = await connected(world)
        reading = [asyncio.ensure_future(read(stream, 1)) for stream in (near, far)]
        await asyncio.sleep(0)
        near.abort()
        for result in await asyncio.gather(*reading, return_exceptions=True):
            assert isinstance(result, NetworkError)
        with pytest.raises(NetworkError):
            await near.write(b"too late")
        await port.close()

    world.run(story)


def test_a_reader_that_was_cancelled_leaves_the_stream_usable_for_the_end(world):
    async def story():
        near, far, port = await connected(world)
        reading = asyncio.ensure_future(read(near, 100_000))
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait({reading})
        near.abort()
        with pytest.raises(NetworkError):
            await read(far, 1)
        await port.close()

    world.run(story)


def test_a_port_that_nobody_holds_refuses(world):
    async def story():
        runtime = world.runtime(1)
        port = await runtime.network.listen(Address(world.host(1), 0), lambda raw: raw.abort())
        await port.close()
        with pytest.raises(NetworkError) as caught:
            await runtime.network.connect(port.address)
        assert caught.value.reason == "refused"

    world.run(story)


def test_a_busy_port_is_named(world):  # BUG-L07
    async def story():
        first, second = world.runtime(1), world.runtime(2)
        port = await first.network.listen(Address(world.host(1), 0), lambda raw: raw.abort())
        with pytest.raises(AddressInUseError, match=str(port.address)):
            await (first if world.host(1) != world.host(2) else second).network.listen(
                port.address, lambda raw: raw.abort()
            )
        await port.close()
        again = await first.network.listen(port.address, lambda raw: raw.abort())
        await again.close()

    world.run(story)


def test_an_address_of_another_machine_cannot_be_listened_on(world):
    async def story():
        with pytest.raises(ConfigError, match=r"192\.0\.2\.1:4001"):
            await world.runtime(1).network.listen(Address("192.0.2.1", 4001), lambda raw: raw.abort())

    world.run(story)


def test_local_hosts_can_be_dialled(world):
    async def story():
        runtime = world.runtime(1)
        hosts = runtime.network.local_hosts()
        assert hosts
        port = await runtime.network.listen(Address("0.0.0.0", 0), lambda raw: raw.abort())
        (await runtime.network.connect(Address(hosts[-1], port.address.port))).abort()
        await port.close()

    world.run(story)
