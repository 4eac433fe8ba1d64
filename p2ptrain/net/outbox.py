"""What waits to be written on a connection: control frames first, then bodies in turn.

A control frame never waits behind a body, and no body behind another: each gives one piece in its turn. The size of
pieces follows the speed of the connection, so that a slow link is never taken up by a single one for long.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from p2ptrain.net.bodies import OutgoingBody
from p2ptrain.wire.frames import MAX_PIECE_BYTES, Data, encode_frame
from p2ptrain.wire.messages import Message

MIN_PIECE_BYTES: Final = 16 * 1024  # a TLS record
FIRST_PIECE_BYTES: Final = 64 * 1024  # until the speed is known
PIECE_SECONDS: Final = 0.1  # how long a piece should occupy the connection
SPEED_WINDOW: Final = 0.25  # s over which the speed is measured
MAX_WAITING_FRAMES: Final = 2048  # more control frames than this wait only for somebody who does not read


class Outbox:
    """Frames in the order in which they are to be written."""

    def __init__(self) -> None:
        self._control: deque[tuple[bytes, asyncio.Future[None] | None]] = deque()
        self._bodies: dict[int, tuple[OutgoingBody, asyncio.Future[None] | None]] = {}
        self._turns: deque[int] = deque()  # streams that may send a piece, the next one first
        self._piece_bytes = FIRST_PIECE_BYTES
        self._window_began_at = self._window_bytes = 0.0
        self.write_soon: Callable[[bytes], bool] = lambda frame: False
        """Writes a control frame at once, past the queue, when the connection can take it; returns whether it did."""
        self.on_filled: Callable[[], None] = lambda: None
        """Called when something has to wait here for being written."""

    @property
    def is_overfull(self) -> bool:
        return len(self._control) > MAX_WAITING_FRAMES

    def put(self, head: Message, written: asyncio.Future[None] | None = None) -> None:
        """Write a control frame, or queue it; `written` is resolved once it was handed to the connection."""
        frame = encode_frame(head)
        if not self._control and self.write_soon(frame):
            if written is not None:
                written.set_result(None)
            return
        self._control.append((frame, written))
        self.on_filled()

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

    def take(self) -> tuple[list[bytes | memoryview], asyncio.Future[None] | None]:
        """Return the buffers of the next frame (none: nothing waits) and whom to tell once they are written."""
        if self._control:
            frame, written = self._control.popleft()
            return [frame], written
        while self._turns:
            stream = self._turns.popleft()
            if stream in self._bodies and self._bodies[stream][0].may_send:
                return self._take_piece(stream)
        return [], None

    def adapt(self, now: float, written_bytes: int) -> None:
        """Choose the size of the next pieces by how fast the last ones were taken."""
        self._window_bytes += written_bytes
        elapsed = now - self._window_began_at
        if elapsed >= SPEED_WINDOW:
            wanted_bytes = int(self._window_bytes / elapsed * PIECE_SECONDS)
            self._piece_bytes = min(max(wanted_bytes, MIN_PIECE_BYTES), MAX_PIECE_BYTES)
            self._window_began_at, self._window_bytes = now, 0.0

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
            self.on_filled()
