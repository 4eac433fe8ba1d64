"""Who else takes part in the run, and being found by them.

A peer keeps in touch with the addresses it was given (contacts.py), compares views with others (gossip.py), and says
who of them is alive (roster.py). A connection that breaks is dialled again once; if that fails the peer counts as down
at once. A peer that was given bootstrap addresses and has nobody left never becomes a swarm of its own in silence: it
says since when it is isolated, and goes on trying all the addresses it ever knew.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from p2ptrain.discovery import known_peers as disk
from p2ptrain.discovery.addresses import believed_addresses, only_loopback
from p2ptrain.discovery.contacts import DIAL_TIMEOUT, Contacts
from p2ptrain.discovery.dial_back import DialBacks
from p2ptrain.discovery.gossip import Gossip
from p2ptrain.discovery.own_record import OwnRecord
from p2ptrain.discovery.reachability import Reachability, Verdict
from p2ptrain.discovery.records import MAX_LIFETIME, MemberRecord, ParseMember, Verify
from p2ptrain.discovery.roster import Roster
from p2ptrain.discovery.view import Entry
from p2ptrain.errors import P2PTrainError, StorageError, UnreachableError
from p2ptrain.events import Events
from p2ptrain.ids import PeerId
from p2ptrain.link import LinkPeer
from p2ptrain.net.identity import Identity, verify
from p2ptrain.net.transport import Transport
from p2ptrain.runtime import Address, Runtime
from p2ptrain.tasks import TaskOwner

RENEW_INTERVAL: Final = MAX_LIFETIME / 3  # seconds: two renewals may be lost before a record expires
MIN_RECORD_INTERVAL: Final = 5.0  # seconds between two records at least
RECORD_INTERVAL_PER_MEMBER: Final = 0.5  # seconds: the whole view tells two new records a second at most, 0.5 kB
RETURN_WINDOW: Final = 2.0  # seconds in which a peer that nobody can dial may dial us again before it counts as down
REDIAL_WINDOW: Final = 0.25  # seconds over which the peers of one that died spread their attempts to reach it
NEWCOMER_WINDOW: Final = 15.0  # seconds after its start in which a process that meets its double gives way
LEAVE_TIMEOUT: Final = 1.0  # seconds for the farewell
CHECK_INTERVAL: Final = 5.0  # seconds between looks for records that have expired
SAVE_INTERVAL: Final = 60.0  # seconds between writes of the known peers


class Members:
    """The members of the run, as one peer sees them."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        transport: Transport,
        identity: Identity,
        events: Events,
        role: str,
        bootstrap: Sequence[LinkPeer],
        own_addresses: Sequence[Address],
        known_peers: Sequence[LinkPeer] = (),
        verify: Verify = verify,
        parse: ParseMember = MemberRecord.parse,
    ) -> None:
        """`known_peers` are tried like those remembered on disk: only while nobody else is there."""
        self._runtime, self._transport, self._events = runtime, transport, events
        self._known_peers = list(known_peers)
        self._tasks = TaskOwner(events)
        self._roster = Roster(
            runtime=runtime, own=transport.peer_id, run_id=transport.run_id, verify=verify, parse=parse
        )
        self._own = OwnRecord(
            clock=runtime.clock, identity=identity, run_id=transport.run_id, role=role, addresses=own_addresses
        )
        self._gossip = Gossip(
            runtime=runtime,
            transport=transport,
            tasks=self._tasks,
            roster=self._roster,
            receive=self.receive,
            on_failed=self._not_answering,
        )
        self._contacts = Contacts(
            runtime=runtime,
            transport=transport,
            tasks=self._tasks,
            bootstrap=bootstrap,
            on_reached=self._gossip.exchange,
            on_missed=self._missed,
        )
        self.reachability = Reachability(
            runtime=runtime,
            transport=transport,
            tasks=self._tasks,
            events=events,
            own=lambda: (self._own.record.addresses, self._own.signed),
            on_verdict=self._say_verdict,
        )
        self._dial_backs = DialBacks(runtime=runtime, transport=transport)
        self._changes: dict[str, Any] = {}  # of the own record, not yet signed
        self._looking_for: set[PeerId] = set()
        self._changed, self._decided = asyncio.Event(), asyncio.Event()
        self._callbacks: list[Callable[[], None]] = []
        self._fatal_callbacks: list[Callable[[P2PTrainError], None]] = []
        self._fatal: P2PTrainError | None = None
        self._started_at = runtime.clock.monotonic()
        self._said_isolated = self._closed = False
        self.isolated_since: float | None = None

    @property
    def own_record(self) -> MemberRecord:
        return self._own.record

    def live(self) -> list[MemberRecord]:
        """Return the others that are alive, by ascending peer id."""
        return list(self._roster.live.values())

    def trainers(self) -> list[PeerId]:
        """Return the others that are alive and train."""
        return [record.peer for record in self.live() if record.role == "trainer"]

    def dialable(self) -> list[LinkPeer]:
        """Return where the others that are alive can be dialled: first who is known to be reachable, never who is not."""
        records = [record for record in self.live() if record.addresses and record.reachable is not False]
        records.sort(key=lambda record: record.reachable is not True)
        return [LinkPeer(record.peer, record.addresses[0]) for record in records]

    def can_be_dialled(self, peer: PeerId) -> bool:
        """Return whether a peer, or this one, is known to be there and to be reachable: by its own record."""
        record = self._own.record if peer == self._transport.peer_id else self._roster.live.get(peer)
        return record is not None and record.reachable is True and bool(record.addresses)

    def signed_record(self, peer: PeerId) -> bytes | None:
        """Return the newest record of a peer, or of this one, as it was signed."""
        if peer == self._transport.peer_id:
            return self._own.signed
        entry = self._roster.view.get(peer)
        return entry.signed if entry is not None else None

    def receive(self, signed: Iterable[bytes]) -> None:
        """Take in signed records from anywhere: gossip, greetings, the DHT."""
        entries = self._roster.check(signed)
        for entry in entries:
            if entry.peer == self._transport.peer_id and not self._closed and self._own.outbid(entry.record):
                self._publish(self._own.signed)
        same_machine = only_loopback(self._own.record.addresses)
        known = {entry.peer: self._roster.view.get(entry.peer) for entry in entries}
        turned = []
        for entry in self._roster.merge(entries):
            if entry.record.reachable is False:
                self._transport.forget(entry.peer)
            else:
                addresses = believed_addresses(entry.record.addresses, same_machine=same_machine)
                self._transport.learn(entry.peer, addresses)
            before = known[entry.peer]
            if before is not None and before.record.reachable is not entry.record.reachable:
                turned.append(entry.peer)
        self._settle()
        if turned:
            self._gossip.spread(turned)

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call back whenever somebody came or left."""
        self._callbacks.append(callback)

    def on_fatal(self, callback: Callable[[P2PTrainError], None]) -> None:
        """Call back with an error that should end this process, even after it joined: IdentityInUseError.

        Of two processes with one identity the newcomer is told; for the older one the trouble passes.
        """
        self._fatal_callbacks.append(callback)

    def update_own(self, **fields: Any) -> None:
        """Change fields of the own record; others learn of it with the next record."""
        self._changes.update(fields)
        self._changed.set()

    def set_addresses(self, addresses: Sequence[Address]) -> None:
        """Announce other addresses from now on; whether they can be dialled is found out anew."""
        self._publish(self._own.issue(addresses=tuple(addresses), reachable=None))
        self._gossip.spread([self._transport.peer_id])
        self.reachability.addresses_changed()

    async def start(self) -> None:
        """Publish the own record and begin to look for others."""
        self._publish(self._own.signed)
        self.reachability.start()
        self._transport.on_connected(self._connected)
        self._transport.on_disconnected(self._disconnected)
        self._transport.on_parted(lambda peer: self._settle())
        self._transport.on_record(lambda peer, data: self.receive([data]))
        self._known_peers = [*self._known_peers, *await self._load_known_peers()]
        self._contacts.start(self._known_peers)
        self._gossip.start()
        self._tasks.spawn("renew own record", self._renew_forever())
        self._tasks.spawn("look for expired records", self._check_forever())
        self._tasks.spawn("save known peers", self._save_forever())
        self._settle()

    async def wait_joined(self, timeout: float) -> None:
        """Wait until somebody is there; at once when no bootstrap address was given.

        Raises UnreachableError with one line per address, or the error that no retry cures: IdentityInUseError,
        and LinkError or IncompatibleError when every address answers so.
        """
        if not self._contacts.has_bootstrap:
            return
        try:
            async with asyncio.timeout(timeout):
                await self._decided.wait()
        except TimeoutError:
            raise UnreachableError(self._contacts.report()) from None
        if self._fatal is not None:
            raise self._fatal

    async def leave(self) -> None:
        """Say goodbye to everybody who is connected, within a second, and stop. The second time it only stops."""
        if self._closed:
            await self.close()  # whoever waited for the first goodbye may have lost patience
            return
        self._closed = True
        self._publish(self._own.issue(gone=True))
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT):
                await asyncio.gather(
                    *(self._gossip.tell(peer, [self._own.signed]) for peer in sorted(self._roster.connected))
                )
        except TimeoutError:
            pass
        await self.close()
        await self._save_known_peers()

    async def close(self) -> None:
        """Stop without a word."""
        self._closed = True
        await self._tasks.close()

    def _publish(self, signed: bytes) -> None:
        self._roster.view.own = Entry(self._own.record, signed)
        self._transport.set_own_record(signed)

    def _say_verdict(self, verdict: Verdict) -> None:
        """Say at once whether this peer can be dialled, and put first where."""
        addresses = tuple(dict.fromkeys([*verdict.addresses, *self._own.record.addresses]))
        if not self._closed:
            self._publish(self._own.issue(addresses=addresses, reachable=verdict.reachable))
            self._gossip.spread([self._transport.peer_id])

    def _connected(self, _peer: PeerId) -> None:
        self._settle()
        self.reachability.connections_changed()

    def _disconnected(self, peer: PeerId) -> None:
        self._settle()
        self._lost(peer)

    def _not_answering(self, peer: PeerId) -> None:
        """A peer could not be called. That one cannot be dialled that nobody can dial says nothing about it."""
        record = self._roster.live.get(peer)
        if record is not None and record.reachable is not False:
            self._lost(peer)

    def _lost(self, peer: PeerId) -> None:
        """Find out whether a peer whose connection broke, or who could not be called, is still there."""
        if peer in self._looking_for or peer not in self._roster.live or peer in self._roster.connected or self._closed:
            return
        self._looking_for.add(peer)
        self._tasks.spawn("dial a lost peer", self._look_for(peer))

    async def _look_for(self, peer: PeerId) -> None:
        """Dial a lost peer, or let it dial us; it counts as down unless it comes back or has said something new."""
        try:
            while (record := self._roster.live.get(peer)) is not None and peer not in self._roster.connected:
                comes_by_itself = record.reachable is False
                chance = self._runtime.entropy.random
                await asyncio.sleep(RETURN_WINDOW if comes_by_itself else chance.uniform(0.0, REDIAL_WINDOW))
                if await self._dial(peer):
                    return
                if self._roster.live.get(peer) == record:
                    self._roster.doubt(peer)
                    self._settle()
        finally:
            self._looking_for.discard(peer)

    async def _dial(self, peer: PeerId) -> bool:
        """Dial the addresses of a peer; return whether it is connected now."""
        for address in self._transport.addresses_of(peer):
            if peer in self._roster.connected:
                return True
            try:
                async with asyncio.timeout(DIAL_TIMEOUT):
                    await self._transport.dial(address, expected=peer)
                return True
            except (TimeoutError, P2PTrainError):
                continue
        return peer in self._roster.connected

    def _missed(self) -> None:
        """An address could not be reached, or turned us away."""
        if self._fatal is None:
            self._judge()
        if self.isolated_since is not None and not self._said_isolated:
            self._said_isolated = True
            self._events.emit("isolated", since=self.isolated_since)

    def _judge(self) -> None:
        """Decide whether what the addresses say should end this process."""
        is_newcomer = self._runtime.clock.monotonic() - self._started_at < NEWCOMER_WINDOW
        in_use = self._contacts.identity_in_use() if is_newcomer else None
        self._fatal = in_use or (None if self._roster.live else self._contacts.hopeless())
        if self._fatal is not None:
            self._decided.set()
            for tell in self._fatal_callbacks:
                tell(self._fatal)

    def _settle(self) -> None:
        """Draw the consequences of whatever changed."""
        self._roster.connected = set(self._transport.connected())  # idle connections may have made room unannounced
        came, left = self._roster.refresh()
        for peer in came:
            self._events.emit("peer-up", peer=peer)
        for peer in left:
            self._events.emit("peer-down", peer=peer)
        self._settle_isolation()
        is_alone = not self._roster.connected  # whoever has a fresh record may live, and yet be out of reach
        if is_alone and not self._closed:
            self._contacts.remember(self._seen())
        self._contacts.refresh(self._roster.connected, alone=is_alone, live=self._roster.live)
        if came or left:
            self._gossip.spread([*came, *left])
            for callback in self._callbacks:
                callback()

    def _seen(self) -> list[LinkPeer]:
        """Return where the peers of the view can be dialled, those too that are down or have left: they may be back."""
        records = [entry.record for entry in self._roster.view]
        return [
            LinkPeer(record.peer, record.addresses[0])
            for record in records
            if record.addresses and record.reachable is not False
        ]

    def _settle_isolation(self) -> None:
        if self._roster.live:
            self._decided.set()
        if self._roster.connected:
            if self._said_isolated:
                self._roster.forgive()
                self._events.emit("rejoined", num_peers=len(self._roster.live))
                self.reachability.recheck()
            self._said_isolated, self.isolated_since = False, None
        elif self.isolated_since is None and self._contacts.has_bootstrap:
            self.isolated_since = self._runtime.clock.wall()

    async def _renew_forever(self) -> None:
        while True:
            try:
                async with asyncio.timeout(RENEW_INTERVAL):
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()
            changes, self._changes = self._changes, {}
            self._publish(self._own.issue(**changes))
            await asyncio.sleep(max(MIN_RECORD_INTERVAL, RECORD_INTERVAL_PER_MEMBER * len(self._roster.live)))

    async def _check_forever(self) -> None:
        while True:
            await asyncio.sleep(CHECK_INTERVAL)
            self._settle()

    async def _load_known_peers(self) -> list[LinkPeer]:
        try:
            return await disk.load(self._runtime)
        except StorageError as error:
            self._events.emit("known-peers-unreadable", error=str(error))
            return []

    async def _save_forever(self) -> None:
        while True:
            await asyncio.sleep(SAVE_INTERVAL)
            await self._save_known_peers()

    async def _save_known_peers(self) -> None:
        hidden = {record.peer for record in self.live() if record.reachable is False}
        remembered = [entry for entry in self._known_peers if entry.peer not in hidden]
        try:
            self._known_peers = await disk.save(self._runtime, self.dialable(), remembered)
        except StorageError as error:
            self._events.emit("known-peers-not-saved", error=str(error))
