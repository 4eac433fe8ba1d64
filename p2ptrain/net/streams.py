"""The streams of a connection: one for each call that is under way, in either direction."""

import asyncio
from typing import Any, Final

from p2ptrain.net.bodies import IncomingBody, OutgoingBody
from p2ptrain.wire.frames import Answer

MAX_CALLS: Final = 64  # of ours at once on a connection; further ones wait for their turn
MAX_SERVED: Final = 128  # of theirs: twice as many, since the last byte of an answer may arrive before its slot is free
STALL_TIMEOUT: Final = 10.0  # s, for each body on the connection, since bodies take turns
MIN_PROGRESS_BYTES: Final = 1024  # in that time; one byte now and then does not count


class Stream:
    """One call. `done` is resolved when all that we await of the other end is here, or fails with a NetworkError."""

    def __init__(self, number: int, *, max_reply_bytes: int = 0, into: memoryview | None = None) -> None:
        self.number, self.max_reply_bytes, self.into = number, max_reply_bytes, into
        self.incoming: IncomingBody | None = None
        self.outgoing: OutgoingBody | None = None
        self.done: asyncio.Future[None] = asyncio.Future()
        self.written: asyncio.Future[None] | None = None  # of the answer to the other end's call
        self.answer: Answer | None = None
        self.task: asyncio.Task[Any] | None = None  # the one that serves it, when it is the other end's call
        self.is_dropped = False
        self.is_receiving = False  # a piece is being received into its memory
        self.let_go: asyncio.Future[None] | None = None  # of whoever waits for the end of that
        self.watch: asyncio.TimerHandle | None = None  # of a body that is under way: does it stand still?

    @property
    def body(self) -> bytearray:
        return self.incoming.memory if self.incoming is not None else bytearray()

    @property
    def moved_bytes(self) -> int:
        received = self.incoming.received_bytes if self.incoming is not None else 0
        return received - (self.outgoing.remaining_bytes if self.outgoing is not None else 0)

    @property
    def is_moving(self) -> bool:
        """Whether a body is under way."""
        is_coming = self.incoming is not None and not self.incoming.is_complete
        return is_coming or (self.outgoing is not None and self.outgoing.remaining_bytes > 0)

    def expect(self, body_bytes: int) -> None:
        """Await a body of so many bytes; `done` follows from its last one."""
        self.incoming = IncomingBody(body_bytes, self.into)
        if self.incoming.is_complete:
            self.finish()

    def finish(self, error: Exception | None = None) -> None:
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            _fail(self.done, error)

    def fail(self, error: Exception) -> None:
        """End whatever is waited for on this stream."""
        self.finish(error)
        if self.written is not None and not self.written.done():
            _fail(self.written, error)


def _fail(future: asyncio.Future[None], error: Exception) -> None:
    future.set_exception(error)
    future.exception()  # marks it as seen: the stream may have been given up


class Streams:
    """The table of a connection's streams, and which numbers have been used."""

    def __init__(self, *, is_dialler: bool) -> None:
        self._next = 1 if is_dialler else 2
        self._last_of_theirs = 0
        self._table: dict[int, Stream] = {}

    def __len__(self) -> int:
        return len(self._table)

    @property
    def all(self) -> list[Stream]:
        return list(self._table.values())

    @property
    def num_served(self) -> int:
        return sum(1 for number in self._table if number % 2 != self._next % 2)

    @property
    def num_moving(self) -> int:
        return sum(1 for stream in self._table.values() if stream.is_moving)

    def open(self, *, max_reply_bytes: int, into: memoryview | None) -> Stream:
        """Begin a stream of ours."""
        stream = Stream(self._next, max_reply_bytes=max_reply_bytes, into=into)
        self._table[stream.number] = stream
        self._next += 2
        return stream

    def note(self, number: int) -> None:
        """Note that the other end used a number; ValueError when it is not theirs to use or not new."""
        if number % 2 == self._next % 2 or number <= self._last_of_theirs:
            raise ValueError(f"stream {number} opened a second time or out of turn")
        self._last_of_theirs = number

    def accept(self, number: int) -> Stream:
        """Begin a stream of theirs, whose number was noted."""
        stream = self._table[number] = Stream(number)
        return stream

    def get(self, number: int) -> Stream | None:
        """Return a stream, None when it has ended; ValueError when there never was such a stream."""
        stream = self._table.get(number)
        is_ours = number % 2 == self._next % 2
        if stream is None and number >= (self._next if is_ours else self._last_of_theirs + 1):
            raise ValueError(f"stream {number} was never opened")
        return stream

    def drop(self, stream: Stream) -> None:
        stream.is_dropped = True
        if stream.watch is not None:
            stream.watch.cancel()
        self._table.pop(stream.number, None)
