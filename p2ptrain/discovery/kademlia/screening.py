"""What hivemind may see, and what it may send: pure functions over its protobuf messages."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgpack
from google.protobuf.message import DecodeError
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.proto import dht_pb2
from hivemind.utils import MSGPackSerializer

from p2ptrain.discovery.kademlia.storage import Check
from p2ptrain.discovery.messages import MAX_RECORDS, MAX_VALUES, SUBKEY_BYTES, KademliaAnswer
from p2ptrain.discovery.records import MAX_MEMBER_BYTES
from p2ptrain.errors import Refused
from p2ptrain.ids import ED25519_PREFIX, PeerId, peer_id_from_public_key
from p2ptrain.wire.messages import unpack

BUCKET_SIZE: Final = 8  # k, as in BitTorrent's DHT: every contact in an answer costs a record of 250 bytes
MAX_FIND_KEYS: Final = 4
_SUBKEY_HEADER: Final = bytes(msgpack.packb(bytes(SUBKEY_BYTES)))[:2]


def node_id_of(peer: PeerId) -> DHTID:
    return DHTID.generate(peer_id_bytes(peer))


def _parse(message: type[Any], data: bytes) -> Any:
    try:
        return message.FromString(data)  # type: ignore[attr-defined]
    except DecodeError:
        raise Refused("malformed", f"not a {message.__name__}") from None


def _check_request(request: Any) -> None:
    """Refuse what our own nodes never send."""
    keys = getattr(request, "keys", ())
    limit = MAX_RECORDS if isinstance(request, dht_pb2.StoreRequest) else MAX_FIND_KEYS
    if len(keys) > limit or any(len(key) != KEY_BYTES for key in keys) or getattr(request, "validate", False):
        raise Refused("malformed", "too many keys, or not keys, or a check of reachability")
    if isinstance(request, dht_pb2.StoreRequest):
        fields = (request.subkeys, request.values, request.expiration_time, request.in_cache)
        if any(len(field) != len(keys) for field in fields) or any(request.in_cache):
            raise Refused("malformed", "the stored values are not aligned, or meant for a cache")
        if not all(_is_subkey(tag) for tag in request.subkeys):
            raise Refused("malformed", "a value is stored under the public key of its signer")
        if any(len(value) > MAX_MEMBER_BYTES + 3 for value in request.values):
            raise Refused("malformed", f"a value has at most {MAX_MEMBER_BYTES} bytes")


def _is_subkey(tag: bytes) -> bool:
    return len(tag) == len(_SUBKEY_HEADER) + SUBKEY_BYTES and tag.startswith(_SUBKEY_HEADER)


def _parts(request: Any) -> Iterator[Any]:
    """Yield a request; a store of whole dictionaries (to a node that is new) as stores of a few values each."""
    if not isinstance(request, dht_pb2.StoreRequest):
        yield request
        return
    rows = list(_rows(request))
    for start in range(0, len(rows), MAX_RECORDS):
        keys, subkeys, values, expirations = zip(*rows[start : start + MAX_RECORDS], strict=True)
        yield dht_pb2.StoreRequest(
            keys=keys,
            subkeys=subkeys,
            values=values,
            expiration_time=expirations,
            in_cache=[False] * len(keys),
            peer=request.peer,
        )


def _rows(request: Any) -> Iterator[tuple[bytes, bytes, bytes, float]]:
    for key, tag, value, expires_at in zip(
        request.keys, request.subkeys, request.values, request.expiration_time, strict=True
    ):
        if tag:
            yield key, tag, value, expires_at
        else:
            for subkey, entry in MSGPackSerializer.loads(value).items():
                yield key, MSGPackSerializer.dumps(subkey), entry.value, entry.expiration_time


def _take_values_out(response: Any) -> Iterator[tuple[int, bytes, bytes, float]]:
    for index, result in enumerate(response.results):
        if result.type == dht_pb2.FOUND_DICTIONARY:
            for subkey, entry in MSGPackSerializer.loads(result.value).items():
                yield index, subkey, unpack(entry.value), entry.expiration_time
        result.ClearField("type")
        result.ClearField("value")


def _keep_neighbours(result: Any, judge: Callable[[PeerId], Any]) -> dict[PeerId, Any]:
    """Drop the neighbours whose ids do not match or that `judge` finds wanting; return its verdict on the others."""
    kept = {}
    for node_id, raw in list(zip(result.nearest_node_ids, result.nearest_peer_ids, strict=False))[:BUCKET_SIZE]:
        if len(raw) != len(ED25519_PREFIX) + SUBKEY_BYTES or not raw.startswith(ED25519_PREFIX):
            continue
        peer = peer_id_from_public_key(raw[len(ED25519_PREFIX) :])
        verdict = judge(peer)
        if verdict and node_id == _node_id(raw).to_bytes():
            kept[peer] = verdict
    raws = [peer_id_bytes(peer) for peer in kept]
    result.nearest_peer_ids[:] = raws
    result.nearest_node_ids[:] = [_node_id(raw).to_bytes() for raw in raws]
    return kept
