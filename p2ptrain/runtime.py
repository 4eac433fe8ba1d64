"""The ports: everything that a peer takes from the world.

Time, chance, network, compute and storage are arguments. `real/` implements them with uvloop, sockets, threads and a
disk; `sim/` with a virtual clock and a network in memory. Both pass tests/conformance/. Outside those two packages
nothing reads a clock, draws chance, opens a socket, starts a thread or spawns a task without an owner.

Waiting is asyncio's own (`asyncio.sleep`, `asyncio.timeout`, queues, events): it follows the loop, and the loop is
virtual in the simulation.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """Where a peer can be dialled: an IP address or host name, and a TCP port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Return the address that `host:port` or `[v6]:port` spells; ValueError says what is wrong with it."""
        host, separator, port = text.rpartition(":")
        if not separator or not host:
            raise ValueError(f"{text!r} is not HOST:PORT")
        if host.startswith("[") != host.endswith("]") or (":" in host and not host.startswith("[")):
            raise ValueError(f"{text!r}: an IPv6 address stands in brackets, as in [::1]:4001")
        if not (port.isascii() and port.isdigit() and 0 <= int(port) <= 65535):
            raise ValueError(f"{text!r}: a port is a whole number from 0 to 65535")
        host = host.strip("[]")
        if not host or len(host) > 253 or any(character.isspace() or character in "/@," for character in host):
            raise ValueError(f"{text!r}: {host[:60]!r} is not a host")
        return cls(host, int(port))


class Clock(Protocol):
    """Time. `monotonic` never goes back; `wall` is what the machine believes, and peers' walls differ."""

    def monotonic(self) -> float: ...
    def wall(self) -> float: ...


class Entropy(Protocol):
    """Chance. `bytes` is for keys and nonces, `random` for choices (seeded in the simulation)."""

    def bytes(self, count: int) -> bytes: ...
    @property
    def random(self) -> random.Random: ...


class Signer(Protocol):
    """A key pair that `Network.secure` proves to the other end (see net/identity.py)."""

    @property
    def public_key(self) -> bytes: ...
    @property
    def private_key(self) -> bytes: ...


class RawStream(Protocol):
    """A connection on which nothing has been said yet."""

    @property
    def remote(self) -> Address: ...
    def abort(self) -> None: ...


class SecureStream(Protocol):
    """An encrypted, ordered stream of bytes to the holder of a known key.

    After `abort`, a loss of the connection or an end of the stream, every pending and later call raises NetworkError.
    One reader and one writer at a time.
    """

    @property
    def remote_public_key(self) -> bytes: ...
    @property
    def remote(self) -> Address: ...
    @property
    def local(self) -> Address: ...

    async def read_into(self, view: memoryview) -> None:
        """Fill the whole view, received straight into it."""

    async def write(self, *buffers: bytes | bytearray | memoryview) -> None:
        """Queue the buffers in order, then wait until the send buffer is below its bound (256 KiB)."""

    def write_soon(self, data: bytes) -> bool:
        """Queue some bytes if the send buffer is below its bound; return whether they were queued."""

    async def close(self) -> None:
        """Send what is queued, then end; aborts when that takes longer than 2 s."""

    def abort(self) -> None:
        """Stop at once: what is queued is dropped."""


class Listener(Protocol):
    """A bound port; `address` has the port that was really bound."""

    @property
    def address(self) -> Address: ...
    async def close(self) -> None: ...


class Network(Protocol):
    """Connections in two steps, so that either can be replaced: `connect` reaches, `secure` proves."""

    async def listen(self, address: Address, on_stream: Callable[[RawStream], None]) -> Listener:
        """Accept streams; AddressInUseError when another process has the port, ConfigError when it is not ours."""

    async def connect(self, address: Address) -> RawStream:
        """Dial; NetworkError with a short reason ("refused", "no route", "timed out", "unknown host")."""

    async def secure(self, raw: RawStream, signer: Signer, *, server: bool) -> SecureStream:
        """Prove our key, learn theirs; NetworkError, or IncompatibleError when the other end does not speak TLS 1.3 with a key."""

    def local_hosts(self) -> list[str]:
        """The addresses of this machine that others may be able to dial, best first; loopback last."""


class Drive(Protocol):
    """A learner that is being driven: asked to stop, it ends at its next step boundary."""

    def stop(self) -> None: ...
    async def stopped(self) -> None:
        """Wait for the end; raises what the learner raised."""


class Compute(Protocol):
    """Work that must not run on the event loop."""

    async def run(self, function: Callable[..., Result], *args: Any) -> Result:
        """Run a function on a worker thread and return its result."""

    def drive(self, step: Callable[[], float]) -> Drive:
        """Call `step` again and again on a thread of its own until stopped.

        `step` returns how many seconds it wants to be left alone before the next call (0: none). In the simulation
        a step costs virtual time instead.
        """

    def post(self, function: Callable[..., None], *args: Any) -> None:
        """From any thread: call a function on the event loop, soon. Does nothing once the loop is closed."""


class Storage(Protocol):
    """Named blobs on disk. Blocking: call it through `Compute.run`. Names are `word/word.ext`, never from a peer."""

    def read(self, name: str) -> bytes | None:
        """Return the blob, or None when there is none; StorageError when it cannot be read."""

    def write(self, name: str, data: bytes | bytearray | memoryview) -> None:
        """Replace the blob atomically and durably: after a crash there is the old one or the new one."""

    def delete(self, name: str) -> None: ...
    def names(self) -> list[str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """The five ports of one peer."""

    clock: Clock
    entropy: Entropy
    network: Network
    compute: Compute
    storage: Storage
