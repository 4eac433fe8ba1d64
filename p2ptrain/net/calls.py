"""The calls over one connection, in both directions at once.

Every call is a stream with a number of its own (odd from the dialler, even from the listener):

    caller   OPEN ─────────────── body as credit allows ──▶   handler
             ◀──────────── ANSWER, body as credit allows

The handler's side gives credit for a body only after it has admitted the request, so a refusal costs no body bytes.
RESET ends a stream from either side. A body that stands still for 10 s fails, however long the call may last.

What arrives is only queued or put in its place here: nothing that the reader calls waits for a write.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from p2ptrain.errors import NetworkError, Refused
from p2ptrain.ids import PeerId, short
from p2ptrain.net.bodies import WINDOW_BYTES, Body, OutgoingBody, flat
from p2ptrain.net.outbox import Outbox
from p2ptrain.net.streams import MAX_CALLS, MAX_SERVED, MIN_PROGRESS_BYTES, STALL_TIMEOUT, Stream, Streams
from p2ptrain.tasks import TaskOwner
from p2ptrain.wire.frames import MAX_PIECE_BYTES, Answer, Credit, Data, Open, Refusal, Reset
from p2ptrain.wire.messages import Message

TOO_LARGE: Final = "reply-too-large"  # a code of refusal: the caller takes less than there is
LET_GO_TIMEOUT: Final = 2.0  # s for the rest of a piece, once its call is over

_discarded: Final = memoryview(bytearray(MAX_PIECE_BYTES))  # pieces of streams that have ended go here, unread


class Service(Protocol):
    """What answers the other end's calls (net/handlers.py)."""

    def answers_at_once(self, opened: Open) -> bool:
        """Return whether the answer needs no waiting, for a body or for anything else."""

    def answer(self, sender: PeerId, request: Message) -> bytes:
        """Return the encoded reply to a request that is answered at once; Refused when there is none."""

    def admit(self, sender: PeerId, opened: Open) -> Message:
        """Return the request, checked; Refused when it will not be served, ValueError when it is malformed."""

    async def respond(self, sender: PeerId, request: Message, body: bytearray) -> tuple[bytes, Body]:
        """Return the encoded reply and its body; Refused when there is none."""


