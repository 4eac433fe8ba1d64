"""How fast is a bulk call, and what does it cost? Two processes on loopback, TLS 1.3, one bulk connection.

    python benchmarks/transport.py --megabytes 256 --repeats 4

Prints one table: megabytes per second, and the CPU seconds that each end spends per gigabyte. Wall times suffer when
the machine is busy with other work; CPU seconds hardly do.
"""

import argparse
import asyncio
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import ClassVar

from p2ptrain.events import Events
from p2ptrain.ids import PeerId, RunId, digest
from p2ptrain.net.identity import Identity
from p2ptrain.net.transport import Transport
from p2ptrain.real.main import run
from p2ptrain.real.runtime import create_runtime
from p2ptrain.runtime import Address
from p2ptrain.wire.messages import Message

RUN_ID = RunId(digest("benchmark", b"transport"))
MEGABYTE = 1_000_000
CALL_TIMEOUT = 300.0


class Upload(Message):
    method: ClassVar[str] = "benchmark.upload"


class Download(Message):
    method: ClassVar[str] = "benchmark.download"
    body_bytes: int


class Spent(Message):
    cpu_seconds: float  # by the server's process since it started


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def transport_in(directory: str) -> Transport:
    runtime = create_runtime(Path(directory))
    identity = Identity.generate(runtime.entropy)
    return Transport(runtime=runtime, identity=identity, run_id=RUN_ID, events=Events(runtime.clock))


async def serve(directory: str) -> None:
    transport = transport_in(directory)
    source = bytearray()

    async def take(sender: PeerId, request: Upload, body: bytearray) -> Spent:
        return Spent(cpu_seconds=cpu_seconds())

    async def give(sender: PeerId, request: Download, body: bytearray) -> tuple[Spent, memoryview]:
        source.extend(bytes(max(0, request.body_bytes - len(source))))
        return Spent(cpu_seconds=cpu_seconds()), memoryview(source)[: request.body_bytes]

    transport.handle(Upload, take, max_body_bytes=1 << 40)
    transport.handle(Download, give)
    print(await transport.listen(Address("127.0.0.1", 0)), flush=True)
    await asyncio.Event().wait()


async def measure(
    address: Address, directory: str, num_bytes: int, num_repeats: int
) -> list[tuple[str, float, float, float]]:
    """Return (direction, MB/s, CPU s per GB of the caller, CPU s per GB of the server) for each direction."""
    transport = transport_in(directory)
    server = await transport.dial(address)
    source, target = bytes(num_bytes), bytearray(num_bytes)

    async def upload() -> None:
        await transport.call(server, Upload(), Spent, timeout=CALL_TIMEOUT, body=source, bulk=True)

    async def download() -> None:
        request = Download(body_bytes=num_bytes)
        await transport.call(server, request, Spent, timeout=CALL_TIMEOUT, bulk=True, into=memoryview(target))

    async def server_cpu() -> float:
        return (await transport.call(server, Upload(), Spent, timeout=CALL_TIMEOUT)).message.cpu_seconds

    async def rates(name: str, transfer: Callable[[], Awaitable[None]]) -> tuple[str, float, float, float]:
        await transfer()  # opens the bulk connection and touches the memory
        began_at, ours, theirs = time.perf_counter(), cpu_seconds(), await server_cpu()
        for _ in range(num_repeats):
            await transfer()
        elapsed, total = time.perf_counter() - began_at, num_bytes * num_repeats
        ours, theirs = cpu_seconds() - ours, await server_cpu() - theirs
        return name, total / elapsed / MEGABYTE, ours / total * 1e9, theirs / total * 1e9

    rows = [await rates("upload (body)", upload), await rates("download (into memory)", download)]
    await transport.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=256, help="size of one body (default 256)")
    parser.add_argument("--repeats", type=int, default=4, help="bodies in each direction (default 4)")
    parser.add_argument("--serve", metavar="DIRECTORY", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        run(lambda: serve(options.serve))
        return
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, __file__, "--serve", f"{directory}/server"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            address = Address.parse(server.stdout.readline().strip())
            rows = run(lambda: measure(address, f"{directory}/client", options.megabytes * MEGABYTE, options.repeats))
        finally:
            server.kill()
            server.wait()
    print(f"{'one bulk call on loopback, TLS 1.3':36}{'MB/s':>8}{'caller CPU s/GB':>18}{'server CPU s/GB':>18}")
    for name, megabytes_per_second, ours, theirs in rows:
        print(f"{name:36}{megabytes_per_second:8.0f}{ours:18.2f}{theirs:18.2f}")


if __name__ == "__main__":
    main()
