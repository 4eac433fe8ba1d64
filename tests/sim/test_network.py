"""The simulated network: delay, bandwidth, partitions and deaths, all in virtual time."""

import asyncio

import pytest

from p2ptrain.errors import NetworkError
from p2ptrain.net.identity import Identity
from p2ptrain.runtime import Address, RawStream, SecureStream
from p2ptrain.sim.ports import SimWorld

ONE, OTHER = "10.0.0.1", "10.0.0.2"


async def connected(world: SimWorld, port_number: int = 4001) -> tuple[SecureStream, SecureStream]:
    dialler, listener = world.runtime(ONE), world.runtime(OTHER)
    accepted: asyncio.Queue[RawStream] = asyncio.Queue()
    port = await listener.network.listen(Address(OTHER, port_number), accepted.put_nowait)
    raw = await dialler.network.connect(port.address)
    near, far = await asyncio.gather(
        dialler.network.secure(raw, Identity.generate(dialler.entropy), server=False),
        listener.network.secure(await accepted.get(), Identity.generate(listener.entropy), server=True),
    )
    return near, far


async def seconds_to_read(stream: SecureStream, count: int) -> float:
    began_at = asyncio.get_running_loop().time()
    await stream.read_into(memoryview(bytearray(count)))
    return asyncio.get_running_loop().time() - began_at


def test_a_byte_takes_the_latency_of_its_pair():
    world = SimWorld(seed=1, latency=0.01)
    world.network.set_latency(ONE, OTHER, 0.25)

    async def story():
        near, far = await connected(world)
        await near.write(b"x")
        assert await seconds_to_read(far, 1) == pytest.approx(0.25)

    world.run(story())


def test_bandwidth_is_shared_by_the_connections_of_a_host():
    world = SimWorld(seed=1, latency=0.0)
    world.network.set_bandwidth(OTHER, 1_000_000)

    async def story():
        pairs = [await connected(world, port_number) for port_number in (4001, 4002)]
        writing = [asyncio.ensure_future(near.write(bytes(250_000))) for near, _ in pairs]
        elapsed = await asyncio.gather(*(seconds_to_read(far, 250_000) for _, far in pairs))
        assert elapsed == pytest.approx([0.5, 0.5], rel=0.1)
        await asyncio.gather(*writing)

    world.run(story())


def test_a_partition_holds_bytes_back_until_it_heals():
    world = SimWorld(seed=1)

    async def story():
        near, far = await connected(world)
        world.network.partition({ONE}, {OTHER})
        await near.write(b"held")
        reading = asyncio.ensure_future(seconds_to_read(far, 4))
        await asyncio.sleep(60)
        assert not reading.done()
        world.network.heal()
        assert await reading == pytest.approx(60, abs=0.1)

    world.run(story())


def test_dialling_across_a_partition_times_out():
    world = SimWorld(seed=1)

    async def story():
        await connected(world)
        world.network.partition({ONE}, {OTHER})
        with pytest.raises(NetworkError, match="timed out"):
            await world.network.host(ONE).connect(Address(OTHER, 4001))
        assert asyncio.get_running_loop().time() == pytest.approx(5.0, abs=0.2)

    world.run(story())


def test_a_hidden_host_can_dial_but_not_be_dialled():
    world = SimWorld(seed=1)
    world.network.hide(ONE)

    async def story():
        await connected(world)  # ONE dials OTHER
        port = await world.network.host(ONE).listen(Address(ONE, 0), lambda raw: None)
        with pytest.raises(NetworkError, match="timed out"):
            await world.network.host(OTHER).connect(port.address)

    world.run(story())


def test_a_killed_process_resets_its_streams_and_frees_its_port():
    world = SimWorld(seed=1)

    async def story():
        near, far = await connected(world)
        world.kill(OTHER)
        with pytest.raises(NetworkError):
            await near.read_into(memoryview(bytearray(1)))
        with pytest.raises(NetworkError):
            await far.write(b"from beyond")
        with pytest.raises(NetworkError, match="refused"):
            await world.network.host(ONE).connect(Address(OTHER, 4001))
        port = await world.runtime(OTHER).network.listen(Address(OTHER, 4001), lambda raw: None)
        assert port.address == Address(OTHER, 4001)

    world.run(story())


def test_pieces_of_one_instant_keep_their_order():
    world = SimWorld(seed=1)

    async def story():
        near, far = await connected(world)
        for number in range(200):
            await near.write(bytes([number]))
        received = bytearray(200)
        await far.read_into(memoryview(received))
        assert received == bytes(range(200))

    world.run(story())
