"""How connections come up: accepting, dialling, and asking to be dialled.

Every new connection passes the same judgement, whoever dialled: is it ourselves, and is its identity already in use by
another live process? (A copied identity file. The nonce of a HELLO tells processes apart, and a ping tells whether the
older one still lives; the newcomer is then turned away. After a crash the older one does not answer, and is replaced.)
"""

import asyncio
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from p2ptrain import __version__
from p2ptrain.errors import (
    IdentityInUseError,
    IncompatibleError,
    LinkError,
    NetworkError,
    NoRoomError,
    P2PTrainError,
    Refused,
)
from p2ptrain.ids import PeerId, RunId, peer_id_from_public_key, short
from p2ptrain.net.addresses import AddressBook
from p2ptrain.net.handlers import MessageHook
from p2ptrain.net.handshake import MAGIC, MAX_PROTOCOL, MIN_PROTOCOL, shake_hands
from p2ptrain.net.identity import Identity
from p2ptrain.net.pool import Lane, Pool
from p2ptrain.net.session import Session, SessionContext
from p2ptrain.runtime import Address, Listener, Network, RawStream, SecureStream
from p2ptrain.wire.frames import Hello
from p2ptrain.wire.messages import Message

DIAL_STAGGER: Final = 0.25  # s between dials of a peer's addresses (RFC 8305 section 5)
PROBE_TIMEOUT: Final = 3.0  # s for an older connection to show that somebody is there
OPEN_BULK_TIMEOUT: Final = 10.0
OWN_ADDRESS_WINDOW: Final = 3600.0  # s for which an address that turned out to be our own is not dialled again
DIAL_ERRORS: Final = (NetworkError, IncompatibleError, LinkError, IdentityInUseError)


class OpenBulk(Message):
    """Asks a peer that can dial us, and that we cannot dial, for a bulk connection."""

    method: ClassVar[str] = "transport.open-bulk"


class BulkOpened(Message):
    """The bulk connection is up."""


class SelfDialError(NetworkError):
    """The address that was dialled is our own."""


class WrongPeerError(NetworkError):
    """Somebody is at the address that was dialled, but not the peer that was expected."""


@dataclass(kw_only=True)
class OwnEnd:
    """What we say of ourselves in every HELLO."""

    identity: Identity
    run_id: RunId
    nonce: bytes
    record: bytes = b""

    def hello(self, lane: Lane, dial: int) -> Hello:
        return Hello(
            magic=MAGIC,
            min_protocol=MIN_PROTOCOL,
            max_protocol=MAX_PROTOCOL,
            build=__version__,
            run_id=self.run_id,
            nonce=self.nonce,
            lane=lane,
            dial=dial,
            record=self.record,
        )


