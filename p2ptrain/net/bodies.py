"""The body of a call, on its way out and on its way in.

A body is sent in pieces, each covered by credit that the receiver gave: at most a window of it is under way. The
receiver's memory grows with the bytes that really came, never with a number that somebody announced.
"""

from collections.abc import Sequence
from typing import Final

from p2ptrain.wire.frames import MAX_PIECE_BYTES

WINDOW_BYTES: Final = 1024 * 1024  # credit of a stream: 1 MiB keeps 80 Mbit/s busy at 100 ms
GRANT_BYTES: Final = 128 * 1024  # how much is received between two grants; on a slow link they are also signs of life
GROWTH_BYTES: Final = 4 * 1024 * 1024  # how far a body's memory runs ahead of its bytes

Buffer = bytes | bytearray | memoryview
Body = Buffer | Sequence[Buffer]


def flat(body: Body) -> list[memoryview]:
    """Return a body's parts as flat, non-empty views of bytes."""
    parts = [body] if isinstance(body, bytes | bytearray | memoryview) else body
    views = [memoryview(part) for part in parts]
    return [view.cast("B") for view in views if view.nbytes > 0]


class OutgoingBody:
    """A cursor over the parts of a body, and the credit to go on."""

    def __init__(self, parts: Sequence[memoryview], credit_bytes: int) -> None:
        self._parts = list(parts)
        self.remaining_bytes = sum(part.nbytes for part in parts)
        self.credit_bytes = credit_bytes

    @property
    def may_send(self) -> bool:
        return self.remaining_bytes > 0 and self.credit_bytes > 0

    def take(self, max_bytes: int) -> list[memoryview]:
        """Return the views of the next piece, of at most `max_bytes` and within the credit."""
        wanted = min(max_bytes, self.credit_bytes, self.remaining_bytes)
        self.credit_bytes -= wanted
        self.remaining_bytes -= wanted
        piece: list[memoryview] = []
        while wanted:
            head = self._parts[0][:wanted]
            piece.append(head)
            wanted -= len(head)
            if len(head) == len(self._parts[0]):
                self._parts.pop(0)
            else:
                self._parts[0] = self._parts[0][len(head) :]
        return piece


class IncomingBody:
    """Where the pieces of a body are received, and how much credit they have used."""

    def __init__(self, size: int, into: memoryview | None = None) -> None:
        self._size = size
        self._into = into.cast("B") if into is not None else None
        self._memory = bytearray()
        self.received_bytes = 0
        self._granted_bytes = 0

    @property
    def is_complete(self) -> bool:
        return self.received_bytes == self._size

    @property
    def memory(self) -> bytearray:
        """What was received; empty when it went into the caller's own memory."""
        return self._memory

    def grant(self) -> int:
        """Return how much credit to give now: what has been used up, once it is enough to be worth a frame."""
        out_bytes = self._granted_bytes - self.received_bytes
        if WINDOW_BYTES - out_bytes < GRANT_BYTES:
            return 0
        more = min(WINDOW_BYTES - out_bytes, self._size - self._granted_bytes)
        self._granted_bytes += more
        return more

    def room(self, piece_bytes: int) -> memoryview:
        """Return the place for the next piece; ValueError when it was not covered by credit."""
        end = self.received_bytes + piece_bytes
        if end > self._granted_bytes:
            raise ValueError(f"{piece_bytes} bytes of a body without credit for them")
        if self._into is not None:
            return self._into[self.received_bytes : end]
        if end > len(self._memory):
            self._memory += _blank[: self._size - len(self._memory)]
        return memoryview(self._memory)[self.received_bytes : end]

    def received(self, piece_bytes: int) -> None:
        self.received_bytes += piece_bytes


_blank: Final = memoryview(bytes(GROWTH_BYTES))
assert MAX_PIECE_BYTES <= GROWTH_BYTES
