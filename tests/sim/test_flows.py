"""Bandwidth: fair shares, slow start, loss, and what a transfer costs a small message beside it."""

import asyncio
import random
from math import sqrt

import pytest

from p2ptrain.runtime import Address, RawStream, SecureStream
from p2ptrain.sim.pipes import SEGMENT_BYTES
from p2ptrain.sim.ports import SimWorld

PORT = 4001


class Hosts:
    """Hosts that listen, and connections between them."""

    def __init__(self, world: SimWorld, count: int) -> None:
        self.world = world
        self.names = [f"10.0.0.{number + 1}" for number in range(count)]
        self._accepted: dict[str, asyncio.Queue[RawStream]] = {}

    async def listen(self) -> "Hosts":
        for name in self.names:
            queue = self._accepted[name] = asyncio.Queue()
            await self.world.runtime(name).network.listen(Address(name, PORT), queue.put_nowait)
        return self

    async def connect(self, source: int, target: int) -> tuple[SecureStream, SecureStream]:
        """Return both ends, the dialler's first; nothing is secured, so that timings are of the bytes alone."""
        near = await self.world.network.host(self.names[source]).connect(Address(self.names[target], PORT))
        return near, await self._accepted[self.names[target]].get()  # type: ignore[return-value]


async def send(stream: SecureStream, num_bytes: int, piece_bytes: int = 64 * 1024) -> None:
    for start in range(0, num_bytes, piece_bytes):
        await stream.write(bytes(min(piece_bytes, num_bytes - start)))


async def receive(stream: SecureStream, num_bytes: int, piece_bytes: int = 64 * 1024) -> float:
    """Read so many bytes; return the instant at which the last one came."""
    view = memoryview(bytearray(piece_bytes))
    for start in range(0, num_bytes, piece_bytes):
        await stream.read_into(view[: min(piece_bytes, num_bytes - start)])
    return asyncio.get_running_loop().time()


async def transfer_seconds(near: SecureStream, far: SecureStream, num_bytes: int) -> float:
    began_at = asyncio.get_running_loop().time()
    _, ended_at = await asyncio.gather(send(near, num_bytes), receive(far, num_bytes))
    return ended_at - began_at


def max_min(links: dict[str, float], flows: list[tuple[str, str]]) -> list[float]:
    """Return the exact max-min fair rates: raise all alike, freeze those whose link is full, go on."""
    rates, open_flows, left = [0.0] * len(flows), set(range(len(flows))), dict(links)
    while open_flows:
        users = {link: [index for index in open_flows if link in flows[index]] for link in links}
        step = min(left[link] / len(users[link]) for link in links if users[link])
        for index in open_flows:
            rates[index] += step
        for link in links:
            left[link] -= step * len(users[link])
        full = {link for link in links if users[link] and left[link] < 1e-6 * links[link]}
        open_flows = {index for index in open_flows if not full & set(flows[index])}
    return rates


@pytest.mark.parametrize("seed", range(5))
def test_rates_are_within_15_percent_of_exact_max_min_on_20_peers(seed):
    world, chance = SimWorld(seed=seed, latency=0.01), random.Random(seed)
    up = [chance.choice([0.2e6, 1e6, 3e6, 12e6]) for _ in range(20)]
    down = [chance.choice([1e6, 5e6, 12e6, 25e6]) for _ in range(20)]
    pairs = [tuple(chance.sample(range(20), 2)) for _ in range(60)]

    async def story():
        hosts = await Hosts(world, 20).listen()
        for name, sends, receives in zip(hosts.names, up, down, strict=True):
            world.network.set_bandwidth(name, sends, direction="up")
            world.network.set_bandwidth(name, receives, direction="down")
        ends = [await hosts.connect(source, target) for source, target in pairs]
        received = [0] * len(pairs)

        async def count(index: int, stream: SecureStream) -> None:
            view = memoryview(bytearray(32 * 1024))
            while True:
                await stream.read_into(view)
                received[index] += len(view)

        tasks = [asyncio.ensure_future(send(near, 1 << 40)) for near, _ in ends]
        tasks += [asyncio.ensure_future(count(index, far)) for index, (_, far) in enumerate(ends)]
        await asyncio.sleep(20)
        before = list(received)
        await asyncio.sleep(60)
        measured = [(now - then) / 60 for now, then in zip(received, before, strict=True)]
        links = {f"up {index}": rate for index, rate in enumerate(up)}
        links |= {f"down {index}": rate for index, rate in enumerate(down)}
        exact = max_min(links, [(f"up {source}", f"down {target}") for source, target in pairs])
        assert measured == pytest.approx(exact, rel=0.15), f"seed {seed}"
        for task in tasks:
            task.cancel()

    world.run(story())


