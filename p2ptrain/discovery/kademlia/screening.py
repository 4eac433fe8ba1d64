"""What hivemind may see, and what it may send: functions over its protobuf messages, without I/O."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgpack
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.proto import dht_pb2
from hivemind.utils import MSGPackSerializer

from p2ptrain.discovery.kademlia.storage import Check
from p2ptrain.discovery.messages import MAX_RECORDS, MAX_VALUES, SUBKEY_BYTES
from p2ptrain.discovery.records import MAX_MEMBER_BYTES
from p2ptrain.errors import Refused
from p2ptrain.ids import ED25519_PREFIX, PeerId, peer_id_bytes, peer_id_from_public_key
from p2ptrain.wire.messages import unpack

BUCKET_SIZE: Final = 8  # k, as in BitTorrent's DHT: every contact in an answer costs a record of 250 bytes
MAX_FIND_KEYS: Final = 4
_SUBKEY_HEADER: Final = bytes(msgpack.packb(bytes(SUBKEY_BYTES)))[:2]

Found = tuple[int, bytes, bytes, float]  # index of the key, subkey, value, expires_at


def node_id_of(peer: PeerId) -> DHTID:
    """Return where a peer stands in the DHT: it follows from the key that the peer proves."""
    return DHTID.generate(peer_id_bytes(peer))


def parse(message: Any, data: bytes) -> Any:
    """Return the protobuf message of class `message` in `data`; Refused when there is none."""
    try:
        return message.FromString(data)
    except DecodeError:
        raise Refused("malformed", f"not a {message.__name__}") from None


def check_request(request: Any) -> None:
    """Refuse what our own nodes never send: hivemind does not look closely."""
    is_store = isinstance(request, dht_pb2.StoreRequest)
    keys = getattr(request, "keys", ())
    if len(keys) > (MAX_RECORDS if is_store else MAX_FIND_KEYS) or any(len(key) != DHTID.HASH_NBYTES for key in keys):
        raise Refused("malformed", "too many keys, or not keys")
    if getattr(request, "validate", False):
        raise Refused("malformed", "a ping does not check reachability here")
    if is_store:
        _check_stored(request)


def _check_stored(request: Any) -> None:
    columns = (request.subkeys, request.values, request.expiration_time, request.in_cache)
    if any(len(column) != len(request.keys) for column in columns) or any(request.in_cache):
        raise Refused("malformed", "the stored values are not aligned, or meant for a cache")
    if not all(len(tag) == 2 + SUBKEY_BYTES and tag.startswith(_SUBKEY_HEADER) for tag in request.subkeys):
        raise Refused("malformed", "a value is stored under the public key of its signer")
    if any(len(value) > MAX_MEMBER_BYTES + 3 for value in request.values):
        raise Refused("malformed", f"a value has at most {MAX_MEMBER_BYTES} bytes")


def parts_of(request: Any) -> Iterator[Any]:
    """Yield a request as requests that `check_request` admits.

    hivemind hands over all it has to a node that is new, as whole dictionaries in one message.
    """
    if not isinstance(request, dht_pb2.StoreRequest):
        yield request
        return
    rows = list(_rows_of(request))
    for start in range(0, max(len(rows), 1), MAX_RECORDS):
        part = dht_pb2.StoreRequest(peer=request.peer)
        for key, tag, value, expires_at in rows[start : start + MAX_RECORDS]:
            part.keys.append(key)
            part.subkeys.append(tag)
            part.values.append(value)
            part.expiration_time.append(expires_at)
            part.in_cache.append(False)
        yield part


def _rows_of(request: Any) -> Iterator[tuple[bytes, bytes, bytes, float]]:
    columns = (request.keys, request.subkeys, request.values, request.expiration_time)
    for key, tag, value, expires_at in zip(*columns, strict=True):
        if tag:
            yield key, tag, value, expires_at
            continue
        for subkey, entry in MSGPackSerializer.loads(value).items():
            yield key, MSGPackSerializer.dumps(subkey), entry.value, entry.expiration_time


def take_values_out(response: Any) -> list[Found]:
    """Remove the found dictionaries from our own answer; return them as plain values."""
    found: list[Found] = []
    for index, result in enumerate(response.results):
        if result.type == dht_pb2.FOUND_DICTIONARY:
            for subkey, entry in MSGPackSerializer.loads(result.value).items():
                found.append((index, subkey, unpack(entry.value), entry.expiration_time))
        result.ClearField("type")
        result.ClearField("value")
    return found[:MAX_VALUES]


def put_values_back(keys: list[bytes], response: Any, found: tuple[Found, ...], check: Check) -> None:
    """Give hivemind the dictionaries that it expects in an answer, made of the values that pass the check."""
    for index, (key, result) in enumerate(zip(keys, response.results, strict=False)):
        dictionary = DictionaryDHTValue(MAX_VALUES)
        for number, subkey, value, expires_at in found:
            if number == index and check(key, subkey, value, expires_at):
                dictionary.store(subkey, MSGPackSerializer.dumps(value), expires_at)
        result.type = dht_pb2.FOUND_DICTIONARY if dictionary else dht_pb2.NOT_FOUND
        result.value = MSGPackSerializer.dumps(dictionary)
        result.expiration_time = max(dictionary.latest_expiration_time, 0.0)


def keep_neighbours(response: Any, is_kept: Callable[[PeerId], bool]) -> list[PeerId]:
    """Drop the neighbours whose two ids do not belong together or that are not to be kept; return the others."""
    kept: dict[PeerId, None] = {}
    for result in response.results:
        pairs = list(zip(result.nearest_node_ids, result.nearest_peer_ids, strict=False))[:BUCKET_SIZE]
        peers = [peer for node_id, raw in pairs if (peer := _proven(node_id, raw)) is not None and is_kept(peer)]
        result.nearest_node_ids[:] = [node_id_of(peer).to_bytes() for peer in peers]
        result.nearest_peer_ids[:] = [peer_id_bytes(peer) for peer in peers]
        kept.update(dict.fromkeys(peers))
    return list(kept)


def _proven(node_id: bytes, raw_peer_id: bytes) -> PeerId | None:
    """Return the peer that both ids name, or None."""
    if len(raw_peer_id) != len(ED25519_PREFIX) + 32 or not raw_peer_id.startswith(ED25519_PREFIX):
        return None
    peer = peer_id_from_public_key(raw_peer_id[len(ED25519_PREFIX) :])
    return peer if node_id == node_id_of(peer).to_bytes() else None
