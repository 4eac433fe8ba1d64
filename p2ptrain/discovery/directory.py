"""What the DHT is used for: finding members beyond the partial view, and the heads of a run.

Member records lie in 16 buckets, by the start of the peer's key, so that no key grows with the swarm. Every few
minutes a peer publishes its own record and its heads anew, and reads a random bucket into its view. It publishes sooner
when a node that held its record is gone. Whoever stores a record can store only its own, where it belongs, and for as
long as the record itself says.
"""

import asyncio
import hashlib
from typing import TYPE_CHECKING, Final

from p2ptrain.discovery.members import Members
from p2ptrain.discovery.records import HeadRecord, MemberRecord
from p2ptrain.events import Events
from p2ptrain.ids import PeerId, RunId, public_key_of
from p2ptrain.net.identity import Identity
from p2ptrain.net.transport import Transport
from p2ptrain.runtime import Clock, Runtime
from p2ptrain.tasks import TaskOwner

if TYPE_CHECKING:
    from p2ptrain.discovery.kademlia import Kademlia

NUM_BUCKETS: Final = 16  # with 64 records each, of 1,024 peers all are found; of more, a sample
MAX_FRAGMENTS: Final = 256  # whose heads are looked for
PUBLISH_INTERVAL: Final = 240.0  # seconds, give or take a quarter: twice in a record's life of 600 s
MIN_PUBLISH_INTERVAL: Final = 30.0  # seconds, when holders are lost
FIRST_PUBLISH_WINDOW: Final = 5.0  # seconds over which peers that start together spread
LEAVE_TIMEOUT: Final = 1.0


class Directory:
    """Publishes what this peer says, and reads what others say."""

    def __init__(
        self, *, runtime: Runtime, transport: Transport, identity: Identity, events: Events, members: Members
    ) -> None:
        self._runtime, self._transport, self._events = runtime, transport, events
        self._identity, self._members = identity, members
        self._tasks = TaskOwner(events)
        self._heads: dict[int, HeadRecord] = {}
        self._known: set[PeerId] = set()
        self._holder_lost = asyncio.Event()
        self._table: Kademlia | None = None

    async def start(self) -> None:
        """Start the DHT node; the first start in a process imports hivemind, on a worker thread."""
        kademlia_class = await self._runtime.compute.run(_import_kademlia)
        self._table = kademlia_class(
            runtime=self._runtime,
            transport=self._transport,
            events=self._events,
            check=EntryCheck(self._transport.run_id, self._runtime.clock),
            record_of=self._record_of,
            receive=self._members.receive,
        )
        await self._table.start()
        self._members.on_change(self._follow_members)
        self._follow_members()
        self._tasks.spawn("publish and read", self._publish_forever(self._table))

    async def leave(self) -> None:
        """Replace the published record by the newest, the farewell if the members have left, and stop."""
        if self._table is not None:
            try:
                async with asyncio.timeout(LEAVE_TIMEOUT):
                    await self._publish_own(self._table)
            except TimeoutError:
                pass
        await self.close()

    async def close(self) -> None:
        """Stop without a word."""
        await self._tasks.close()
        if self._table is not None:
            await self._table.close()

    def publish_head(self, head: HeadRecord) -> None:
        """Publish a head, of which this peer is the first holder, with the next round of publishing."""
        self._heads[head.fragment] = head

    async def find_heads(self, fragment: int) -> list[HeadRecord]:
        """Return the heads that others published for a fragment, most work first."""
        if self._table is None:
            return []
        now, run_id = self._runtime.clock.wall(), self._transport.run_id
        values = (await self._table.find(head_key(run_id, fragment))).values()
        heads = [HeadRecord.from_bytes(value, run_id=run_id, now=now) for value in values]
        return sorted(heads, key=lambda head: head.total_work, reverse=True)

    async def read_bucket(self, bucket: int) -> None:
        """Take the members in a bucket into the view."""
        if self._table is not None:
            self._members.receive((await self._table.find(member_key(self._transport.run_id, bucket))).values())

    async def publish(self) -> None:
        """Store the own record and the heads anew."""
        if self._table is None:
            return
        await self._publish_own(self._table)
        run_id, subkey = self._transport.run_id, public_key_of(self._transport.peer_id)
        for head in list(self._heads.values()):
            signed = head.to_bytes(self._identity, run_id)
            await self._table.store(head_key(run_id, head.fragment), subkey, signed, head.expires_at)

    async def _publish_own(self, table: "Kademlia") -> None:
        own = self._transport.peer_id
        signed = self._members.signed_record(own)
        if signed is not None:
            expires_at = self._members.own_record.expires_at
            await table.store(self._own_key(), public_key_of(own), signed, expires_at)

    async def _publish_forever(self, table: "Kademlia") -> None:
        chance = self._runtime.entropy.random
        await asyncio.sleep(chance.uniform(0.0, FIRST_PUBLISH_WINDOW))
        while True:
            await self.publish()
            await self.read_bucket(chance.randrange(NUM_BUCKETS))
            self._holder_lost.clear()
            await asyncio.sleep(MIN_PUBLISH_INTERVAL)
            try:
                async with asyncio.timeout(PUBLISH_INTERVAL * chance.uniform(0.75, 1.25) - MIN_PUBLISH_INTERVAL):
                    await self._holder_lost.wait()
            except TimeoutError:
                continue

    def _follow_members(self) -> None:
        """Meet whoever came, forget whoever left."""
        if self._table is None:
            return
        live = {record.peer for record in self._members.live()}
        for peer in sorted(live - self._known):
            self._tasks.spawn("meet a DHT node", self._table.meet(peer))
        for peer in sorted(self._known - live):
            if self._table.is_holder(self._own_key(), peer):
                self._holder_lost.set()
            self._table.forget(peer)
        self._known = live

    def _record_of(self, peer: PeerId) -> bytes | None:
        """Return the signed record of a peer that is alive: nobody else is worth naming to others."""
        return self._members.signed_record(peer) if peer in self._known else None

    def _own_key(self) -> bytes:
        return member_key(self._transport.run_id, bucket_of(self._transport.peer_id))