def test_what_a_transfer_cannot_use_goes_to_the_others():
    world = SimWorld(seed=1, latency=0.0)

    async def story():
        hosts = await Hosts(world, 3).listen()
        world.network.set_bandwidth(hosts.names[0], 1_000_000, direction="up")
        world.network.set_bandwidth(hosts.names[1], 200_000, direction="down")
        slow, fast = await hosts.connect(0, 1), await hosts.connect(0, 2)
        seconds = await asyncio.gather(transfer_seconds(*slow, 1_000_000), transfer_seconds(*fast, 4_000_000))
        assert seconds == pytest.approx([5.0, 5.0], rel=0.05)

    world.run(story())


def test_a_transfer_takes_over_what_an_ended_one_leaves():
    world = SimWorld(seed=1, latency=0.0)

    async def story():
        hosts = await Hosts(world, 3).listen()
        world.network.set_bandwidth(hosts.names[0], 1_000_000)
        pairs = [await hosts.connect(0, 1), await hosts.connect(0, 2)]
        sizes = 500_000, 1_500_000
        seconds = await asyncio.gather(
            *(transfer_seconds(*ends, size) for ends, size in zip(pairs, sizes, strict=True))
        )
        assert seconds == pytest.approx([1.0, 2.0], rel=0.05)

    world.run(story())


@pytest.mark.parametrize(("num_bytes", "round_trips"), [(1, 0.5), (14_600, 0.5), (43_800, 1.5), (102_200, 2.5)])
def test_slow_start_doubles_ten_segments_each_round_trip(num_bytes, round_trips):
    world = SimWorld(seed=1, latency=0.05)

    async def story():
        hosts = await Hosts(world, 2).listen()
        assert await transfer_seconds(*await hosts.connect(0, 1), num_bytes) == pytest.approx(
            0.1 * round_trips, abs=0.015
        )

    world.run(story())


def test_an_idle_connection_starts_slowly_again():
    world = SimWorld(seed=1, latency=0.05)

    async def story():
        hosts = await Hosts(world, 2).listen()
        ends = await hosts.connect(0, 1)
        first = await transfer_seconds(*ends, 5_000_000)
        assert await transfer_seconds(*ends, 500_000) < 0.2  # warm
        await asyncio.sleep(10)
        assert await transfer_seconds(*ends, 5_000_000) == pytest.approx(first, rel=0.05)

    world.run(story())


@pytest.mark.parametrize("loss", [0.001, 0.01, 0.03])
def test_loss_limits_the_rate_as_it_does_tcp(loss):
    world = SimWorld(seed=1, latency=0.05)

    async def story():
        hosts = await Hosts(world, 2).listen()
        world.network.set_access(hosts.names[0], loss=loss)
        num_bytes = 3_000_000
        seconds = await transfer_seconds(*await hosts.connect(0, 1), num_bytes)
        limit = SEGMENT_BYTES / 0.1 * sqrt(3 / (2 * loss))
        assert 0.85 * limit < num_bytes / seconds < 1.1 * limit

    world.run(story())


def test_the_receive_window_limits_the_rate():
    world = SimWorld(seed=1, latency=0.5)

    async def story():
        hosts = await Hosts(world, 2).listen()
        seconds = await transfer_seconds(*await hosts.connect(0, 1), 80_000_000)
        assert 80_000_000 / seconds == pytest.approx(4 * 1024 * 1024 / 1.0, rel=0.4)  # slow start costs ten round trips

    world.run(story())


def test_loss_delays_a_small_message_now_and_then():
    world = SimWorld(seed=1, latency=0.05)

    async def story() -> list[float]:
        hosts = await Hosts(world, 2).listen()
        world.network.set_access(hosts.names[0], loss=0.05)
        near, far = await hosts.connect(0, 1)
        seconds = []
        for _ in range(1000):
            seconds.append(await transfer_seconds(near, far, 100))
            await asyncio.sleep(0.5)
        return seconds

    seconds = world.run(story())
    late = [one for one in seconds if one > 0.3]
    assert 25 < len(late) < 85  # a twentieth
    assert all(one == pytest.approx(0.05) for one in seconds if one <= 0.3)


