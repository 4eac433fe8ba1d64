"""What waits to be written on a connection: control frames first, then bodies in turn.

A control frame never waits behind a body, and no body behind another: each gives one piece in its turn. Pieces grow
while the connection is fast and shrink while it is slow, so that a slow link is not blocked by a single one.
"""

import asyncio
from collections import deque
from typing import Final

from p2ptrain.net.bodies import OutgoingBody
from p2ptrain.wire.frames import MAX_PIECE_BYTES, Data, encode_frame
from p2ptrain.wire.messages import Message

MIN_PIECE_BYTES: Final = 16 * 1024  # a TLS record
FAST_WRITE: Final = 0.05  # s for one piece: below it pieces grow
SLOW_WRITE: Final = 0.5  # s: above it they shrink

MAX_WAITING_FRAMES: Final = 2048  # more control frames than this wait only for somebody who does not read


class Outbox:
    """Frames in the order in which they are to be written."""

    def __init__(self) -> None:
        self._control: deque[tuple[bytes, asyncio.Future[None] | None]] = deque()
        self._bodies: dict[int, tuple[OutgoingBody, asyncio.Future[None] | None]] = {}
        self._turns: deque[int] = deque()  # streams that may send a piece, the next one first
        self._piece_bytes = MIN_PIECE_BYTES * 4
        self._filled = asyncio.Event()

    @property
    def is_overfull(self) -> bool:
        return len(self._control) > MAX_WAITING_FRAMES

    def put(self, head: Message, written: asyncio.Future[None] | None = None) -> None:
        """Queue a control frame; `written` is resolved once it was handed to the connection."""
        self._control.append((encode_frame(head), written))
        self._filled.set()

    def add_body(self, stream: int, body: OutgoingBody, written: asyncio.Future[None] | None = None) -> None:
        """Send a body as its credit allows; `written` is resolved with its last piece."""
        self._bodies[stream] = body, written
        self._take_turn(stream)

    def add_credit(self, stream: int, more_bytes: int) -> None:
        """Let a stream's body go on. Credit for a body that has ended is of no use, and no harm."""
        if stream in self._bodies:
            self._bodies[stream][0].credit_bytes += more_bytes
            self._take_turn(stream)

    def drop_body(self, stream: int) -> None:
        """Send no more of a stream's body."""
        self._bodies.pop(stream, None)

    async def wait(self) -> None:
        """Wait until there is something to write."""
        await self._filled.wait()

    def take(self) -> tuple[list[bytes | memoryview], asyncio.Future[None] | None]:
        """Return the buffers of the next frame (none: nothing waits) and whom to tell once they are written."""
        if self._control:
            frame, written = self._control.popleft()
            return [frame], written
        while self._turns:
            stream = self._turns.popleft()
            if stream in self._bodies and self._bodies[stream][0].may_send:
                return self._take_piece(stream)
        self._filled.clear()
        return [], None

    def adapt(self, seconds: float) -> None:
        """Choose the size of the next pieces by how long the last one took to write."""
        if seconds < FAST_WRITE:
            self._piece_bytes = min(self._piece_bytes * 2, MAX_PIECE_BYTES)
        elif seconds > SLOW_WRITE:
            self._piece_bytes = max(self._piece_bytes // 2, MIN_PIECE_BYTES)

    def _take_piece(self, stream: int) -> tuple[list[bytes | memoryview], asyncio.Future[None] | None]:
        body, written = self._bodies[stream]
        piece = body.take(self._piece_bytes)
        frame: list[bytes | memoryview] = [encode_frame(Data(stream=stream), sum(map(len, piece))), *piece]
        if body.remaining_bytes == 0:
            del self._bodies[stream]
            return frame, written
        if body.may_send:
            self._turns.append(stream)
        return frame, None

    def _take_turn(self, stream: int) -> None:
        if stream not in self._turns and self._bodies[stream][0].may_send:
            self._turns.append(stream)
            self._filled.set()