class EntryCheck:
    """Judges what others store in the DHT or say that it holds: (key id, subkey, value, expires_at)."""

    def __init__(self, run_id: RunId, clock: Clock) -> None:
        self._run_id, self._clock = run_id, clock
        self._buckets = {_key_id(member_key(run_id, bucket)): bucket for bucket in range(NUM_BUCKETS)}
        self._fragments = {_key_id(head_key(run_id, fragment)): fragment for fragment in range(MAX_FRAGMENTS)}

    def __call__(self, key_id: bytes, subkey: bytes, value: bytes, expires_at: float) -> bool:
        try:
            signer, lives_until = self._read(key_id, value)
        except ValueError:
            return False
        return public_key_of(signer) == subkey and expires_at == lives_until

    def _read(self, key_id: bytes, value: bytes) -> tuple[PeerId, float]:
        now = self._clock.wall()
        if key_id in self._buckets:
            member = MemberRecord.from_bytes(value, run_id=self._run_id, now=now)
            if bucket_of(member.peer) != self._buckets[key_id]:
                raise ValueError("the record lies in the wrong bucket")
            return member.peer, member.expires_at
        if key_id in self._fragments:
            head = HeadRecord.from_bytes(value, run_id=self._run_id, now=now)
            if head.fragment != self._fragments[key_id]:
                raise ValueError("the head is another fragment's")
            return head.holders[0], head.expires_at
        raise ValueError("nothing lies under this key")


def bucket_of(peer: PeerId) -> int:
    return public_key_of(peer)[0] % NUM_BUCKETS


def member_key(run_id: RunId, bucket: int) -> bytes:
    return b"members" + run_id + bytes([bucket])


def head_key(run_id: RunId, fragment: int) -> bytes:
    return b"head" + run_id + fragment.to_bytes(2, "big")


def _key_id(key: bytes) -> bytes:
    """Return what Kademlia calls a key: its SHA-1 (as hivemind's DHTID)."""
    return hashlib.sha1(key).digest()


def _import_kademlia() -> "type[Kademlia]":
    from p2ptrain.discovery.kademlia import Kademlia

    return Kademlia