def test_small_messages_pass_between_the_bytes_of_a_transfer_and_take_their_part_of_the_link():
    world = SimWorld(seed=1, latency=0.01)

    async def story():
        hosts = await Hosts(world, 3).listen()
        world.network.set_bandwidth(hosts.names[0], 125_000, direction="up")
        bulk, control = await hosts.connect(0, 1), await hosts.connect(0, 2)
        transfer = asyncio.ensure_future(transfer_seconds(*bulk, 1_250_000))
        slowest = 0.0
        while not transfer.done():
            slowest = max(slowest, await transfer_seconds(*control, 1000))
            await asyncio.sleep(0.05)
        assert slowest < 0.1
        assert transfer.result() > 11.0  # ten seconds alone; the messages take a tenth of the link

    world.run(story())


def test_many_small_messages_cannot_exceed_their_link():
    world = SimWorld(seed=1, latency=0.01)

    async def story():
        hosts = await Hosts(world, 11).listen()
        world.network.set_bandwidth(hosts.names[0], 125_000, direction="up")
        pairs = [await hosts.connect(0, number) for number in range(1, 11)]
        seconds = await asyncio.gather(*(transfer_seconds(near, far, 12_500) for near, far in pairs))
        assert max(seconds) == pytest.approx(1.0, rel=0.05)

    world.run(story())


def test_a_large_transfer_needs_few_events():
    world = SimWorld(seed=1, latency=0.02)

    async def story():
        hosts = await Hosts(world, 2).listen()
        ends = await hosts.connect(0, 1)
        before = world.network.agenda.num_planned
        await transfer_seconds(*ends, 100_000_000)
        assert world.network.agenda.num_planned - before < 100 * 16  # MB, events per MB

    world.run(story())


def test_a_window_full_of_unread_bytes_stops_the_sender_until_it_is_read():
    world = SimWorld(seed=1, latency=0.01)

    async def story():
        hosts = await Hosts(world, 2).listen()
        near, far = await hosts.connect(0, 1)
        sending = asyncio.ensure_future(send(near, 16 << 20))
        await asyncio.sleep(60)
        assert not sending.done()
        assert world.network.num_sent_bytes[hosts.names[0]] <= 4 << 20
        await receive(far, 16 << 20)
        await sending

    world.run(story())


def test_bandwidth_that_changes_is_felt_by_a_transfer_under_way():
    world = SimWorld(seed=1, latency=0.0)

    async def story():
        hosts = await Hosts(world, 2).listen()
        world.network.set_bandwidth(hosts.names[0], 1_000_000)
        transfer = asyncio.ensure_future(transfer_seconds(*await hosts.connect(0, 1), 2_000_000))
        await asyncio.sleep(1.0)
        world.network.set_bandwidth(hosts.names[0], 100_000)
        assert await transfer == pytest.approx(11.0, rel=0.05)

    world.run(story())


def test_loss_that_begins_is_felt_by_a_transfer_under_way():
    world = SimWorld(seed=1, latency=0.05)

    async def story():
        hosts = await Hosts(world, 2).listen()
        transfer = asyncio.ensure_future(transfer_seconds(*await hosts.connect(0, 1), 100_000_000))
        await asyncio.sleep(2.0)
        before = world.network.num_delivered_bytes[hosts.names[1]]
        world.network.set_access(hosts.names[0], loss=0.01)
        await asyncio.sleep(20.0)
        rate = (world.network.num_delivered_bytes[hosts.names[1]] - before) / 20
        assert rate < 2 * SEGMENT_BYTES / 0.1 * sqrt(150)  # what was in flight counts, too
        world.network.set_access(hosts.names[0], loss=0.0)
        assert await transfer < 30

    world.run(story())


def test_the_solver_that_the_rates_are_compared_with_is_right():
    assert max_min({"a": 3.0, "b": 1.0}, [("a",), ("a", "b")]) == pytest.approx([2.0, 1.0])
    assert max_min({"a": 3.0, "b": 2.0}, [("a",), ("a", "b"), ("b",)]) == pytest.approx([2.0, 1.0, 1.0])
