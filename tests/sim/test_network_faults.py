"""What goes wrong in a network: resets, one-way partitions, dark machines, jitter; and whose process notices."""

import asyncio
import random

import pytest

from p2ptrain.errors import NetworkError
from p2ptrain.runtime import Address, RawStream
from p2ptrain.sim.ports import SimWorld
from p2ptrain.sim.process import current_process
from p2ptrain.sim.profiles import HostProfile
from p2ptrain.sim.streams import SimStream

ONE, OTHER, THIRD = "10.0.0.1", "10.0.0.2", "10.0.0.3"
PORT = 4001


async def listen(world: SimWorld, host: str) -> asyncio.Queue[RawStream]:
    accepted: asyncio.Queue[RawStream] = asyncio.Queue()
    await world.runtime(host).network.listen(Address(host, PORT), accepted.put_nowait)
    return accepted


async def connect(world: SimWorld, source: str, target: str) -> SimStream:
    stream = await world.network.host(source).connect(Address(target, PORT))
    assert isinstance(stream, SimStream)
    return stream


async def connected(world: SimWorld) -> tuple[SimStream, SimStream]:
    accepted = await listen(world, OTHER)
    near, far = await connect(world, ONE, OTHER), await accepted.get()
    assert isinstance(far, SimStream)
    return near, far


async def read(stream: SimStream, count: int = 1, *, within: float = 30.0) -> bytes:
    data = bytearray(count)
    async with asyncio.timeout(within):
        await stream.read_into(memoryview(data))
    return bytes(data)


def test_a_reset_ends_both_ends_at_once_and_spares_other_connections():
    world = SimWorld(seed=1)

    async def story():
        near, far = await connected(world)
        await listen(world, THIRD)
        spared = await connect(world, ONE, THIRD)
        reading = asyncio.ensure_future(read(far, 2_000_000))
        await near.write(bytes(1_000_000))
        assert world.network.reset(ONE, OTHER) == 1
        with pytest.raises(NetworkError, match="reset by the other end"):
            await near.write(b"x")
        with pytest.raises(NetworkError, match="reset by the other end"):
            await reading
        await spared.write(b"fine")
        assert world.network.num_connections == {ONE: 1, OTHER: 0, THIRD: 1}
        assert world.network.reset(ONE) == 1

    world.run(story())


def test_resets_come_at_their_rate():
    world = SimWorld(seed=1)

    async def story():
        accepted = await listen(world, OTHER)
        world.network.set_resets(ONE, 6)
        num_resets = 0
        for _ in range(100):
            near, _ = await connect(world, ONE, OTHER), await accepted.get()
            with pytest.raises((NetworkError, TimeoutError)) as caught:
                await read(near, within=3600)
            num_resets += caught.type is NetworkError
            near.abort()
        hours = asyncio.get_running_loop().time() / 3600
        assert num_resets / hours == pytest.approx(6, rel=0.3)

    world.run(story())


def test_a_one_way_partition_lets_the_other_way_pass_until_its_window_is_full():
    world = SimWorld(seed=1)

    async def story():
        near, far = await connected(world)
        world.network.partition({ONE}, {OTHER}, one_way=True)
        await near.write(b"not heard")
        await far.write(b"heard")
        assert await read(near, 5) == b"heard"
        with pytest.raises(TimeoutError):
            await read(far, 9)
        sending = asyncio.ensure_future(far.write(bytes(1_000_000)))  # no acknowledgement comes back
        await read(near, 10_000)
        with pytest.raises(TimeoutError):
            await read(near, 10_000)
        assert not sending.done()
        world.network.heal()
        reading = asyncio.ensure_future(read(near, 900_000))
        await asyncio.gather(sending, reading)

    world.run(story())


def test_dials_time_out_across_a_one_way_partition_in_both_directions():
    world = SimWorld(seed=1)

    async def story():
        await listen(world, ONE)
        await listen(world, OTHER)
        world.network.partition({ONE}, {OTHER}, one_way=True)
        for source, target in ((ONE, OTHER), (OTHER, ONE)):
            with pytest.raises(NetworkError, match="timed out"):
                await connect(world, source, target)
        assert asyncio.get_running_loop().time() == pytest.approx(10.0)

    world.run(story())


def test_one_of_two_partitions_heals():
    world = SimWorld(seed=1)

    async def story():
        near, far = await connected(world)
        everybody = world.network.partition({ONE}, {OTHER, THIRD})
        pair = world.network.partition({ONE}, {OTHER})
        await near.write(b"held")
        world.network.heal(everybody)
        with pytest.raises(TimeoutError):
            await read(far)
        world.network.heal(pair)

    world.run(story())


