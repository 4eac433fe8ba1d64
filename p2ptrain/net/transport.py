"""Calls between peers: the one door to the network for everything above it.

    transport.handle(HeadRequest, answer_head)                              # what we answer
    reply = await transport.call(peer, HeadRequest(fragment=3), HeadReply, timeout=5.0)

A peer is called by its id. The connection is found, or dialled with the addresses that are known, or asked for; a peer
behind a home router that dialled us is called over its own connection. Small calls share the control connection of a
pair, large bodies its bulk connection, so that a heart-beat never waits behind a tensor. A call to oneself is
dispatched in place.

No call is repeated by itself: after a NetworkError the caller knows best whether the request may run twice.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from p2ptrain.errors import LocalProtocolError, NetworkError, Refused, RemoteProtocolError
from p2ptrain.events import Events
from p2ptrain.ids import PeerId, RunId, short
from p2ptrain.net.addresses import AddressBook
from p2ptrain.net.bodies import Body, Buffer, flat
from p2ptrain.net.calls import TOO_LARGE
from p2ptrain.net.connector import Connector, OpenBulk, OwnEnd
from p2ptrain.net.handlers import Admit, AtOnce, Handler, Handlers, MessageHook, encode
from p2ptrain.net.identity import Identity
from p2ptrain.net.pool import PeerCallback, Pool
from p2ptrain.net.session import SessionContext
from p2ptrain.runtime import Address, Listener, Runtime
from p2ptrain.tasks import TaskOwner
from p2ptrain.wire.frames import MAX_RECORD_BYTES, Open
from p2ptrain.wire.messages import Message

__all__ = ["Body", "Buffer", "Reply", "Transport", "TransportLimits"]

Request = TypeVar("Request", bound=Message)
M = TypeVar("M", bound=Message)
RecordCallback = Callable[[PeerId, bytes], None]

NONCE_BYTES: Final = 16
SMALL_BODY_BYTES: Final = (
    32 * 1024
)  # a body up to this passes on the control connection, in no longer than a piece takes
CLOSED: Final = "this peer has closed its transport"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportLimits:
    """What the network may take from this process."""

    max_connections: int = 256  # in both directions; real/limits.py says how many file descriptors allow
    max_handshakes: int = 64  # of diallers, before they have said who they are

    @classmethod
    def within(cls, max_connections: int) -> "TransportLimits":
        """Return the limits of a process that may have so many connections."""
        return cls(max_connections=max_connections, max_handshakes=max(4, min(64, max_connections // 4)))


@dataclass(frozen=True, slots=True)
class Reply(Generic[M]):
    """What a call returned; `body` is empty when none was sent, or when it went into the caller's memory."""

    message: M
    body: bytearray