class Calls:
    """What is being asked and answered over one connection."""

    def __init__(self, peer: PeerId, *, is_dialler: bool, outbox: Outbox, tasks: TaskOwner, service: Service) -> None:
        self._peer, self._outbox, self._tasks, self._service = peer, outbox, tasks, service
        self._streams = Streams(is_dialler=is_dialler)
        self._slots = asyncio.Semaphore(MAX_CALLS)
        self._ended: NetworkError | None = None
        self.num_ours = 0  # calls of ours, with those that wait for a slot
        self.on_leave: Callable[[], None] = lambda: None  # called whenever a call has ended
        self.on_violation: Callable[[str, str], None] = lambda code, message: None
        self.on_stuck: Callable[[NetworkError], None] = lambda error: None

    @property
    def is_idle(self) -> bool:
        return self.num_ours == 0 and len(self._streams) == 0

    # Calling.

    async def call(
        self,
        method: str,
        message: bytes,
        parts: Sequence[memoryview] = (),
        *,
        max_reply_bytes: int = 0,
        into: memoryview | None = None,
    ) -> tuple[bytes, bytearray]:
        """Send an encoded request of a method, and a body in parts; return the encoded reply and its body.

        NetworkError, Refused or RemoteProtocolError when there is none.

        Ending early, for whatever reason, resets the stream.
        """
        self.num_ours += 1
        try:
            async with self._slots:
                if self._ended is not None:
                    raise self._ended
                stream = self._streams.open(max_reply_bytes=max_reply_bytes, into=into)
                try:
                    self._send_request(stream, method, message, parts)
                    await stream.done
                finally:
                    self._leave(stream)
                    if stream.into is not None and stream.is_receiving:
                        await self._take_memory_back(stream)
                assert stream.answer is not None
                return stream.answer.message, stream.body
        finally:
            self.num_ours -= 1
            self.on_leave()

    def _send_request(self, stream: Stream, method: str, message: bytes, parts: Sequence[memoryview]) -> None:
        stream.outgoing = OutgoingBody(parts, credit_bytes=0)
        opened = Open(
            stream=stream.number,
            method_name=method,
            body_bytes=stream.outgoing.remaining_bytes,
            max_reply_bytes=stream.max_reply_bytes,
            message=message,
        )
        self._outbox.put(opened)
        if parts:
            self._outbox.add_body(stream.number, stream.outgoing)
            self._watch(stream)

    def _leave(self, stream: Stream) -> None:
        """Forget a call of ours; when it is not over, tell the other end."""
        self._streams.drop(stream)
        self._outbox.drop_body(stream.number)
        if (not stream.done.done() or stream.done.cancelled()) and self._ended is None:
            self._outbox.put(Reset(stream=stream.number))

    async def _take_memory_back(self, stream: Stream) -> None:
        """Wait for the piece that is being received into the caller's memory; without it, end the connection."""
        let_go = stream.let_go = asyncio.Future()
        await asyncio.wait({let_go}, timeout=LET_GO_TIMEOUT)
        if not let_go.done():
            self.on_stuck(NetworkError(f"the transfer with {short(self._peer)} stands still"))
            await let_go

    def _watch(self, stream: Stream) -> None:
        """End a stream whose body stands still from now on, or later."""
        if stream.watch is not None:
            stream.watch.cancel()
        window = STALL_TIMEOUT * max(1, self._streams.num_moving)
        stream.watch = self._tasks.after(window, self._look_at, stream, stream.is_moving, stream.moved_bytes)

    def _look_at(self, stream: Stream, was_moving: bool, moved_bytes: int) -> None:
        if stream.is_dropped:
            return
        if was_moving and stream.is_moving and stream.moved_bytes - moved_bytes < MIN_PROGRESS_BYTES:
            stream.fail(NetworkError(f"the transfer with {short(self._peer)} stands still"))
            if stream.task is None:  # a call of ours; who serves one of theirs says so itself
                self._outbox.put(Reset(stream=stream.number))
        else:
            self._watch(stream)

    # Serving.

    def _accept(self, opened: Open) -> None:
        self._streams.note(opened.stream)
        if not opened.body_bytes and self._service.answers_at_once(opened):
            self._answer_at_once(opened)
            return
        stream = self._streams.accept(opened.stream)
        if self._streams.num_served > MAX_SERVED:
            self._streams.drop(stream)
            message = f"{MAX_SERVED} calls are being served on this connection"
            self._outbox.put(Refusal(stream=stream.number, code="busy", message=message, retry_after=1.0))
            return
        stream.max_reply_bytes = opened.max_reply_bytes
        name = f"serve {opened.method_name} to {short(self._peer)}"
        stream.task = self._tasks.spawn(name, self._serve(stream, opened))

    async def _serve(self, stream: Stream, opened: Open) -> None:
        try:
            request = self._service.admit(self._peer, opened)
            stream.expect(opened.body_bytes)
            if opened.body_bytes:
                self._grant(stream)
                self._watch(stream)
                await stream.done
            message, body = await self._service.respond(self._peer, request, stream.body)
            await self._answer(stream, message, flat(body))
        except Refused as refusal:
            await self._refuse(stream, refusal)
        except NetworkError:
            self._outbox.put(Reset(stream=stream.number))
        except ValueError as error:
            self.on_violation("malformed-request", f"{opened.method_name}: {error}")
        finally:
            self._streams.drop(stream)
            self._outbox.drop_body(stream.number)
            self.on_leave()

    def _answer_at_once(self, opened: Open) -> None:
        """Answer a call that needs no task and no stream."""
        try:
            message = self._service.answer(self._peer, self._service.admit(self._peer, opened))
            self._outbox.put(Answer(stream=opened.stream, body_bytes=0, message=message))
        except Refused as refusal:
            self._outbox.put(_refusal(opened.stream, refusal))
        except ValueError as error:
            self.on_violation("malformed-request", f"{opened.method_name}: {error}")

    async def _answer(self, stream: Stream, message: bytes, parts: list[memoryview]) -> None:
        written = stream.written = asyncio.Future()
        stream.outgoing = OutgoingBody(parts, credit_bytes=WINDOW_BYTES)
        body_bytes = stream.outgoing.remaining_bytes
        if body_bytes > stream.max_reply_bytes:
            raise Refused(TOO_LARGE, f"the reply has {body_bytes} bytes, the caller takes {stream.max_reply_bytes}")
        self._outbox.put(
            Answer(stream=stream.number, body_bytes=body_bytes, message=message), None if parts else written
        )
        if parts:
            self._outbox.add_body(stream.number, stream.outgoing, written)
            self._watch(stream)
        await written

    async def _refuse(self, stream: Stream, refusal: Refused) -> None:
        written: asyncio.Future[None] = asyncio.Future()
        self._outbox.put(_refusal(stream.number, refusal), written)
        await written

    # What arrives.

    def handle(self, head: Message) -> None:
        """Take a frame of a call in; ValueError when the protocol does not allow it."""
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
            case _:
                raise ValueError(f"{type(head).__name__} after the handshake")

    async def receive(self, data: Data, piece_bytes: int, read_into: Callable[[memoryview], Awaitable[None]]) -> None:
        """Read the piece of a DATA frame into its place; ValueError when it has none."""
        stream = self._streams.get(data.stream)
        if stream is None:
            await read_into(_discarded[:piece_bytes])
            return
        if stream.incoming is None:
            raise ValueError("a body that was not announced")
        stream.is_receiving = True
        try:
            with stream.incoming.room(piece_bytes) as room:
                await read_into(room)
        finally:
            stream.is_receiving = False
            if stream.let_go is not None and not stream.let_go.done():
                stream.let_go.set_result(None)
        stream.incoming.received(piece_bytes)
        if stream.incoming.is_complete:
            stream.finish()
        elif not stream.is_dropped:
            self._grant(stream)

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
        if answer.body_bytes:
            self._watch(stream)

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
            stream.finish(NetworkError(f"{short(self._peer)} gave the call up"))

    def _grant(self, stream: Stream) -> None:
        more_bytes = stream.incoming.grant() if stream.incoming is not None else 0
        if more_bytes:
            self._outbox.put(Credit(stream=stream.number, more_bytes=more_bytes))

    def end(self, error: NetworkError) -> None:
        """Fail our calls and stop serving theirs: the connection is gone."""
        self._ended = error
        for stream in self._streams.all:
            stream.finish(error)
            if stream.watch is not None:
                stream.watch.cancel()
            if stream.task is not None and stream.task is not asyncio.current_task():
                stream.task.cancel()


def _refusal(stream: int, refusal: Refused) -> Refusal:
    code, message, retry_after = refusal.code[:64], refusal.message[:512], refusal.retry_after
    return Refusal(stream=stream, code=code, message=message, retry_after=retry_after)
