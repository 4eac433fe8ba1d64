"""One authenticated connection: calls in both directions, several at once.

A reader task takes frames in, a writer task sends what the outbox holds, a third notices silence. Reading never waits
for writing: the reader only queues, so two peers that send large bodies to each other cannot block each other. Every
call is a stream with an id of its own (odd from the dialler, even from the listener):

    caller   OPEN ─────────────── body as credit allows ──▶   handler
             ◀──────────── ANSWER, body as credit allows

The handler's side gives credit for a body only after it has admitted the request, so a refusal costs no body bytes.
RESET ends a stream from either side. A body that stands still for 10 s fails, however long the call may last; silence
of the whole connection for 30 s ends it. RETIRE is how a connection that is not needed any more ends without losing a
call: each side says that it opens no more streams, and after the last one it is closed.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from p2ptrain.errors import NetworkError, Refused, RemoteProtocolError
from p2ptrain.events import Events
from p2ptrain.ids import PeerId, short
from p2ptrain.net.bodies import WINDOW_BYTES, Body, OutgoingBody, flat
from p2ptrain.net.outbox import Outbox
from p2ptrain.net.streams import MAX_CALLS, MAX_SERVED, MIN_PROGRESS_BYTES, STALL_TIMEOUT, Stream, Streams
from p2ptrain.runtime import Clock, SecureStream
from p2ptrain.tasks import TaskOwner
from p2ptrain.wire.frames import (
    MAX_HEAD_BYTES,
    MAX_PIECE_BYTES,
    PREFIX_BYTES,
    Answer,
    Credit,
    Data,
    Goodbye,
    Hello,
    Open,
    Ping,
    Pong,
    Refusal,
    Reset,
    Retire,
    parse_head,
    parse_prefix,
)
from p2ptrain.wire.messages import Message

PING_INTERVAL: Final = 20.0  # s of silence before we ask; home routers forget a connection after a few minutes
PONG_TIMEOUT: Final = 10.0
WRITE_TIMEOUT: Final = 30.0  # s for one piece to leave: slower than 8 kB/s, or somebody who does not read
IDLE_BULK_TIMEOUT: Final = 120.0  # s without a call before a bulk connection is given back
RETIRE_TIMEOUT: Final = 10.0  # s that a retired, idle connection waits for the other end's RETIRE

_discarded: Final = memoryview(bytearray(MAX_PIECE_BYTES))  # pieces of streams that have ended go here, unread


class Service(Protocol):
    """What answers the other end's calls (net/handlers.py)."""

    def admit(self, sender: PeerId, opened: Open) -> Message:
        """Return the request, checked; Refused when it will not be served, ValueError when it is malformed."""

    async def respond(self, sender: PeerId, request: Message, body: bytearray) -> tuple[bytes, Body]:
        """Return the encoded reply and its body; Refused when there is none."""


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
        self._streams = Streams(is_dialler=self.is_dialler)
        self._outbox = Outbox()
        self._num_calls = 0
        self._call_slots = asyncio.Semaphore(MAX_CALLS)
        self._pongs: dict[int, asyncio.Future[None]] = {}
        self._next_token = 0
        self._sent_retire = self._received_retire = False
        self._tasks: list[asyncio.Task[Any]] = []
        self._on_end: Callable[[Session], None] = lambda session: None

    def start(self, on_end: Callable[["Session"], None]) -> None:
        """Begin to read and write; `on_end` is called once, when the connection has ended."""
        self._on_end = on_end
        jobs = {"read": self._read(), "write": self._write(), "keep alive": self._keep_alive()}
        for job, coroutine in jobs.items():
            name = f"{job} {self.lane} {short(self.peer)}"
            self._tasks.append(self._context.tasks.spawn(name, coroutine))

    @property
    def is_idle(self) -> bool:
        return self._num_calls == 0 and len(self._streams) == 0

    # Calling.

    async def call(
        self, request: Message, body: Body = b"", *, max_reply_bytes: int = 0, into: memoryview | None = None
    ) -> tuple[bytes, bytearray]:
        """Return the encoded reply and its body; NetworkError, Refused or RemoteProtocolError when there is none.

        Ending early, for whatever reason, resets the stream.
        """
        self._num_calls += 1
        try:
            async with self._call_slots:
                self._check()
                self.used_at = self._context.clock.monotonic()
                stream = self._streams.open(max_reply_bytes=max_reply_bytes, into=into)
                try:
                    self._send_request(stream, request, flat(body))
                    await self._progress(stream, stream.done)
                finally:
                    await self._leave(stream)
                assert stream.answer is not None
                return stream.answer.message, stream.body
        finally:
            self._num_calls -= 1
            self._advance_retirement()

    def _send_request(self, stream: Stream, request: Message, parts: list[memoryview]) -> None:
        stream.outgoing = OutgoingBody(parts, credit_bytes=0)
        opened = Open(
            stream=stream.number,
            method_name=request.method,
            body_bytes=stream.outgoing.remaining_bytes,
            max_reply_bytes=stream.max_reply_bytes,
            message=request.encode(),
        )
        self._outbox.put(opened)
        if parts:
            self._outbox.add_body(stream.number, stream.outgoing)

    async def _leave(self, stream: Stream) -> None:
        """Forget a call of ours; when it is not over, tell the other end, and wait until its memory is let go."""
        self._streams.drop(stream)
        self._outbox.drop_body(stream.number)
        if not stream.done.done() and self.ended is None:
            self._outbox.put(Reset(stream=stream.number))
        if stream.into is not None and self.ended is None:
            await stream.let_go.wait()

    async def _progress(self, stream: Stream, future: asyncio.Future[None]) -> None:
        """Wait for a future; NetworkError when a body of the stream stands still meanwhile."""
        while not future.done():
            was_moving, moved_bytes = stream.is_moving, stream.moved_bytes
            await asyncio.wait({future}, timeout=STALL_TIMEOUT * max(1, self._streams.num_moving))
            if not future.done() and was_moving and stream.is_moving:
                if stream.moved_bytes - moved_bytes < MIN_PROGRESS_BYTES:
                    raise NetworkError(f"the transfer with {short(self.peer)} stands still")
        future.result()

    # Serving.

    def _accept(self, opened: Open) -> None:
        if self._received_retire:
            raise ValueError("a new stream after RETIRE")
        stream = self._streams.accept(opened.stream)
        if self._streams.num_served > MAX_SERVED:
            self._streams.drop(stream)
            message = f"{MAX_SERVED} calls are being served on this connection"
            self._outbox.put(Refusal(stream=stream.number, code="busy", message=message, retry_after=1.0))
            return
        self.used_at = self._context.clock.monotonic()
        stream.max_reply_bytes = opened.max_reply_bytes
        name = f"serve {opened.method_name} to {short(self.peer)}"
        stream.task = self._context.tasks.spawn(name, self._serve(stream, opened))

    async def _serve(self, stream: Stream, opened: Open) -> None:
        try:
            request = self._context.service.admit(self.peer, opened)
            stream.expect(opened.body_bytes)
            self._grant(stream)
            await self._progress(stream, stream.done)
            message, body = await self._context.service.respond(self.peer, request, stream.body)
            await self._answer(stream, message, flat(body))
        except Refused as refusal:
            await self._refuse(stream, refusal)
        except NetworkError:
            self._outbox.put(Reset(stream=stream.number))
        except ValueError as error:
            self._violated("malformed-request", f"{opened.method_name}: {error}")
        finally:
            self._streams.drop(stream)
            self._outbox.drop_body(stream.number)
            self._advance_retirement()

    async def _answer(self, stream: Stream, message: bytes, parts: list[memoryview]) -> None:
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        stream.outgoing = OutgoingBody(parts, credit_bytes=WINDOW_BYTES)
        body_bytes = stream.outgoing.remaining_bytes
        if body_bytes > stream.max_reply_bytes:
            raise Refused("reply-too-large", f"the reply has {body_bytes} bytes, the caller takes {stream.max_reply_bytes}")
        self._outbox.put(Answer(stream=stream.number, body_bytes=body_bytes, message=message), None if parts else written)
        if parts:
            self._outbox.add_body(stream.number, stream.outgoing, written)
        await self._progress(stream, written)

    async def _refuse(self, stream: Stream, refusal: Refused) -> None:
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        code, message, retry_after = refusal.code[:64], refusal.message[:512], refusal.retry_after
        self._outbox.put(Refusal(stream=stream.number, code=code, message=message, retry_after=retry_after), written)
        await written

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
        prefix_view, head_view = memoryview(bytearray(PREFIX_BYTES)), memoryview(bytearray(MAX_HEAD_BYTES))
        while self.ended is None:
            await self._stream.read_into(prefix_view)
            prefix = parse_prefix(prefix_view)
            await self._stream.read_into(head_view[: prefix.head_bytes])
            head = parse_head(prefix.kind, head_view[: prefix.head_bytes])
            if isinstance(head, Data):
                await self._receive(self._streams.get(head.stream), prefix.piece_bytes)
            else:
                self._handle(head)
            self._heard_at = self._context.clock.monotonic()
            self.num_received_bytes += PREFIX_BYTES + prefix.head_bytes + prefix.piece_bytes
            if self._outbox.is_overfull:
                raise NetworkError("it does not read what it asks for")

    async def _receive(self, stream: Stream | None, piece_bytes: int) -> None:
        """Receive a piece into its place."""
        if stream is None:
            await self._stream.read_into(_discarded[:piece_bytes])
            return
        if stream.incoming is None:
            raise ValueError("a body that was not announced")
        stream.let_go.clear()
        try:
            with stream.incoming.room(piece_bytes) as room:
                await self._stream.read_into(room)
        finally:
            stream.let_go.set()
        stream.incoming.received(piece_bytes)
        if stream.incoming.is_complete:
            stream.finish()
        elif not stream.is_dropped:
            self._grant(stream)

    def _handle(self, head: Message) -> None:
        match head:
            case Open():
                self._accept(head)
            case Answer():
                self._take_answer(head)
            case Refusal():
                self._take_refusal(head)
            case Credit():
                self._streams.get(head.stream)
                self._outbox.add_credit(head.stream, head.more_bytes)
            case Reset():
                self._take_reset(head)
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
            case _:
                raise ValueError(f"{type(head).__name__} after the handshake")

    def _take_answer(self, answer: Answer) -> None:
        stream = self._streams.get(answer.stream)
        if stream is None:
            return
        if stream.task is not None or stream.answer is not None:
            raise ValueError("an answer to nothing")
        wanted_bytes = stream.max_reply_bytes if stream.into is None else len(stream.into)
        if answer.body_bytes > wanted_bytes or (stream.into is not None and answer.body_bytes != wanted_bytes):
            raise ValueError(f"a reply of {answer.body_bytes} bytes to a call that takes {wanted_bytes}")
        stream.answer = answer
        stream.expect(answer.body_bytes)
        assert stream.incoming is not None
        stream.incoming.grant()  # the first window needs no frame: both ends know it
        self._outbox.drop_body(stream.number)

    def _take_refusal(self, refusal: Refusal) -> None:
        stream = self._streams.get(refusal.stream)
        if stream is not None and stream.task is None:
            self._outbox.drop_body(stream.number)
            stream.finish(Refused(refusal.code, refusal.message, retry_after=refusal.retry_after))

    def _take_reset(self, reset: Reset) -> None:
        stream = self._streams.get(reset.stream)
        if stream is None:
            return
        self._outbox.drop_body(stream.number)
        if stream.task is not None:
            stream.task.cancel()
        else:
            stream.finish(NetworkError(f"{short(self.peer)} gave the call up"))

    def _grant(self, stream: Stream) -> None:
        more_bytes = stream.incoming.grant() if stream.incoming is not None else 0
        if more_bytes:
            self._outbox.put(Credit(stream=stream.number, more_bytes=more_bytes))

    # Writing, and noticing silence.

    async def _write(self) -> None:
        clock = self._context.clock
        try:
            while self.ended is None:
                buffers, written = self._outbox.take()
                if not buffers:
                    await self._outbox.wait()
                    continue
                began_at = clock.monotonic()
                async with asyncio.timeout(WRITE_TIMEOUT):
                    await self._stream.write(*buffers)
                if len(buffers) > 1:
                    self._outbox.adapt(clock.monotonic() - began_at)
                self.num_sent_bytes += sum(map(len, buffers))
                if written is not None and not written.done():
                    written.set_result(None)
        except NetworkError as error:
            self.end(NetworkError(f"the connection to {short(self.peer)} ended: {error.reason}"))
        except TimeoutError:
            self.end(NetworkError(f"{short(self.peer)} has read nothing for {WRITE_TIMEOUT:g} s"))

    async def probe(self, timeout: float) -> bool:
        """Return whether the other end answers a ping within so many seconds."""
        if self.ended is not None:
            return False
        token, self._next_token = self._next_token, self._next_token + 1
        pong = self._pongs[token] = asyncio.get_running_loop().create_future()
        self._outbox.put(Ping(token=token))
        await asyncio.wait({pong}, timeout=timeout)
        self._pongs.pop(token, None)
        return pong.done() and self.ended is None

    async def _keep_alive(self) -> None:
        clock = self._context.clock
        while True:
            silence = clock.monotonic() - self._heard_at
            await asyncio.sleep(max(PING_INTERVAL - silence, 1.0))
            if clock.monotonic() - self._heard_at >= PING_INTERVAL and not await self.probe(PONG_TIMEOUT):
                self.end(NetworkError(f"{short(self.peer)} was silent for {PING_INTERVAL + PONG_TIMEOUT:g} s"))
            idle_seconds = clock.monotonic() - self.used_at if self.is_idle else 0.0
            if self.lane == "bulk" and idle_seconds > IDLE_BULK_TIMEOUT:
                self.retire()
            if self._sent_retire and idle_seconds > RETIRE_TIMEOUT:
                self.end(NetworkError(f"the connection to {short(self.peer)} was retired"))

    # Ending.

    def retire(self) -> None:
        """Open no more streams here; close after the last one, once the other end has agreed."""
        self.is_retired = True
        self._advance_retirement()

    def _advance_retirement(self) -> None:
        if not self.is_retired or self.ended is not None:
            return
        if not self._sent_retire and self._num_calls == 0:
            self._sent_retire = True
            self._outbox.put(Retire())
        if self._sent_retire and self._received_retire and self.is_idle:
            self._context.tasks.spawn(f"close {short(self.peer)}", self.close("retired", "not needed any more"))

    async def close(self, code: str, message: str) -> None:
        """Say goodbye and end."""
        if self.ended is not None:
            return
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
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
        for stream in self._streams.all:
            stream.finish(error)
        waiting = [task for task in (stream.task for stream in self._streams.all) if task is not None]
        for task in [*self._tasks, *waiting]:
            if task is not asyncio.current_task():
                task.cancel()
        self._on_end(self)

    def _check(self) -> None:
        if self.ended is not None:
            raise self.ended

    def _violated(self, code: str, message: str) -> None:
        error = RemoteProtocolError(self.peer, code, message[:200])
        self._context.events.emit("protocol-error", peer=self.peer, code=code, error=str(error))
        self.end(NetworkError(str(error)))
