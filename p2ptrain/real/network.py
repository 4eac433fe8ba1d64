"""TCP and TLS 1.3 on the machine's own sockets.

A port is bound with SO_REUSEADDR, so that a restart after a crash gets it at once, and never with SO_REUSEPORT, which
would let a second process share it unseen. Every step has its own limit: a port that accepts and stays mute would hold
asyncio's TLS for a minute.
"""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final

from p2ptrain.errors import AddressInUseError, ConfigError, IncompatibleError, NetworkError
from p2ptrain.net.tls import contexts
from p2ptrain.real.stream import CLOSE_TIMEOUT, TlsStream
from p2ptrain.runtime import Address, Listener, RawStream, SecureStream, Signer

CONNECT_TIMEOUT: Final = 5.0
SECURE_TIMEOUT: Final = 5.0
KEEP_ALIVE_SECONDS: Final = 25  # home routers forget silent connections, UDP ones after 30 s
BACKLOG: Final = 256
ACCEPT_PAUSE: Final = 0.5  # s after the descriptors ran out: accepting again at once would spin

_log: Final = logging.getLogger(__name__)
_REASONS: Final = {
    errno.ECONNREFUSED: "refused",
    errno.ECONNRESET: "reset by the other end",
    errno.EHOSTUNREACH: "no route",
    errno.ENETUNREACH: "no route",
    errno.ETIMEDOUT: "timed out",
    errno.EMFILE: "this process has no free file descriptors",
    errno.ENFILE: "this machine has no free file descriptors",
}


class TcpRawStream:
    """A connected socket on which nothing has been said."""

    def __init__(self, connected: socket.socket, remote: Address) -> None:
        self.socket, self._remote = connected, remote

    @property
    def remote(self) -> Address:
        return self._remote

    def abort(self) -> None:
        self.socket.close()


class TcpListener:
    """A bound port and the task that accepts on it."""

    def __init__(self, bound: socket.socket, on_stream: Callable[[RawStream], None]) -> None:
        self._socket, self._on_stream = bound, on_stream
        self._address = Address(*bound.getsockname()[:2])
        self._task = asyncio.create_task(self._accept(), name=f"accept {self._address}")

    @property
    def address(self) -> Address:
        return self._address

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._socket.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, remote = await loop.sock_accept(self._socket)
            except OSError as error:  # out of descriptors, or the dialler is gone: neither ends the listener
                _log.debug("accepting on %s: %s", self._address, error)
                await asyncio.sleep(ACCEPT_PAUSE)
                continue
            _tune(accepted)
            self._on_stream(TcpRawStream(accepted, Address(*remote[:2])))


class TcpNetwork:
    """The Network port over TCP."""

    def __init__(self) -> None:
        self.num_failed_handshakes = 0  # of those who dialled us: port scans, other protocols, other certificates

    async def listen(self, address: Address, on_stream: Callable[[RawStream], None]) -> Listener:
        family, target = (await _resolve(address))[0]
        bound = socket.socket(family, socket.SOCK_STREAM)
        try:
            bound.setblocking(False)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(target)
            bound.listen(BACKLOG)
        except OSError as error:
            bound.close()
            raise _listen_error(address, error) from None
        return TcpListener(bound, on_stream)

    async def connect(self, address: Address) -> RawStream:
        error = NetworkError("unknown host")
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                for family, target in await _resolve(address):
                    try:
                        return TcpRawStream(await _connect(family, target), address)
                    except OSError as cause:
                        error = NetworkError(_REASONS.get(cause.errno or 0, cause.strerror or str(cause)))
        except TimeoutError:
            error = NetworkError("timed out")
        except ConfigError:
            pass
        raise error

    async def secure(self, raw: RawStream, signer: Signer, *, server: bool) -> SecureStream:
        assert isinstance(raw, TcpRawStream)
        try:
            return await _handshake(raw, contexts(signer.private_key), server=server)
        except (NetworkError, IncompatibleError) as error:
            raw.abort()
            if server:
                self.num_failed_handshakes += 1
                _log.debug("TLS handshake with %s: %s", raw.remote, error)
            raise
        except asyncio.CancelledError:
            raw.abort()
            raise

    def local_hosts(self) -> list[str]:
        outward = [_outward_host(socket.AF_INET, "192.0.2.1"), _outward_host(socket.AF_INET6, "2001:db8::1")]
        return [host for host in outward if host is not None] + ["127.0.0.1"]


async def _handshake(
    raw: TcpRawStream, client_and_server: tuple[ssl.SSLContext, ssl.SSLContext], *, server: bool
) -> TlsStream:
    loop = asyncio.get_running_loop()
    client_context, server_context = client_and_server
    stream = TlsStream()  # uvloop returns its own protocol in place of ours from connect_accepted_socket
    try:
        async with asyncio.timeout(SECURE_TIMEOUT):
            if server:
                await loop.connect_accepted_socket(
                    lambda: stream, raw.socket, ssl=server_context, ssl_shutdown_timeout=CLOSE_TIMEOUT
                )
            else:
                await loop.create_connection(
                    lambda: stream,
                    sock=raw.socket,
                    ssl=client_context,
                    server_hostname="",
                    ssl_shutdown_timeout=CLOSE_TIMEOUT,
                )
    except TimeoutError:
        raise NetworkError(f"no TLS answer within {SECURE_TIMEOUT:g} s") from None
    except ssl.SSLError as error:
        raise IncompatibleError(f"does not speak p2ptrain's TLS ({(error.reason or 'no reason').lower()})") from None
    except OSError:
        raise NetworkError("closed the connection during the TLS handshake") from None
    stream.learn_key()
    return stream


async def _resolve(address: Address) -> list[tuple[socket.AddressFamily, tuple[str, int]]]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise ConfigError(f"{address}: {address.host!r} is no address and no host that this machine knows") from None
    return [(entry[0], entry[4]) for entry in found]  # type: ignore[misc]


async def _connect(family: socket.AddressFamily, target: tuple[str, int]) -> socket.socket:
    connected = socket.socket(family, socket.SOCK_STREAM)
    try:
        connected.setblocking(False)
        _tune(connected)
        await asyncio.get_running_loop().sock_connect(connected, target)
    except BaseException:
        connected.close()
        raise
    return connected


def _tune(connection: socket.socket) -> None:
    """Send small frames at once, and notice a dead end of a silent connection."""
    connection.setblocking(False)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option in ("TCP_KEEPIDLE", "TCP_KEEPINTVL"):
        if hasattr(socket, option):  # named differently on other systems, whose defaults then hold
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), KEEP_ALIVE_SECONDS)


def _listen_error(address: Address, error: OSError) -> AddressInUseError | ConfigError:
    if error.errno == errno.EADDRINUSE:
        return AddressInUseError(f"{address} is in use by another process; choose another port, or 0 for any")
    if error.errno == errno.EADDRNOTAVAIL:
        return ConfigError(f"{address} is no address of this machine; use 0.0.0.0 to listen on all of them")
    return ConfigError(f"cannot listen on {address}: {error.strerror}")


def _outward_host(family: socket.AddressFamily, somewhere: str) -> str | None:
    """Return the address from which this machine would send; "connecting" a UDP socket sends nothing."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((somewhere, 9))
        except OSError:
            return None
        host: str = probe.getsockname()[0]
        return host
