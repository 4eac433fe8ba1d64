"""How much do idle peers talk? Control bytes per peer and minute: gossip and DHT, without any training.

    python benchmarks/idle_chatter.py --peers 5 --minutes 10

Starts peers on loopback, waits until each knows all others, then counts what crosses their connections. The DHT speaks
every four minutes, so a shorter run measures gossip and the join alone. Target: at most 60 kB.
"""

import argparse
import asyncio
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

from p2ptrain.discovery.directory import Directory
from p2ptrain.discovery.members import Members
from p2ptrain.events import Events
from p2ptrain.ids import RunId, digest
from p2ptrain.link import LinkPeer
from p2ptrain.net.identity import Identity
from p2ptrain.net.transport import Transport
from p2ptrain.real.main import run
from p2ptrain.real.runtime import create_runtime
from p2ptrain.runtime import Address

TARGET_BYTES = 60_000
RUN_ID = RunId(digest("benchmark", b"idle chatter"))


class IdlePeer:
    """A transport, its members, its directory."""

    def __init__(self, directory: Path) -> None:
        self._runtime = create_runtime(directory)
        self._events = Events(self._runtime.clock)
        self._identity = Identity.generate(self._runtime.entropy)
        self.transport = Transport(runtime=self._runtime, identity=self._identity, run_id=RUN_ID, events=self._events)

    async def start(self, bootstrap: list[LinkPeer]) -> LinkPeer:
        address = await self.transport.listen(Address("127.0.0.1", 0))
        self.members = Members(
            runtime=self._runtime,
            transport=self.transport,
            identity=self._identity,
            events=self._events,
            role="trainer",
            bootstrap=bootstrap,
            own_addresses=[address],
        )
        self._directory = Directory(
            runtime=self._runtime,
            transport=self.transport,
            identity=self._identity,
            events=self._events,
            members=self.members,
        )
        await self.members.start()
        await self._directory.start()
        return LinkPeer(self.transport.peer_id, address)

    async def leave(self) -> None:
        await self.members.leave()
        await self._directory.leave()
        await self.transport.close()

    def num_bytes(self) -> dict[str, int]:
        counters = self.transport.counters()
        return {name: counters[name] for name in ("bytes_sent", "bytes_received")}


async def measure(num_peers: int, minutes: float) -> None:
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        peers = [IdlePeer(directory / str(number)) for number in range(num_peers)]
        bootstrap: list[LinkPeer] = []
        for peer in peers:
            link = await peer.start(bootstrap)
            bootstrap = bootstrap or [link]
            stack.push_async_callback(peer.leave)
        async with asyncio.timeout(120.0):
            while any(len(peer.members.live()) < min(num_peers - 1, 128) for peer in peers):
                await asyncio.sleep(0.1)
        before = [peer.num_bytes() for peer in peers]
        await asyncio.sleep(minutes * 60.0)
        after = [peer.num_bytes() for peer in peers]
    report(before, after, minutes)


def report(before: list[dict[str, int]], after: list[dict[str, int]], minutes: float) -> None:
    print(f"{len(before)} idle peers, {minutes:g} minutes; bytes per peer and minute:")
    total = 0.0
    for name in ("bytes_sent", "bytes_received"):
        per_minute = [(late[name] - early[name]) / minutes for early, late in zip(before, after, strict=True)]
        mean = sum(per_minute) / len(per_minute)
        total += mean
        print(f"  {name:<15} mean {mean:8,.0f}   max {max(per_minute):8,.0f}")
    verdict = "within" if total <= TARGET_BYTES else "ABOVE"
    print(f"  {'both':<15} mean {total:8,.0f}   {verdict} the target of {TARGET_BYTES:,}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peers", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=5.0)
    arguments = parser.parse_args()
    run(lambda: measure(arguments.peers, arguments.minutes))


if __name__ == "__main__":
    main()
