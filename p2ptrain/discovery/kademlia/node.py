"""A node of the DHT."""

from collections.abc import Callable, Iterable
from typing import Final

from hivemind.dht.node import DHTNode
from hivemind.dht.routing import DHTID, RoutingTable
from hivemind.p2p import PeerID
from hivemind.utils import MSGPackSerializer

from p2ptrain.discovery.kademlia.ports import Surroundings
from p2ptrain.discovery.kademlia.screening import BUCKET_SIZE, node_id_of
from p2ptrain.discovery.kademlia.sessions import CALL_TIMEOUT, Neighbourhood, Sessions
from p2ptrain.discovery.kademlia.storage import BoundedStorage, Check, CheckingValidator
from p2ptrain.errors import NetworkError
from p2ptrain.events import Events
from p2ptrain.ids import PeerId, peer_id_bytes
from p2ptrain.net.transport import Transport
from p2ptrain.runtime import Runtime
from p2ptrain.tasks import TaskOwner

NUM_REPLICAS: Final = 5  # hivemind's default
MAX_PARALLEL_CALLS: Final = 8
MAX_PENDING_PINGS: Final = 16


class Kademlia:
    """A node of the DHT: keys to at most 64 values, each under the public key of the peer that signed it."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        transport: Transport,
        events: Events,
        check: Check,
        record_of: Callable[[PeerId], bytes | None],
        receive: Callable[[Iterable[bytes]], None],
    ) -> None:
        """`record_of` gives the signed record of a peer that is alive, `receive` takes those that come with answers."""
        self._own, self._check = transport.peer_id, check
        self._surroundings = Surroundings(runtime.clock.wall, runtime.entropy.random)
        self._tasks = TaskOwner(events)
        self._pending_pings: set[PeerId] = set()
        self._sessions = Sessions(
            self._surroundings,
            transport,
            Neighbourhood(check=check, record_of=record_of, receive=receive, on_request=self._requested_by),
        )
        self._node: DHTNode | None = None

    async def start(self) -> None:
        with self._surroundings.entered():
            self._node = await DHTNode.create(
                p2p=self._sessions,
                node_id=node_id_of(self._own),
                bucket_size=BUCKET_SIZE,
                num_replicas=NUM_REPLICAS,
                parallel_rpc=MAX_PARALLEL_CALLS,
                wait_timeout=CALL_TIMEOUT,
                cache_locally=False,
                cache_nearest=0,
                cache_on_store=False,
                cache_refresh_before_expiry=0,
                cache_size=1,
                reuse_get_requests=False,
                blacklist_time=0,
                record_validator=CheckingValidator(self._check),
            )
        self._node.protocol.storage = BoundedStorage()

    async def close(self) -> None:
        self._sessions.closed = True
        await self._tasks.close()
        if self._node is not None:
            await self._node.shutdown()
        await self._surroundings.close()

    def contacts(self) -> list[PeerId]:
        """Return the peers in the routing table, by ascending id."""
        return sorted(PeerId(peer.to_base58()) for peer in self._table.peer_id_to_uid)

    async def meet(self, peer: PeerId) -> None:
        """Ask a peer who it is; it enters the routing table if it answers."""
        if peer in self._pending_pings or len(self._pending_pings) >= MAX_PENDING_PINGS:
            return
        self._pending_pings.add(peer)
        try:
            with self._surroundings.entered():
                await self._running.protocol.call_ping(PeerID(peer_id_bytes(peer)))
        finally:
            self._pending_pings.discard(peer)

    def forget(self, peer: PeerId) -> None:
        """Take a peer out of the routing table."""
        if node_id_of(peer) in self._table:
            del self._table[node_id_of(peer)]

    def is_holder(self, key: bytes, peer: PeerId) -> bool:
        """Return whether a peer is among the contacts that hold what is stored under `key`."""
        nearest = self._table.get_nearest_neighbors(DHTID.generate(key), NUM_REPLICAS)
        return node_id_of(peer) in dict(nearest)

    async def store(self, key: bytes, subkey: bytes, value: bytes, expires_at: float) -> bool:
        """Store a value at the nodes nearest to the key, and here; return whether a node took it."""
        packed = MSGPackSerializer.dumps(value)
        with self._surroundings.entered():
            self._running.protocol.storage.store_subkey(DHTID.generate(key), subkey, packed, expires_at)
            return bool(await self._running.store(key, value, expires_at, subkey=subkey))

    async def find(self, key: bytes) -> dict[bytes, bytes]:
        """Return the values that the nodes nearest to a key have under it, by subkey."""
        with self._surroundings.entered():
            found = await self._running.get(key, latest=True)
        return {subkey: entry.value for subkey, entry in found.value.items()} if found is not None else {}

    @property
    def _running(self) -> DHTNode:
        if self._node is None:
            raise NetworkError("the DHT node has not started")
        return self._node

    @property
    def _table(self) -> RoutingTable:
        return self._running.protocol.routing_table

    def _requested_by(self, peer: PeerId) -> None:
        if not self._sessions.closed and PeerID(peer_id_bytes(peer)) not in self._table.peer_id_to_uid:
            self._tasks.spawn("ping a DHT node", self.meet(peer))
