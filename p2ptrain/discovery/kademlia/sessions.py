"""What hivemind asks of its `P2P` object, over our sessions."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from hivemind.p2p import P2PContext, PeerID
from hivemind.proto import dht_pb2

from p2ptrain.discovery.kademlia import screening
from p2ptrain.discovery.kademlia.storage import Check
from p2ptrain.discovery.messages import MAX_RECORDS, KademliaAnswer, KademliaCall
from p2ptrain.errors import NetworkError, Refused, RemoteProtocolError
from p2ptrain.ids import PeerId, peer_id_bytes
from p2ptrain.net.transport import Transport

CALL_TIMEOUT: Final = 3.0  # seconds; hivemind's own default


@dataclass(frozen=True, slots=True)
class _Handler:
    answer: Callable[[Any, P2PContext], Awaitable[Any]]
    request: type[Any]  # a protobuf message


class Sessions:
    """What hivemind asks of `hivemind.P2P`, over our sessions, and what it may see."""

    def __init__(
        self,
        *,
        transport: Transport,
        check: Check,
        record_of: Callable[[PeerId], bytes | None],
        receive: Callable[[Iterable[bytes]], None],
        on_request: Callable[[PeerId], None],
    ) -> None:
        self.peer_id = PeerID(peer_id_bytes(transport.peer_id))
        self.closed = False
        self._transport, self._check = transport, check
        self._record_of, self._receive, self._on_request = record_of, receive, on_request
        self._handlers: dict[str, _Handler] = {}
        transport.handle(KademliaCall, self._answer)

    async def add_protobuf_handler(
        self, name: str, handler: Callable[[Any, P2PContext], Awaitable[Any]], request: type[Any], **unary: bool
    ) -> None:
        self._handlers[name] = _Handler(handler, request)

    async def remove_protobuf_handler(self, name: str, **unary: bool) -> None:
        self._handlers.pop(name, None)

    async def call_protobuf_handler(self, peer: PeerID, name: str, request: Any, response: type[Any]) -> Any:
        target = PeerId(peer.to_base58())
        answers = [await self._call(target, name, part, response) for part in _parts(request)]
        for further in answers[1:]:
            answers[0].MergeFrom(further)
        return answers[0]

    async def _call(self, peer: PeerId, name: str, request: Any, response_type: type[Any]) -> Any:
        if self.closed:
            raise NetworkError("the DHT node has closed")
        call = KademliaCall(rpc=name, payload=request.SerializeToString())
        answer = (await self._transport.call(peer, call, KademliaAnswer, timeout=CALL_TIMEOUT)).message
        response = _parse(response_type, answer.payload)
        if response.peer.node_id not in (b"", node_id_of(peer).to_bytes()):
            raise RemoteProtocolError(peer, "node-id", "answered under a node id that is not its own")
        if isinstance(response, dht_pb2.FindResponse):
            self._receive(answer.records)
            self._put_values_back(request, response, answer)
            for result in response.results:
                _keep_neighbours(result, self._is_usable)
        return response

    async def _answer(self, sender: PeerId, call: KademliaCall, body: bytearray) -> KademliaAnswer:
        handler = self._handlers.get(call.rpc)
        if handler is None or self.closed:
            raise Refused("unknown-method", f"no DHT node answers {call.rpc!r}")
        request = _parse(handler.request, call.payload)
        _check_request(request)
        if request.peer.node_id:
            self._on_request(sender)
        request.ClearField("peer")  # hivemind would add the sender to its table without having asked it anything
        context = P2PContext(handle_name=call.rpc, local_id=self.peer_id, remote_id=PeerID(peer_id_bytes(sender)))
        response = await handler.answer(request, context)
        found, records = [], {}
        if isinstance(response, dht_pb2.FindResponse):
            found = list(_take_values_out(response))
            for result in response.results:
                records.update(_keep_neighbours(result, self._record_of))
        return KademliaAnswer(
            payload=response.SerializeToString(), found=tuple(found), records=tuple(records.values())[:MAX_RECORDS]
        )

    def _is_usable(self, peer: PeerId) -> bool:
        return peer != self._transport.peer_id and bool(self._transport.addresses_of(peer))

    def _put_values_back(self, request: Any, response: Any, answer: KademliaAnswer) -> None:
        """Give hivemind the dictionaries it expects, made of those values that pass the check."""
        for index, (key, result) in enumerate(zip(request.keys, response.results, strict=False)):
            result.ClearField("type")
            dictionary = DictionaryDHTValue(MAX_VALUES)
            for number, subkey, value, expires_at in answer.found:
                if number == index and self._check(key, subkey, value, expires_at):
                    dictionary.store(subkey, MSGPackSerializer.dumps(value), expires_at)
            if dictionary:
                result.type = dht_pb2.FOUND_DICTIONARY
                result.value = MSGPackSerializer.dumps(dictionary)
                result.expiration_time = dictionary.latest_expiration_time
