"""How simulated bytes travel: through a sender's uplink, a delay, and a receiver's downlink, in order.

A host's link of limited bandwidth serves its pipes in turn, one quantum each, as competing TCP connections roughly
share a real one. A pipe is one direction of a connection. What would cross a partition waits, as TCP's
retransmissions do, and arrives when the partition heals.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from p2ptrain.errors import NetworkError

QUANTUM_BYTES: Final = 16 * 1024  # what a pipe sends in its turn: a TLS record
SEND_BUFFER_BYTES: Final = 256 * 1024  # the port's bound for written, unsent bytes
WINDOW_BYTES: Final = 4 * 1024 * 1024  # sent, unread bytes: a usual TCP receive window

Parcel = tuple[int, Callable[[], None]]  # its bytes, and what happens when they have passed


class Link:
    """One direction of a host's access to the network: bytes per second, None for no limit."""

    def __init__(self, bytes_per_second: float | None) -> None:
        self.bytes_per_second = bytes_per_second
        self._waiting: dict[Pipe, deque[Parcel]] = {}
        self._busy = False

    def send(self, pipe: "Pipe", parcel: Parcel) -> None:
        """Pass a parcel in its turn."""
        if self.bytes_per_second is None:
            parcel[1]()
            return
        self._waiting.setdefault(pipe, deque()).append(parcel)
        if not self._busy:
            self._serve()

    def forget(self, pipe: "Pipe") -> None:
        """Drop what the pipe still has waiting here."""
        self._waiting.pop(pipe, None)

    def _serve(self) -> None:
        self._busy = bool(self._waiting)
        if not self._waiting or self.bytes_per_second is None:
            return
        pipe = next(iter(self._waiting))
        queue = self._waiting.pop(pipe)
        num_bytes, passed = queue.popleft()
        if queue:
            self._waiting[pipe] = queue  # behind the others
        asyncio.get_running_loop().call_later(num_bytes / self.bytes_per_second, self._passed, passed)

    def _passed(self, passed: Callable[[], None]) -> None:
        passed()
        self._serve()


class Pipe:
    """One direction of a connection: `write` and `end` on one side, `read` on the other."""

    def __init__(self, uplink: Link, downlink: Link, latency: float, is_cut: Callable[[], bool]) -> None:
        self._uplink, self._downlink, self._latency, self._is_cut = uplink, downlink, latency, is_cut
        self._in_flight: deque[Callable[[], None]] = deque()  # timers of one instant fire in no given order
        self._held: list[Callable[[], None]] = []  # arrived at a partition
        self._buffer = bytearray()
        self._changed = asyncio.Event()
        self._unsent_bytes = self._unread_bytes = 0
        self.ended: str | None = None  # why, once it has
        self.num_delivered_bytes = 0

    def write(self, data: bytes) -> None:
        """Queue bytes; they are split into quanta, so that other pipes get their turn between them."""
        for start in range(0, len(data), QUANTUM_BYTES):
            piece = data[start : start + QUANTUM_BYTES]
            self._unsent_bytes += len(piece)
            self._uplink.send(self, (len(piece), lambda piece=piece: self._sent(piece)))  # type: ignore[misc]

    def end(self, reason: str) -> None:
        """Let the reader see the end after what was written."""
        self._uplink.send(self, (0, lambda: self._travel(0, lambda: self.break_off(reason))))

    def drop(self) -> None:
        """Forget what has not left the sender."""
        self._uplink.forget(self)

    def break_off(self, reason: str) -> None:
        """End for both sides, now: what has arrived can still be read."""
        self.ended = self.ended or reason
        self._changed.set()

    async def drained(self) -> None:
        """Wait until the send buffer and the window have room."""
        while self._unsent_bytes > SEND_BUFFER_BYTES or self._unread_bytes > WINDOW_BYTES:
            await self._change()

    async def read_into(self, view: memoryview) -> None:
        filled = 0
        while filled < len(view):
            count = min(len(view) - filled, len(self._buffer))
            view[filled : filled + count] = self._buffer[:count]
            del self._buffer[:count]
            filled += count
            self._unread_bytes -= count
            self._changed.set()
            if filled < len(view):
                await self._change()

    def release(self) -> None:
        """Deliver what a partition held back."""
        held, self._held = self._held, []
        for arrive in held:
            self._pass_or_hold(arrive)

    async def _change(self) -> None:
        if self.ended is not None:
            raise NetworkError(self.ended)
        self._changed.clear()
        await self._changed.wait()

    def _sent(self, piece: bytes) -> None:
        self._unsent_bytes -= len(piece)
        self._unread_bytes += len(piece)
        self._changed.set()
        self._travel(len(piece), lambda: self._arrive(piece))

    def _travel(self, num_bytes: int, arrive: Callable[[], None]) -> None:
        self._in_flight.append(lambda: self._downlink.send(self, (num_bytes, arrive)))
        asyncio.get_running_loop().call_later(self._latency, self._land)

    def _land(self) -> None:
        self._pass_or_hold(self._in_flight.popleft())

    def _pass_or_hold(self, land: Callable[[], None]) -> None:
        if self._held or self._is_cut():
            self._held.append(land)
        else:
            land()

    def _arrive(self, piece: bytes) -> None:
        if self.ended is None:
            self._buffer += piece
            self.num_delivered_bytes += len(piece)
            self._changed.set()
