"""What does the simulated network itself cost? Virtual time, one process, no peers.

    python benchmarks/network.py

Prints one table of CPU times: of a small message from `write` to the end of `read_into` (the loop's own part, measured
by as many sleeps, is taken off), of a megabyte in a transfer, of a connection and of its handshake; and the memory of an
idle connection, both ends.
"""

import asyncio
import gc
import time
import tracemalloc
from collections.abc import Awaitable, Callable

from p2ptrain.net.identity import Identity
from p2ptrain.runtime import Address, RawStream
from p2ptrain.sim.ports import SimWorld
from p2ptrain.sim.profiles import HostProfile
from p2ptrain.sim.streams import SimStream

PORT = 4001
NUM_MESSAGES = 50_000
MESSAGE_BYTES = 300
HOME = HostProfile(up=2.5e6, down=25e6, latency=0.007, jitter=0.002, loss=0.0003)


class Hosts:
    """Hosts that listen on one network."""

    def __init__(self, world: SimWorld, count: int) -> None:
        self.network = world.network
        self.names = [f"10.0.{number // 250}.{number % 250 + 1}" for number in range(count)]
        self.identities = [Identity.generate(world.runtime(name).entropy) for name in self.names]
        self.accepted: asyncio.Queue[RawStream] = asyncio.Queue()

    async def listen(self) -> None:
        for name in self.names:
            await self.network.host(name).listen(Address(name, PORT), self.accepted.put_nowait)

    async def connect(self, source: int, target: int) -> tuple[SimStream, SimStream]:
        near = await self.network.host(self.names[source]).connect(Address(self.names[target], PORT))
        far = await self.accepted.get()
        assert isinstance(near, SimStream) and isinstance(far, SimStream)
        return near, far


async def cpu_seconds(work: Callable[[], Awaitable[object]]) -> float:
    began_at = time.process_time()
    await work()
    return time.process_time() - began_at


def in_world(count: int, story: Callable[[Hosts], Awaitable[float]], profile: HostProfile | None = None) -> float:
    world = SimWorld(seed=1, latency=0.02)

    async def whole() -> float:
        hosts = Hosts(world, count)
        for name in hosts.names if profile is not None else []:
            world.network.place(name, profile or HostProfile())
        await hosts.listen()
        return await story(hosts)

    return world.run(whole())


async def small_message(hosts: Hosts) -> float:
    near, far = await hosts.connect(0, 1)

    async def sleep() -> None:
        for _ in range(NUM_MESSAGES):
            await asyncio.sleep(0.003)

    async def write() -> None:
        for _ in range(NUM_MESSAGES):
            await near.write(bytes(MESSAGE_BYTES))
            await asyncio.sleep(0.003)

    async def read() -> None:
        view = memoryview(bytearray(MESSAGE_BYTES))
        for _ in range(NUM_MESSAGES):
            await far.read_into(view)

    idle = await cpu_seconds(sleep)
    return 1e6 * (await cpu_seconds(lambda: asyncio.gather(write(), read())) - idle) / NUM_MESSAGES


async def megabyte(hosts: Hosts) -> float:
    """64 uploads of 2 MB to one host at once."""
    pairs = [await hosts.connect(number, 0) for number in range(1, 65)]

    async def write(stream: SimStream) -> None:
        for _ in range(20):
            await stream.write(bytes(100_000))

    async def read(stream: SimStream) -> None:
        view = memoryview(bytearray(100_000))
        for _ in range(20):
            await stream.read_into(view)

    work = [write(near) for near, _ in pairs] + [read(far) for _, far in pairs]
    return 1e3 * await cpu_seconds(lambda: asyncio.gather(*work)) / (64 * 2)


async def connection(hosts: Hosts) -> float:
    async def connect() -> None:
        for number in range(5000):
            await hosts.connect(number % 1000, number * 7 % 1000)

    return 1e6 * await cpu_seconds(connect) / 5000


async def handshake(hosts: Hosts) -> float:
    pairs = [await hosts.connect(number % 50, number * 7 % 50) for number in range(2000)]

    async def secure() -> None:
        for near, far in pairs:
            keys = [hosts.identities[hosts.names.index(end.owner.name)] for end in (near, far)]
            await asyncio.gather(
                near.owner.secure(near, keys[0], server=False), far.owner.secure(far, keys[1], server=True)
            )

    return 1e6 * await cpu_seconds(secure) / 2000


async def memory(hosts: Hosts) -> float:
    gc.collect()
    tracemalloc.start()
    kept = [await hosts.connect(number % 1000, number * 7 % 1000) for number in range(10_000)]
    gc.collect()
    num_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return num_bytes / len(kept)


def main() -> None:
    rows = [
        ("small message, links without limit", in_world(2, small_message), "µs"),
        ("small message, home links", in_world(2, small_message, HOME), "µs"),
        ("megabyte, links without limit", in_world(65, megabyte), "ms"),
        ("megabyte, home links shared by 64 uploads", in_world(65, megabyte, HOME), "ms"),
        ("connection", in_world(1000, connection), "µs"),
        ("handshake, both ends", in_world(50, handshake), "µs"),
        ("idle connection, both ends", in_world(1000, memory), "bytes"),
    ]
    for what, value, unit in rows:
        print(f"{what:45} {value:8.1f} {unit}")


if __name__ == "__main__":
    main()