class Connector:
    """Brings sessions into the pool."""

    def __init__(
        self,
        own: OwnEnd,
        network: Network,
        context: SessionContext,
        pool: Pool,
        book: AddressBook,
        *,
        max_handshakes: int,
        on_message: MessageHook,
    ) -> None:
        self._see = on_message
        self._own, self._own_id = own, own.identity.peer_id
        self._network, self._context, self._pool, self._book = network, context, pool, book
        self._max_handshakes = max_handshakes
        self._handshakes: dict[asyncio.Task[None], str] = {}  # of diallers: the host of each, the oldest first
        self._attempts: dict[tuple[PeerId, Lane], asyncio.Task[NetworkError | None]] = {}
        self._own_addresses: dict[Address, float] = {}  # until when each is not dialled again
        self._num_dials = 0
        self.num_failed_handshakes = 0

    async def listen(self, address: Address) -> Listener:
        return await self._network.listen(address, self._take_in)

    # Dialling.

    async def dial(self, address: Address, lane: Lane, expected: PeerId | None) -> Session:
        """Connect to an address; DIAL_ERRORS say what is there instead of the (expected) peer."""
        if self._own_addresses.get(address, 0.0) > self._context.clock.monotonic():
            raise SelfDialError("this is myself")
        stream, peer = await self._open(address, expected)
        self._num_dials += 1
        hello = self._own.hello(lane, self._num_dials)
        try:
            theirs = await self._greet(stream, peer, hello)
        except SelfDialError:
            self._own_addresses[address] = self._context.clock.monotonic() + OWN_ADDRESS_WINDOW
            raise
        session = self._take_on(stream, peer, hello, theirs, dial=hello.dial)
        self._book.learn(peer, [address])
        return session

    async def probe(self, address: Address, expected: PeerId) -> None:
        """Find out whether a peer can be dialled at an address; DIAL_ERRORS say what is there instead.

        The connection is fresh, ends with the handshake, and touches no other: it never enters the pool.
        """
        stream, peer = await self._open(address, expected)
        self._num_dials += 1
        await self._greet(stream, peer, self._own.hello("probe", self._num_dials))
        await stream.close()

    async def _open(self, address: Address, expected: PeerId | None) -> tuple[SecureStream, PeerId]:
        """Connect to an address and return who is there."""
        raw = await self._network.connect(address)
        try:
            stream = await self._network.secure(raw, self._own.identity, server=False)
        except IncompatibleError as error:
            raise IncompatibleError(f"{address} is not a p2ptrain port: it {error}") from None
        peer = peer_id_from_public_key(stream.remote_public_key)
        if expected is not None and peer not in (expected, self._own_id):
            stream.abort()
            raise WrongPeerError(f"another peer is there: {peer}, not {expected}")
        return stream, peer

    async def reach(self, peer: PeerId, lane: Lane) -> Session:
        """Return a connection to a peer: the one that is up, or a new one, whoever of the two brings it up."""
        key = (peer, lane)
        if session := self._pool.best(peer, lane):
            return session
        if key not in self._attempts:
            attempt = self._context.tasks.spawn(f"reach {short(peer)} {lane}", self._attempt(peer, lane))
            self._attempts[key] = attempt
            attempt.add_done_callback(lambda _: self._attempts.pop(key, None))
        attempt, arrival = self._attempts[key], self._pool.arrival(peer, lane)
        either: set[asyncio.Future[Any]] = {attempt, arrival}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if session := self._pool.best(peer, lane):
            return session
        error = attempt.result() if attempt.done() and not attempt.cancelled() else None
        raise error or NetworkError(f"{short(peer)} hung up at once")

    async def open_bulk(self, sender: PeerId, request: OpenBulk, body: bytearray) -> Message:
        """Answer a peer that cannot dial us."""
        if self._pool.best(sender, "bulk") is None:
            error = await self._race(sender, "bulk")
            if error is not None:
                raise Refused("unreachable", f"no bulk connection to you: {error.reason}")
        return BulkOpened()

    async def _attempt(self, peer: PeerId, lane: Lane) -> NetworkError | None:
        """Bring a connection up; return why not. A peer that dialled us is asked first: it may be undiallable."""
        control = self._pool.best(peer, "control") if lane == "bulk" else None
        if control is None:
            return await self._race(peer, lane)
        if control.is_dialler:
            return await self._race(peer, lane) and await self._ask_for_bulk(control)
        return await self._ask_for_bulk(control) and await self._race(peer, lane)

    async def _ask_for_bulk(self, control: Session) -> NetworkError | None:
        try:
            async with asyncio.timeout(OPEN_BULK_TIMEOUT):
                self._see("send", OpenBulk.method, control.peer)
                await control.call(OpenBulk.method, OpenBulk().encode())
        except (NetworkError, Refused) as error:
            return NetworkError(f"asked for a bulk connection: {error}")
        except TimeoutError:
            return NetworkError(f"no bulk connection within {OPEN_BULK_TIMEOUT:g} s")
        return None

    async def _race(self, peer: PeerId, lane: Lane) -> NetworkError | None:
        """Dial all known addresses, each a little after the one before, until one of them is the peer."""
        addresses = self._book.of(peer)
        if not addresses:
            return NetworkError(f"no address of {short(peer)} is known")
        dials = [
            self._context.tasks.spawn(f"dial {address}", self._dial_later(index * DIAL_STAGGER, address, lane, peer))
            for index, address in enumerate(addresses)
        ]
        waiting = set(dials)
        try:
            while waiting and self._pool.best(peer, lane) is None:
                _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for dial in waiting:
                dial.cancel()
        if self._pool.best(peer, lane) is not None:
            return None
        reasons = [dial.result() for dial in dials]
        kind = NoRoomError if any(isinstance(reason, NoRoomError) for reason in reasons) else NetworkError
        return kind("; ".join(f"{address}: {reason}" for address, reason in zip(addresses, reasons, strict=True)))

    async def _dial_later(self, seconds: float, address: Address, lane: Lane, peer: PeerId) -> P2PTrainError:
        await asyncio.sleep(seconds)
        if not self._pool.make_room():
            return NetworkError(f"{short(self._own_id)} has no free connection")
        try:
            await self.dial(address, lane, peer)
        except DIAL_ERRORS as error:
            return error
        return NetworkError("hung up at once")

    # Being dialled.

    def _take_in(self, raw: RawStream) -> None:
        """Begin a handshake; when too many are under way, the oldest of the busiest host gives way."""
        if len(self._handshakes) >= self._max_handshakes:
            hosts = list(self._handshakes.values())
            busiest = max(hosts, key=hosts.count)
            next(task for task, host in self._handshakes.items() if host == busiest).cancel()
        task = self._context.tasks.spawn(f"accept {raw.remote}", self._accept(raw))
        self._handshakes[task] = raw.remote.host
        task.add_done_callback(lambda task: self._handshakes.pop(task, None))

    async def _accept(self, raw: RawStream) -> None:
        try:
            stream = await self._network.secure(raw, self._own.identity, server=True)
            peer = peer_id_from_public_key(stream.remote_public_key)
            hello = self._own.hello("", 0)
            theirs = await self._greet(stream, peer, hello)
            if theirs.lane == "probe":
                await stream.close()
            else:
                self._take_on(stream, peer, hello, theirs, dial=None)
        except DIAL_ERRORS:
            self.num_failed_handshakes += 1  # port scans, other protocols, other runs: nobody's news
        except asyncio.CancelledError:
            raw.abort()
            raise

    async def _greet(self, stream: SecureStream, peer: PeerId, hello: Hello) -> Hello:
        """Shake hands and return the other end's HELLO; the stream is closed if either end turns the other away."""
        slots = 0

        async def judge(theirs: Hello) -> None:
            nonlocal slots
            lane = hello.lane or theirs.lane
            await self._judge(stream, peer, theirs, lane)
            slots = int(lane != "probe")
            self._pool.num_coming += slots

        try:
            return await shake_hands(stream, hello, judge)
        except P2PTrainError:
            await stream.close()
            raise
        except asyncio.CancelledError:
            stream.abort()
            raise
        finally:
            self._pool.num_coming -= slots

    def _take_on(self, stream: SecureStream, peer: PeerId, hello: Hello, theirs: Hello, *, dial: int | None) -> Session:
        """Make a session of a connection on which both HELLOs were accepted."""
        lane = hello.lane or theirs.lane
        session = Session(self._context, stream, peer, theirs, lane=lane, dial=dial)
        self._pool.add(session)
        best = self._pool.best(peer, lane)
        if best is not None and best is not session:
            self._context.tasks.spawn(f"verify {short(peer)}", self._verify(best))
        return session

    async def _judge(self, stream: SecureStream, peer: PeerId, hello: Hello, lane: Lane) -> None:
        """Raise what speaks against a connection."""
        if peer == self._own_id:
            if hello.nonce == self._own.nonce:
                raise SelfDialError("this is myself")
            raise self._duplicate(peer, stream.remote)
        if lane == "probe":
            return  # it replaces nothing and takes no room
        for older in self._pool.of_other_process(peer, hello.nonce):
            if await older.probe(PROBE_TIMEOUT):
                raise self._duplicate(peer, older.remote)
            older.end(NetworkError(f"{short(peer)} was started anew"))
        if not self._pool.make_room():
            raise NoRoomError(f"{short(self._own_id)} has no free connection")

    def _duplicate(self, peer: PeerId, user: Address) -> IdentityInUseError:
        self._context.events.emit("identity-in-use", peer=peer, address=str(user))
        return IdentityInUseError(f"identity {peer} is in use by another live process, at {user}")

    async def _verify(self, older: Session) -> None:
        """A peer that dials although an older connection is preferred may have lost that one: see whether it lives."""
        if not await older.probe(PROBE_TIMEOUT):
            older.end(NetworkError(f"{short(older.peer)} does not answer on this connection"))
