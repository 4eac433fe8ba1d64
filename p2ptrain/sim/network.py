"""A network in memory: hosts, latencies, limited links, partitions, sudden deaths.

Hosts are IP addresses as text. Each peer has a `SimHost`, its Network port. Keys are exchanged as the real network
does, one round trip, but taken at their word. All delays follow from the loop's virtual clock and from what was set
here, so a run can be repeated.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from p2ptrain.errors import AddressInUseError, ConfigError, IncompatibleError, NetworkError
from p2ptrain.runtime import Address, Listener, RawStream, SecureStream, Signer
from p2ptrain.sim.pipes import Link, Pipe

CONNECT_TIMEOUT: Final = 5.0  # as in the real network
SECURE_TIMEOUT: Final = 5.0
FIRST_EPHEMERAL_PORT: Final = 40_000
_GREETING: Final = b"simulated TLS 1."  # 16 bytes, then the public key


class SimNetwork:
    """The world between the hosts."""

    def __init__(self, *, latency: float = 0.01) -> None:
        self._default_latency = latency
        self._latencies: dict[tuple[str, str], float] = {}
        self._links: dict[str, tuple[Link, Link]] = {}
        self._cuts: list[tuple[frozenset[str], frozenset[str]]] = []
        self._listeners: dict[Address, _SimListener] = {}
        self._streams: list[SimStream] = []
        self._processes: list[SimHost] = []
        self._unreachable: set[str] = set()
        self._next_port = FIRST_EPHEMERAL_PORT
        self.num_delivered_bytes: dict[str, int] = {}  # by receiving host, of connections that have ended

    def host(self, name: str) -> "SimHost":
        """Return the Network port of a (new) process on a host."""
        process = SimHost(self, name)
        self._processes.append(process)
        return process

    def set_latency(self, a: str, b: str, seconds: float) -> None:
        """Set the one-way delay of connections opened from now on, in both directions."""
        self._latencies[a, b] = self._latencies[b, a] = seconds

    def set_bandwidth(self, host: str, bytes_per_second: float | None) -> None:
        """Limit what a host sends, and what it receives, each to so many bytes per second."""
        for link in self._links_of(host):
            link.bytes_per_second = bytes_per_second

    def hide(self, host: str) -> None:
        """Let nobody dial a host, as behind a home router; it can still dial others."""
        self._unreachable.add(host)

    def partition(self, left: Iterable[str], right: Iterable[str]) -> None:
        """Cut all traffic between two sets of hosts; what is under way waits for `heal`."""
        self._cuts.append((frozenset(left), frozenset(right)))

    def heal(self) -> None:
        """End every partition."""
        self._cuts.clear()
        for stream in list(self._streams):
            stream.incoming.release()

    def kill(self, host: str) -> None:
        """Kill the process on a host: its ports vanish and its connections are reset."""
        for process in [process for process in self._processes if process.name == host]:
            process.alive = False
            self._processes.remove(process)
        for address in [address for address in self._listeners if address.host == host]:
            del self._listeners[address]
        for stream in [stream for stream in self._streams if stream.local.host == host]:
            stream.abort()

    def is_cut(self, a: str, b: str) -> bool:
        return any((a in left and b in right) or (b in left and a in right) for left, right in self._cuts)

    def is_reachable(self, host: str) -> bool:
        return host not in self._unreachable

    def latency(self, a: str, b: str) -> float:
        return 0.0 if a == b else self._latencies.get((a, b), self._default_latency)

    def port(self) -> int:
        self._next_port += 1
        return self._next_port

    def add_listener(self, listener: "_SimListener") -> None:
        if listener.address in self._listeners:
            raise AddressInUseError(f"{listener.address} is in use by another process")
        self._listeners[listener.address] = listener

    def remove_listener(self, listener: "_SimListener") -> None:
        if self._listeners.get(listener.address) is listener:
            del self._listeners[listener.address]

    def listener_at(self, address: Address) -> "_SimListener | None":
        return self._listeners.get(address)

    def join(self, near: "SimHost", listener: "_SimListener") -> tuple["SimStream", "SimStream"]:
        """Return the two ends of a new connection, the dialler's first."""
        far, dialled_from = listener.owner, Address(near.name, self.port())
        there, back = self._pipe(near.name, far.name), self._pipe(far.name, near.name)
        ends = (
            SimStream(near, back, there, dialled_from, listener.address),
            SimStream(far, there, back, listener.address, dialled_from),
        )
        self._streams.extend(ends)
        return ends

    def forget(self, stream: "SimStream") -> None:
        if stream in self._streams:
            self._streams.remove(stream)
            host, count = stream.local.host, stream.incoming.num_delivered_bytes
            self.num_delivered_bytes[host] = self.num_delivered_bytes.get(host, 0) + count

    def _pipe(self, source: str, target: str) -> Pipe:
        uplink, downlink = self._links_of(source)[0], self._links_of(target)[1]
        return Pipe(uplink, downlink, self.latency(source, target), lambda: self.is_cut(source, target))

    def _links_of(self, host: str) -> tuple[Link, Link]:
        return self._links.setdefault(host, (Link(None), Link(None)))