def test_a_connection_that_comes_up_beside_a_partition_knows_of_it():
    world = SimWorld(seed=1)

    async def story():
        accepted = await listen(world, OTHER)
        world.network.partition({ONE}, {OTHER})
        dial = asyncio.ensure_future(connect(world, ONE, OTHER))
        await asyncio.sleep(0.5)
        world.network.heal()
        near, far = await dial, await accepted.get()
        assert asyncio.get_running_loop().time() == pytest.approx(1.02)  # by the second SYN
        world.network.partition({ONE}, {OTHER})
        await near.write(b"held")
        with pytest.raises(TimeoutError):
            await read(far)  # type: ignore[arg-type]

    world.run(story())


def test_a_dark_machine_says_nothing_and_once_it_is_back_knows_of_nothing():
    world = SimWorld(seed=1)

    async def story():
        near, far = await connected(world)
        world.kill(OTHER, silent=True)
        with pytest.raises(NetworkError):
            await far.write(b"from beyond")
        await near.write(b"anybody there?")
        with pytest.raises(TimeoutError):
            await read(near, within=600)
        began_at = asyncio.get_running_loop().time()
        with pytest.raises(NetworkError, match="timed out"):
            await connect(world, ONE, OTHER)
        assert asyncio.get_running_loop().time() - began_at == pytest.approx(5.0)
        await listen(world, OTHER)
        with pytest.raises(NetworkError, match="reset by the other end"):
            await read(near)
        await connect(world, ONE, OTHER)

    world.run(story())


def test_an_end_that_is_silent_learns_of_a_restart_when_it_speaks():
    world = SimWorld(seed=1)

    async def story():
        near, _ = await connected(world)
        world.kill(OTHER, silent=True)
        await listen(world, OTHER)
        with pytest.raises(TimeoutError):
            await read(near)
        await near.write(b"hello?")
        with pytest.raises(NetworkError, match="reset by the other end"):
            await read(near)

    world.run(story())


def test_a_hidden_host_can_refuse_instead_of_saying_nothing():
    world = SimWorld(seed=1)

    async def story():
        await listen(world, OTHER)
        world.network.hide(OTHER, refuses=True)
        with pytest.raises(NetworkError, match="refused"):
            await connect(world, ONE, OTHER)
        assert asyncio.get_running_loop().time() == pytest.approx(0.02)
        world.network.show(OTHER)
        await connect(world, ONE, OTHER)

    world.run(story())


def test_jitter_delays_messages_and_keeps_their_order():
    world = SimWorld(seed=1, latency=0.05)

    async def story():
        near, far = await connected(world)
        world.network.set_access(ONE, jitter=0.02)
        delays = []
        for number in range(300):
            began_at = asyncio.get_running_loop().time()
            await near.write(bytes([number % 256]))
            assert await read(far) == bytes([number % 256])
            delays.append(asyncio.get_running_loop().time() - began_at)
        assert min(delays) >= 0.05
        assert sum(delays) / len(delays) == pytest.approx(0.07, rel=0.1)
        for number in range(200):
            await near.write(bytes([number]))
            await asyncio.sleep(0.001)
        assert await read(far, 200) == bytes(range(200))

    world.run(story())


def test_a_latency_that_changes_is_felt_by_the_next_byte():
    world = SimWorld(seed=1)

    async def story():
        near, far = await connected(world)
        world.network.set_latency(ONE, OTHER, 0.5)
        began_at = asyncio.get_running_loop().time()
        await near.write(b"x")
        await read(far)
        assert asyncio.get_running_loop().time() - began_at == pytest.approx(0.5)

    world.run(story())


def test_a_lost_syn_is_sent_again_after_a_second():
    world = SimWorld(seed=1)

    async def story():
        accepted = await listen(world, OTHER)
        world.network.set_access(ONE, loss=0.2)
        seconds = []
        for _ in range(200):
            began_at = asyncio.get_running_loop().time()
            try:
                (await connect(world, ONE, OTHER)).abort()
                (await accepted.get()).abort()
            except NetworkError:
                pass
            seconds.append(round(asyncio.get_running_loop().time() - began_at, 3))
        assert set(seconds) == {0.02, 1.02, 3.02, 5.0}
        assert seconds.count(0.02) / 200 == pytest.approx(0.64, abs=0.1)

    world.run(story())


