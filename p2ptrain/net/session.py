"""One authenticated connection between two peers.

A reader task takes frames in, a timer notices silence. Control frames are written at once while the connection takes
them; for bodies, and for what has to wait, there is a writer task as long as the outbox holds anything. Reading never
waits for writing: the reader only queues, so two peers that send large bodies to each other cannot block each other.
Silence of the whole connection for 30 s ends it, and so does an end that takes nothing off our hands for that long.

RETIRE is how a connection that is not needed any more ends without losing a call: each side says that it opens no more
streams, and after the last one the connection is closed.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final

from p2ptrain.errors import NetworkError, RemoteProtocolError
from p2ptrain.events import Events
from p2ptrain.ids import PeerId, short
from p2ptrain.net.calls import Calls, Service
from p2ptrain.net.outbox import Outbox
from p2ptrain.runtime import Clock, SecureStream
from p2ptrain.tasks import TaskOwner
from p2ptrain.wire.frames import (
    PREFIX_BYTES,
    Data,
    Goodbye,
    Hello,
    Open,
    Ping,
    Pong,
    Retire,
    parse_head,
    parse_prefix,
)
from p2ptrain.wire.messages import Message

PING_INTERVAL: Final = 20.0  # s of silence before the dialler asks; home routers forget one after a few minutes
LISTENER_PATIENCE: Final = 2.0  # s more before the other end does, so that mostly one PING is enough for both
PONG_TIMEOUT: Final = 10.0
WRITE_TIMEOUT: Final = 30.0  # s for one piece to leave: slower than 8 kB/s, or somebody who does not read
WAITED: Final = 0.001  # s: a write that took longer had to wait for the other end
RETIRE_TIMEOUT: Final = 10.0  # s that a retired, idle connection waits for the other end's RETIRE


@dataclass(frozen=True, slots=True)
class Upkeep:
    """How long a connection may be silent (s) before we ask whether somebody is there, or idle before we give it back."""

    ping_interval: float
    idle_timeout: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionContext:
    """What all sessions of a peer share."""

    clock: Clock
    events: Events
    tasks: TaskOwner
    service: Service


class Session:
    """A connection on which both HELLOs were accepted. Begins to work with `start`."""

    def __init__(
        self, context: SessionContext, stream: SecureStream, peer: PeerId, hello: Hello, *, lane: str, dial: int | None
    ) -> None:
        """`lane` is "control" or "bulk"; `dial` is the number of our dial, or None when the other end dialled."""
        self.peer, self.hello, self.lane = peer, hello, lane
        self.is_dialler = dial is not None
        self.dial = hello.dial if dial is None else dial
        self.remote = stream.remote
        self.ended: NetworkError | None = None
        self.is_retired = False
        self.num_sent_bytes = self.num_received_bytes = 0
        self.used_at = self._heard_at = context.clock.monotonic()
        self._context, self._stream = context, stream
        self._outbox = Outbox()
        self._outbox.write_soon = self._write_soon
        self._outbox.on_filled = self._write_what_waits
        self._calls = Calls(
            peer, is_dialler=self.is_dialler, outbox=self._outbox, tasks=context.tasks, service=context.service
        )
        self._calls.on_leave = self._advance_retirement
        self._calls.on_violation = self._violated
        self._calls.on_stuck = self.end
        self._pongs: dict[int, asyncio.Future[None]] = {}
        self._next_token = 0
        self._sent_retire = self._received_retire = False
        self._reader: asyncio.Task[Any] | None = None
        self._writer: asyncio.Task[Any] | None = None
        self._look: asyncio.TimerHandle | None = None  # for silence
        self._asked_at: float | None = None  # the silent other end whether it is there
        self._on_end: Callable[[Session], None] = lambda session: None
        self._upkeep: Callable[[Session], Upkeep] = lambda session: Upkeep(PING_INTERVAL, math.inf)

    def start(self, on_end: Callable[["Session"], None], upkeep: Callable[["Session"], Upkeep] | None = None) -> None:
        """Begin to read and write; `on_end` is called once, when the connection has ended, `upkeep` now and then."""
        self._on_end = on_end
        self._upkeep = upkeep or self._upkeep
        self._reader = self._spawn("read", self._read())
        self._look_again(PING_INTERVAL)

    def _spawn(self, job: str, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[Any]:
        return self._context.tasks.spawn(f"{job} {self.lane} {short(self.peer)}", coroutine)

    @property
    def is_idle(self) -> bool:
        return self._calls.is_idle

    async def call(
        self,
        method: str,
        message: bytes,
        parts: Sequence[memoryview] = (),
        *,
        max_reply_bytes: int = 0,
        into: memoryview | None = None,
    ) -> tuple[bytes, bytearray]:
        """Return the encoded reply and its body; NetworkError or Refused when there is none (see Calls.call)."""
        self.used_at = self._context.clock.monotonic()
        return await self._calls.call(method, message, parts, max_reply_bytes=max_reply_bytes, into=into)

    # Reading.

    async def _read(self) -> None:
        try:
            await self._read_frames()
        except NetworkError as error:
            self.end(NetworkError(f"the connection to {short(self.peer)} ended: {error.reason}"))
        except ValueError as error:
            self._violated("frame", str(error))
        finally:
            self.end(NetworkError(f"the connection to {short(self.peer)} ended"))

    async def _read_frames(self) -> None:
        read_into, monotonic = self._stream.read_into, self._context.clock.monotonic
        prefix_view = memoryview(bytearray(PREFIX_BYTES))
        while self.ended is None:
            await read_into(prefix_view)
            kind, head_bytes, piece_bytes = parse_prefix(prefix_view)
            data = bytearray(head_bytes)  # not one for the whole session: most connections are silent most of the time
            await read_into(memoryview(data))
            head = parse_head(kind, data)
            if isinstance(head, Data):
                await self._calls.receive(head, piece_bytes, read_into)
            else:
                self._handle(head)
            self._heard_at = monotonic()
            self.num_received_bytes += PREFIX_BYTES + head_bytes + piece_bytes
            if self._outbox.is_overfull:
                raise NetworkError("it does not read what it asks for")

    def _handle(self, head: Message) -> None:
        match head:
            case Ping():
                self._outbox.put(Pong(token=head.token))
            case Pong():
                if head.token in self._pongs:
                    self._pongs.pop(head.token).set_result(None)
            case Retire():
                self._received_retire = True
                self.retire()
            case Goodbye():
                raise NetworkError(f"it said goodbye: {head.message}")
            case Open() if self._received_retire:
                raise ValueError("a new stream after RETIRE")
            case _:
                self.used_at = self._context.clock.monotonic()
                self._calls.handle(head)

    # Writing, and noticing silence.

    def _write_soon(self, frame: bytes) -> bool:
        """Write a control frame if the connection takes it; once that fails, everything waits for the writer task."""
        if self.ended is not None or self._reader is None:
            return False
        try:
            if not self._stream.write_soon(frame):
                return False
        except NetworkError:  # the reader hears of it, too
            return False
        self.num_sent_bytes += len(frame)
        return True

    def _write_what_waits(self) -> None:
        if self._writer is None and self.ended is None and self._reader is not None:
            self._writer = self._spawn("write", self._write())

    async def _write(self) -> None:
        try:
            while self.ended is None:
                buffers, written = self._outbox.take()
                if not buffers:
                    return
                await self._write_frame(buffers)
                if written is not None and not written.done():
                    written.set_result(None)
        except NetworkError as error:
            self.end(NetworkError(f"the connection to {short(self.peer)} ended: {error.reason}"))
        except TimeoutError:
            self.end(NetworkError(f"{short(self.peer)} has read nothing for {WRITE_TIMEOUT:g} s"))
        finally:
            self._writer = None

    async def _write_frame(self, buffers: Sequence[bytes | memoryview]) -> None:
        clock, written_bytes = self._context.clock, sum(map(len, buffers))
        began_at = clock.monotonic()
        async with asyncio.timeout(WRITE_TIMEOUT):
            await self._stream.write(*buffers)
        written_at = clock.monotonic()
        if written_at - began_at > WAITED:
            self._heard_at = written_at  # the other end has taken bytes off our hands: on a slow link its only sign
        self.num_sent_bytes += written_bytes
        self._outbox.adapt(written_at, written_bytes)

    async def probe(self, timeout: float) -> bool:
        """Return whether the other end answers a ping within so many seconds."""
        if self.ended is not None:
            return False
        token = self._new_token()
        pong = self._pongs[token] = asyncio.Future()
        self._outbox.put(Ping(token=token))
        await asyncio.wait({pong}, timeout=timeout)
        self._pongs.pop(token, None)
        return pong.done() and self.ended is None

    def _look_again(self, seconds: float) -> None:
        self._look = self._context.tasks.after(seconds, self._look_for_silence)

    def _look_for_silence(self) -> None:
        """Ask a silent end whether it is there, and give back what is not needed."""
        now, upkeep = self._context.clock.monotonic(), self._upkeep(self)
        silence = now - self._heard_at
        idle_seconds = now - self.used_at if self.is_idle else 0.0
        if idle_seconds > upkeep.idle_timeout:
            self.retire()
        if self._sent_retire and idle_seconds > RETIRE_TIMEOUT:
            self.end(NetworkError(f"the connection to {short(self.peer)} was retired"))
        elif self._asked_at is not None and self._heard_at < self._asked_at:
            self.end(NetworkError(f"{short(self.peer)} was silent for {silence:.0f} s"))
        if self.ended is not None:
            return
        self._asked_at = None
        patience = upkeep.ping_interval + (0.0 if self.is_dialler else LISTENER_PATIENCE)
        if silence >= patience:
            self._asked_at = now
            self._outbox.put(Ping(token=self._new_token()))
            self._look_again(PONG_TIMEOUT)
        else:
            self._look_again(max(patience - silence, 1.0))

    def _new_token(self) -> int:
        self._next_token += 1
        return self._next_token

    # Ending.

    def retire(self) -> None:
        """Open no more streams here; close after the last one, once the other end has agreed."""
        self.is_retired = True
        self._advance_retirement()

    def _advance_retirement(self) -> None:
        if not self.is_retired or self.ended is not None:
            return
        if not self._sent_retire and self._calls.num_ours == 0:
            self._sent_retire = True
            self._outbox.put(Retire())
        if self._sent_retire and self._received_retire and self.is_idle:
            self._context.tasks.spawn(f"close {short(self.peer)}", self.close("retired", "not needed any more"))

    async def close(self, code: str, message: str) -> None:
        """Say goodbye and end."""
        if self.ended is not None:
            return
        written: asyncio.Future[None] = asyncio.Future()
        self._outbox.put(Goodbye(code=code, message=message), written)
        await asyncio.wait({written}, timeout=1.0)
        await self._stream.close()
        self.end(NetworkError(f"the connection to {short(self.peer)} was closed"))

    def end(self, error: NetworkError) -> None:
        """End at once; calls under way fail with the error. Does nothing when it has ended before."""
        if self.ended is not None:
            return
        self.ended = error
        self._stream.abort()
        self._calls.end(error)
        if self._look is not None:
            self._look.cancel()
        for task in (self._reader, self._writer):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        self._on_end(self)

    def _violated(self, code: str, message: str) -> None:
        error = RemoteProtocolError(self.peer, code, message[:200])
        self._context.events.emit("protocol-error", peer=self.peer, code=code, error=str(error))
        self.end(NetworkError(str(error)))