class SimStream:
    """One end of a connection, before (RawStream) and after (SecureStream) the keys are known."""

    def __init__(self, owner: "SimHost", incoming: Pipe, outgoing: Pipe, local: Address, remote: Address) -> None:
        self.owner, self.incoming, self._outgoing = owner, incoming, outgoing
        self._local, self._remote = local, remote
        self._ended: str | None = None
        self.remote_public_key = b""

    @property
    def remote(self) -> Address:
        return self._remote

    @property
    def local(self) -> Address:
        return self._local

    async def read_into(self, view: memoryview) -> None:
        if self._ended is not None:
            raise NetworkError(self._ended)
        await self.incoming.read_into(view)

    async def write(self, *buffers: bytes | bytearray | memoryview) -> None:
        ended = self._ended or self.incoming.ended
        if ended is not None:
            raise NetworkError(ended)
        for buffer in buffers:
            self._outgoing.write(bytes(buffer))
        await self._outgoing.drained()

    async def close(self) -> None:
        self._end("closed by the other end")

    def abort(self) -> None:
        self._outgoing.drop()
        self._end("reset by the other end")

    def _end(self, reason: str) -> None:
        if self._ended is None:
            self._ended = "this connection was closed"
            self._outgoing.end(reason)
            self.incoming.break_off(self._ended)
            self.owner.network.forget(self)


class _SimListener:
    """A port in use."""

    def __init__(self, owner: "SimHost", address: Address, on_stream: Callable[[RawStream], None]) -> None:
        self.owner, self._address, self.on_stream = owner, address, on_stream

    @property
    def address(self) -> Address:
        return self._address

    async def close(self) -> None:
        self.owner.network.remove_listener(self)


class SimHost:
    """The Network port of one process on a host."""

    def __init__(self, network: SimNetwork, name: str) -> None:
        self.network, self.name, self.alive = network, name, True

    async def listen(self, address: Address, on_stream: Callable[[RawStream], None]) -> Listener:
        if address.host not in (self.name, "0.0.0.0"):
            raise ConfigError(f"{address} is no address of this machine; use 0.0.0.0 to listen on all of them")
        bound = Address(self.name, address.port or self.network.port())
        listener = _SimListener(self, bound, on_stream)
        self.network.add_listener(listener)
        return listener

    async def connect(self, address: Address) -> RawStream:
        delay = self.network.latency(self.name, address.host)
        if self.network.is_cut(self.name, address.host) or not self.network.is_reachable(address.host):
            await asyncio.sleep(CONNECT_TIMEOUT)
            raise NetworkError("timed out")
        await asyncio.sleep(delay)
        listener = self.network.listener_at(address)
        if not self.alive or listener is None:
            await asyncio.sleep(delay)
            raise NetworkError("refused")
        near, far = self.network.join(self, listener)
        listener.on_stream(far)
        await asyncio.sleep(delay)
        return near

    async def secure(self, raw: RawStream, signer: Signer, *, server: bool) -> SecureStream:
        assert isinstance(raw, SimStream)
        first = bytearray(len(_GREETING) + 32)
        try:
            async with asyncio.timeout(SECURE_TIMEOUT):
                await raw.write(_GREETING + signer.public_key)
                await raw.read_into(memoryview(first))
        except TimeoutError:
            raw.abort()
            raise NetworkError(f"no TLS answer within {SECURE_TIMEOUT:g} s") from None
        except (NetworkError, asyncio.CancelledError):
            raw.abort()
            raise
        if not first.startswith(_GREETING):
            raw.abort()
            raise IncompatibleError("does not speak TLS 1.3")
        raw.remote_public_key = bytes(first[len(_GREETING) :])
        return raw

    def local_hosts(self) -> list[str]:
        return [self.name]