class Transport:
    """This peer's connections, and the calls over them."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        identity: Identity,
        run_id: RunId,
        events: Events,
        limits: TransportLimits = TransportLimits(),
    ) -> None:
        self.peer_id, self.run_id = identity.peer_id, run_id
        self.nonce = runtime.entropy.bytes(NONCE_BYTES)
        self._hooks: list[MessageHook] = []
        self._record_callbacks: list[RecordCallback] = []
        self._own = OwnEnd(identity=identity, run_id=run_id, nonce=self.nonce)
        self._handlers = Handlers(events, self._see)
        self._tasks = TaskOwner(events)
        self._book = AddressBook()
        self._pool = Pool(self.peer_id, limits.max_connections)
        context = SessionContext(clock=runtime.clock, events=events, tasks=self._tasks, service=self._handlers)
        self._connector = Connector(
            self._own,
            runtime.network,
            context,
            self._pool,
            self._book,
            max_handshakes=limits.max_handshakes,
            on_message=self._see,
        )
        self._listener: Listener | None = None
        self._is_closed = False
        self._pool.on_connected(self._pass_record_on)
        self.handle(OpenBulk, self._connector.open_bulk)

    async def listen(self, address: Address) -> Address:
        """Accept connections, once; returns the bound address. AddressInUseError, ConfigError."""
        if self._listener is not None:
            raise LocalProtocolError("a transport listens once")
        self._listener = await self._connector.listen(address)
        return self._listener.address

    def handle(
        self,
        request: type[Request],
        handler: Handler[Request],
        *,
        admit: Admit[Request] | None = None,
        max_body_bytes: int = 0,
    ) -> None:
        """Answer requests of one kind.

        `admit(sender, request, body_bytes)` runs before any body byte is accepted and may raise Refused; until it has
        returned, flow control makes the sender hold its body. The handler may raise Refused as well.
        """
        self._handlers.add(request, handler, admit, max_body_bytes)

    def handle_at_once(self, request: type[Request], function: AtOnce[Request]) -> None:
        """Answer requests of one kind, which have no body, without a task for each: `function` waits for nothing.

        It may raise Refused.
        """
        self._handlers.add_at_once(request, function)

    async def call(
        self,
        peer: PeerId,
        request: Message,
        reply: type[M],
        *,
        timeout: float,
        body: Body = b"",
        bulk: bool = False,
        max_body_bytes: int = 0,
        into: memoryview | None = None,
    ) -> Reply[M]:
        """Send a request (and a body) to a peer and return its reply.

        The reply's body may have `max_body_bytes`, or, with `into`, exactly the size of that memory. `bulk`: large bodies
        travel on the pair's bulk connection; small ones are not worth one. Raises
        NetworkError (unreachable, lost, timed out, stands still), Refused, RemoteProtocolError. Cancelling resets the
        stream: the other end stops at once.
        """
        self._check_open()
        encoded = encode(request)  # a message that is too large is our bug, before anything is sent
        self._see("send", request.method, peer)
        wanted_bytes = max_body_bytes if into is None else into.nbytes
        parts = flat(body) if body else []
        is_large = sum(map(len, parts)) + wanted_bytes > SMALL_BODY_BYTES
        lane = "bulk" if bulk and is_large else "control"
        try:
            async with asyncio.timeout(timeout):
                if peer == self.peer_id:
                    message, reply_body = await self._call_self(request, parts, wanted_bytes, into)
                else:
                    session = self._pool.best(peer, lane) or await self._connector.reach(peer, lane)
                    flat_into = into.cast("B") if into is not None else None
                    message, reply_body = await session.call(
                        request.method, encoded, parts, max_reply_bytes=wanted_bytes, into=flat_into
                    )
        except TimeoutError:
            raise NetworkError(f"{short(peer)} has not answered {request.method} within {timeout:g} s") from None
        try:
            return Reply(reply.decode(message), reply_body)
        except ValueError as error:
            raise RemoteProtocolError(peer, "malformed-reply", f"{request.method}: {error}") from None

    async def dial(self, address: Address, *, expected: PeerId | None = None) -> PeerId:
        """Connect to an address and return the proven id of who is there.

        NetworkError (its reason is short), IncompatibleError, LinkError (another run), IdentityInUseError (another
        live process uses our identity).
        """
        self._check_open()
        return (await self._connector.dial(address, "control", expected)).peer

    async def probe(self, address: Address, expected: PeerId) -> None:
        """Dial a peer on a fresh connection that ends with the handshake and disturbs no other; errors as in `dial`."""
        self._check_open()
        await self._connector.probe(address, expected)

    def learn(self, peer: PeerId, addresses: Sequence[Address]) -> None:
        """Remember where a peer can be dialled: from verified records only."""
        if peer != self.peer_id:
            self._book.learn(peer, addresses)

    def forget(self, peer: PeerId) -> None:
        """Forget where a peer could be dialled: from now on it is reached over its own connections only."""
        self._book.forget(peer)

    def addresses_of(self, peer: PeerId) -> list[Address]:
        return self._book.of(peer)

    def remote_of(self, peer: PeerId) -> Address | None:
        """Return the other end's address of the control connection with a peer, as this machine sees it."""
        session = self._pool.best(peer, "control")
        return None if session is None else session.remote

    def has_dialled(self, peer: PeerId) -> bool:
        """Return whether a connection with a peer is up that we dialled: so it can be, from here."""
        return any(session.is_dialler for session in self._pool.sessions if session.peer == peer)

    def connected(self) -> list[PeerId]:
        """Return the peers with a live control connection, sorted."""
        return self._pool.connected

    def on_connected(self, callback: PeerCallback) -> None:
        self._pool.on_connected(callback)

    def on_disconnected(self, callback: PeerCallback) -> None:
        """Have told whose last control connection was lost, or ended by them."""
        self._pool.on_disconnected(callback)

    def on_parted(self, callback: PeerCallback) -> None:
        """Have told whose last control connection was given back in peace, by either end: nobody needed it."""
        self._pool.on_parted(callback)

    def hold(self, is_held: Callable[[PeerId], bool]) -> None:
        """Keep the connections with these peers, however long they are silent."""
        self._pool.is_held = is_held

    def on_message(self, callback: MessageHook) -> None:
        """Have (direction, method, peer) told before each request is sent ("send") or handled ("receive")."""
        self._hooks.append(callback)

    def set_own_record(self, record: bytes) -> None:
        """Send this address record in every HELLO from now on."""
        if len(record) > MAX_RECORD_BYTES:
            raise LocalProtocolError(f"an address record of {len(record)} bytes; the limit is {MAX_RECORD_BYTES}")
        self._own.record = record

    def on_record(self, callback: RecordCallback) -> None:
        """Have (peer, record) told for each record that came in a HELLO. It is unverified."""
        self._record_callbacks.append(callback)

    def counters(self) -> dict[str, int]:
        return {
            **self._pool.counters(),
            "num_failed_handshakes": self._connector.num_failed_handshakes,
            "num_refused": self._handlers.num_refused,
        }

    async def close(self) -> None:
        """Say goodbye on control connections, end everything, leave no task."""
        self._is_closed = True
        if self._listener is not None:
            await self._listener.close()
        controls = [session for session in self._pool.sessions if session.lane == "control"]
        await asyncio.gather(*(session.close("leaving", "it leaves the run") for session in controls))
        for session in self._pool.sessions:
            session.end(NetworkError(CLOSED))
        await self._tasks.close()

    async def _call_self(
        self, request: Message, parts: Sequence[memoryview], max_reply_bytes: int, into: memoryview | None
    ) -> tuple[bytes, bytearray]:
        opened = Open(
            stream=1,
            method_name=request.method,
            body_bytes=sum(map(len, parts)),
            max_reply_bytes=max_reply_bytes,
            message=request.encode(),
        )
        admitted = self._handlers.admit(self.peer_id, opened)
        message, reply_body = await self._handlers.respond(self.peer_id, admitted, bytearray().join(parts))
        answer = bytearray().join(flat(reply_body))
        if len(answer) > max_reply_bytes:
            raise Refused(TOO_LARGE, f"the reply has {len(answer)} bytes, the caller takes {max_reply_bytes}")
        if into is None:
            return message, answer
        into.cast("B")[: len(answer)] = answer
        return message, bytearray()

    def _check_open(self) -> None:
        if self._is_closed:
            raise NetworkError(CLOSED)

    def _pass_record_on(self, peer: PeerId) -> None:
        session = self._pool.best(peer, "control")
        if session is not None and session.hello.record:
            for callback in self._record_callbacks:
                callback(peer, session.hello.record)

    def _see(self, direction: str, method: str, peer: PeerId) -> None:
        for hook in self._hooks:
            hook(direction, method, peer)
