"""A TLS connection whose bytes are received straight into the reader's memory.

The loop asks the protocol where to put what arrives. While a reader waits for a large piece it is that piece itself,
otherwise a small buffer, from which prefixes and heads are copied. asyncio's StreamReader copies everything twice: it
costs 2.4 times the throughput and twice the reader's CPU time.
"""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final, cast

from p2ptrain.errors import NetworkError
from p2ptrain.net.tls import key_in
from p2ptrain.runtime import Address

SEND_BUFFER_BYTES: Final = 256 * 1024  # the port's bound
RECEIVE_BUFFER_BYTES: Final = 64 * 1024
DIRECT_READ_BYTES: Final = 16 * 1024  # a TLS record: below it, one read per record would fill less than it brings
CLOSE_TIMEOUT: Final = 2.0


class TlsStream(asyncio.BufferedProtocol):
    """A SecureStream over one asyncio TLS transport."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(RECEIVE_BUFFER_BYTES)
        self._start = self._end = 0  # what is received and unread in the buffer
        self._wanted: memoryview | None = None  # the unfilled rest of the reader's view
        self._is_direct = False  # the loop is writing into `_wanted`
        self._filled: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._writing_paused = self._reading_paused = False
        self._lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reason = ""
        self.remote_public_key = b""
        self._remote = self._local = Address("", 0)

    @property
    def remote(self) -> Address:
        return self._remote

    @property
    def local(self) -> Address:
        return self._local

    async def read_into(self, view: memoryview) -> None:
        """Fill the whole view, received straight into it where it is large."""
        taken = min(len(view), self._end - self._start)
        view[:taken] = memoryview(self._buffer)[self._start : self._start + taken]
        self._start += taken
        if self._start == self._end:
            self._start = self._end = 0
        if taken == len(view):
            return
        self._check()
        self._wanted, self._filled = view[taken:], asyncio.get_running_loop().create_future()
        self._resume_reading()
        try:
            await self._filled
        finally:
            self._wanted = self._filled = None

    async def write(self, *buffers: bytes | bytearray | memoryview) -> None:
        """Queue the buffers in order, then wait until the send buffer is below its bound."""
        for batch in _batches(buffers):
            self._check().writelines(batch)
            await asyncio.sleep(0)  # uvloop writes, and asks to pause, at the end of its turn
            if self._writing_paused:
                self._check()
                self._drained = asyncio.get_running_loop().create_future()
                try:
                    await self._drained
                finally:
                    self._drained = None

    def write_soon(self, data: bytes) -> bool:
        """Queue some bytes if the send buffer is below its bound; return whether they were queued."""
        transport = self._check()
        if self._writing_paused or transport.get_write_buffer_size() + len(data) > SEND_BUFFER_BYTES:
            return False
        transport.write(data)
        return True

    async def close(self) -> None:
        """Send what is queued, then end; aborts when that takes longer than 2 s."""
        if self._transport is None or self._lost.done():
            return
        self._transport.close()
        try:
            await asyncio.wait_for(asyncio.shield(self._lost), CLOSE_TIMEOUT)
        except TimeoutError:
            self.abort()

    def abort(self) -> None:
        """Stop at once: what is queued is dropped. An orderly TLS end would go on receiving for up to 30 s."""
        if self._transport is not None:
            self._transport.abort()
        self._fail("this connection was closed")

    def learn_key(self) -> None:
        """Take the key that the TLS handshake proved; IncompatibleError when it is of another kind."""
        ssl_object = self._check().get_extra_info("ssl_object")
        self.remote_public_key = key_in(ssl_object.getpeercert(binary_form=True))

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=SEND_BUFFER_BYTES)
        self._remote = Address(*transport.get_extra_info("peername")[:2])
        self._local = Address(*transport.get_extra_info("sockname")[:2])

    def get_buffer(self, sizehint: int) -> memoryview:
        self._is_direct = self._wanted is not None and len(self._wanted) >= DIRECT_READ_BYTES
        if self._is_direct and self._wanted is not None:
            return self._wanted
        if self._start:  # make room for more; what is left is less than what a reader has asked for
            unread = self._buffer[self._start : self._end]
            self._buffer[: len(unread)] = unread
            self._start, self._end = 0, len(unread)
        return memoryview(self._buffer)[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_direct and self._wanted is not None:
            self._wanted = self._wanted[nbytes:]
        else:
            self._end += nbytes
            self._serve_from_buffer()
        if self._wanted is not None and len(self._wanted) == 0:
            self._wanted = None
            if self._filled is not None and not self._filled.done():
                self._filled.set_result(None)
        if self._end == len(self._buffer) and self._transport is not None:
            self._reading_paused = True
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def eof_received(self) -> None:
        self._fail("closed by the other end")

    def connection_lost(self, error: Exception | None) -> None:
        self._fail("closed by the other end" if error is None else f"lost ({type(error).__name__})")
        if not self._lost.done():
            self._lost.set_result(None)

    def _serve_from_buffer(self) -> None:
        if self._wanted is None:
            return
        taken = min(len(self._wanted), self._end - self._start)
        self._wanted[:taken] = memoryview(self._buffer)[self._start : self._start + taken]
        self._wanted = self._wanted[taken:]
        self._start += taken
        if self._start == self._end:
            self._start = self._end = 0

    def _resume_reading(self) -> None:
        if self._reading_paused and self._transport is not None:
            self._reading_paused = False
            self._transport.resume_reading()

    def _check(self) -> asyncio.Transport:
        if self._reason or self._transport is None:
            raise NetworkError(self._reason or "not connected")
        return self._transport

    def _fail(self, reason: str) -> None:
        self._reason = self._reason or reason
        for waiter in (self._filled, self._drained):
            if waiter is not None and not waiter.done():
                waiter.set_exception(NetworkError(self._reason))


def _batches(buffers: Sequence[bytes | bytearray | memoryview]) -> Iterator[Sequence[bytes | bytearray | memoryview]]:
    """Cut what is large: uvloop's TLS asks to pause only when something is written above what it has passed on."""
    if sum(map(len, buffers)) <= SEND_BUFFER_BYTES + RECEIVE_BUFFER_BYTES:  # a piece and its head
        yield buffers
        return
    for buffer in buffers:
        for start in range(0, len(buffer), SEND_BUFFER_BYTES):
            yield (memoryview(buffer)[start : start + SEND_BUFFER_BYTES],)
