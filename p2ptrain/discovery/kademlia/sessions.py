"""What hivemind asks of its `P2P` object, over our sessions."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from hivemind.p2p import P2PContext, PeerID
from hivemind.proto import dht_pb2

from p2ptrain.discovery.kademlia.ports import Surroundings
from p2ptrain.discovery.kademlia.screening import (
    check_request,
    keep_neighbours,
    node_id_of,
    parse,
    parts_of,
    put_values_back,
    take_values_out,
)
from p2ptrain.discovery.kademlia.storage import Check
from p2ptrain.discovery.messages import MAX_RECORDS, KademliaAnswer, KademliaCall
from p2ptrain.errors import NetworkError, Refused, RemoteProtocolError
from p2ptrain.ids import PeerId, peer_id_bytes
from p2ptrain.net.transport import Transport

CALL_TIMEOUT: Final = 3.0  # seconds; hivemind's own default

Answerer = Callable[[Any, P2PContext], Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbourhood:
    """What the DHT takes from, and gives to, the rest of discovery."""

    check: Check
    record_of: Callable[[PeerId], bytes | None]  # the signed record of a peer that is alive
    receive: Callable[[Iterable[bytes]], None]  # takes the records that came along
    on_request: Callable[[PeerId], None]  # a live node of the DHT asked us something


class Sessions:
    """Carries hivemind's calls. Its coroutines are named and called as those of `hivemind.P2P`."""

    def __init__(self, surroundings: Surroundings, transport: Transport, neighbourhood: Neighbourhood) -> None:
        self.peer_id = PeerID(peer_id_bytes(transport.peer_id))
        self.closed = False
        self._surroundings = surroundings
        self._transport, self._neighbourhood = transport, neighbourhood
        self._answerers: dict[str, tuple[Answerer, Any]] = {}  # with the protobuf class of the request
        transport.handle(KademliaCall, self._answer)

    async def add_protobuf_handler(self, name: str, answerer: Answerer, request_class: Any, **unary: bool) -> None:
        self._answerers[name] = answerer, request_class

    async def remove_protobuf_handler(self, name: str, **unary: bool) -> None:
        self._answerers.pop(name, None)

    async def call_protobuf_handler(self, peer: PeerID, name: str, request: Any, response_class: Any) -> Any:
        callee = PeerId(peer.to_base58())
        responses = [await self._call(callee, name, part, response_class) for part in parts_of(request)]
        for further in responses[1:]:
            responses[0].MergeFrom(further)
        return responses[0]

    async def _call(self, peer: PeerId, name: str, request: Any, response_class: Any) -> Any:
        if self.closed:
            raise NetworkError("the DHT node has closed")
        call = KademliaCall(rpc=name, payload=request.SerializeToString())
        answer = (await self._transport.call(peer, call, KademliaAnswer, timeout=CALL_TIMEOUT)).message
        response = parse(response_class, answer.payload)
        if response.peer.node_id not in (b"", node_id_of(peer).to_bytes()):
            raise RemoteProtocolError(peer, "node-id", "answered under a node id that is not its own")
        if isinstance(response, dht_pb2.FindResponse):
            self._neighbourhood.receive(answer.records)
            put_values_back(list(request.keys), response, answer.found, self._neighbourhood.check)
            keep_neighbours(response, self._can_be_called)
        return response

    def _can_be_called(self, peer: PeerId) -> bool:
        return peer != self._transport.peer_id and bool(self._transport.addresses_of(peer))

    async def _answer(self, sender: PeerId, call: KademliaCall, body: bytearray) -> KademliaAnswer:
        if self.closed or call.rpc not in self._answerers:
            raise Refused("unknown-method", f"no DHT node answers {call.rpc!r}")
        answerer, request_class = self._answerers[call.rpc]
        request = parse(request_class, call.payload)
        check_request(request)
        if request.peer.node_id and self._neighbourhood.record_of(sender) is not None:
            self._neighbourhood.on_request(sender)
        request.ClearField("peer")  # hivemind would add the sender to its table without having asked it anything
        context = P2PContext(handle_name=call.rpc, local_id=self.peer_id, remote_id=PeerID(peer_id_bytes(sender)))
        with self._surroundings.entered():  # also for the values, whose containers drop what has expired
            response = await answerer(request, context)
            found = take_values_out(response) if isinstance(response, dht_pb2.FindResponse) else []
        if not isinstance(response, dht_pb2.FindResponse):
            return KademliaAnswer(payload=response.SerializeToString())
        record_of = self._neighbourhood.record_of
        neighbours = keep_neighbours(response, lambda peer: peer != sender and record_of(peer) is not None)
        records = [record for peer in neighbours if (record := record_of(peer)) is not None]
        return KademliaAnswer(
            payload=response.SerializeToString(), found=tuple(found), records=tuple(records[:MAX_RECORDS])
        )