def test_a_dial_that_is_given_up_leaves_no_connection():
    world = SimWorld(seed=1)

    async def story():
        accepted = await listen(world, OTHER)
        dial = asyncio.ensure_future(connect(world, ONE, OTHER))
        await asyncio.sleep(0.015)  # it has arrived, the answer has not
        dial.cancel()
        far = await accepted.get()
        with pytest.raises(NetworkError):
            await read(far)  # type: ignore[arg-type]
        assert world.network.num_connections == {ONE: 0, OTHER: 0}

    world.run(story())


def test_a_stream_is_handed_over_in_the_process_that_listens():
    world = SimWorld(seed=1)

    async def story():
        listener, dialler = world.runtime(OTHER), world.runtime(ONE)
        seen = []
        await listener.network.listen(Address(OTHER, PORT), lambda raw: seen.append(current_process()))
        dial = dialler.network.connect(Address(OTHER, PORT))
        await asyncio.get_running_loop().create_task(dial, context=world.process(ONE).context)
        assert seen == [world.process(OTHER)]

    world.run(story())


def test_a_frozen_process_accepts_when_it_is_thawed_and_what_it_wrote_still_travels():
    world = SimWorld(seed=1)

    async def story():
        accepted = await listen(world, OTHER)
        near = await connect(world, ONE, OTHER)
        far = await accepted.get()
        assert isinstance(far, SimStream)
        await far.write(b"before")
        world.process(OTHER).freeze()
        assert await read(near, 6) == b"before"
        late = await connect(world, ONE, OTHER)  # its kernel answers
        await late.write(b"x")
        await asyncio.sleep(60)
        assert accepted.empty()
        world.process(OTHER).thaw()
        await asyncio.sleep(0)
        stream = await accepted.get()
        assert isinstance(stream, SimStream) and await read(stream) == b"x"

    world.run(story())


def test_an_end_that_closes_with_much_unsent_gives_up_after_two_seconds():
    world = SimWorld(seed=1)

    async def story():
        near, far = await connected(world)
        world.network.set_bandwidth(ONE, 10_000)
        await near.write(bytes(200_000))
        began_at = asyncio.get_running_loop().time()
        await near.close()
        assert asyncio.get_running_loop().time() - began_at == pytest.approx(2.0)
        with pytest.raises(NetworkError):
            await read(far, 200_000)

    world.run(story())


def test_a_writer_that_waits_hears_of_the_end():
    world = SimWorld(seed=1)

    async def story():
        near, far = await connected(world)
        writing = asyncio.ensure_future(near.write(bytes(32 << 20)))
        await asyncio.sleep(10)
        far.abort()
        with pytest.raises(NetworkError, match="reset by the other end"):
            await writing

    world.run(story())


def test_bytes_are_counted_by_host():
    world = SimWorld(seed=1)

    async def story():
        near, far = await connected(world)
        await near.write(bytes(1000), bytearray(200))
        await read(far, 1200)
        near.abort()
        assert world.network.num_sent_bytes == {ONE: 1200, OTHER: 0}
        assert world.network.num_delivered_bytes == {ONE: 0, OTHER: 1200}

    world.run(story())


def test_what_the_writer_changes_after_writing_is_not_sent():
    world = SimWorld(seed=1)

    async def story():
        near, far = await connected(world)
        memory = bytearray(b"before" * 10_000)
        await near.write(memoryview(memory))
        memory[:] = b"after!" * 10_000
        assert await read(far, 60_000) == b"before" * 10_000

    world.run(story())


@pytest.mark.parametrize("seed", [1, 2])
def test_a_seed_repeats_a_hostile_network_to_the_instant(seed):
    def trace() -> list[tuple[float, int]]:
        world, chance = SimWorld(seed=seed, latency=0.03), random.Random(seed)
        arrivals: list[tuple[float, int]] = []

        async def story() -> None:
            names = [f"10.0.0.{number}" for number in range(1, 9)]
            for name in names:
                world.network.place(name, HostProfile(up=2e5, down=1e6, jitter=0.01, loss=0.02, resets_per_hour=60.0))
            queues = [await listen(world, name) for name in names]

            async def exchange(source: int, target: int) -> None:
                try:
                    near = await connect(world, names[source], names[target])
                    far = await queues[target].get()
                    assert isinstance(far, SimStream)
                    await near.write(bytes(chance.randrange(1, 300_000)))
                    for _ in range(100):
                        await read(far, 1000)
                        arrivals.append((asyncio.get_running_loop().time(), target))
                except (NetworkError, TimeoutError):
                    arrivals.append((asyncio.get_running_loop().time(), -target))

            await asyncio.gather(*(exchange(*chance.sample(range(8), 2)) for _ in range(40)))

        world.run(story())
        return arrivals

    assert trace() == trace()
