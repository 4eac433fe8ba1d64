"""The peers that this machine has met, remembered on disk for the day when no bootstrap address answers.

It is a cache: a file that is missing, damaged or unreadable costs the memory of old peers and stops nothing.
"""

from collections.abc import Iterable
from typing import Final

import msgpack

from p2ptrain.ids import PeerId, parse_peer_id
from p2ptrain.link import LinkPeer, check_dialable
from p2ptrain.runtime import Address, Runtime
from p2ptrain.wire.messages import unpack

MAX_KNOWN_PEERS: Final = 64  # of these some are alive after weeks; all of them can be dialled at once
STORAGE_NAME: Final = "known-peers.msgpack"


async def load(runtime: Runtime) -> list[LinkPeer]:
    """Return the remembered peers, most recently seen first; StorageError when the file cannot be read."""
    data = await runtime.compute.run(runtime.storage.read, STORAGE_NAME)
    return decode(data) if data is not None else []


async def save(runtime: Runtime, seen: Iterable[LinkPeer], remembered: Iterable[LinkPeer]) -> list[LinkPeer]:
    """Write those seen now, then those remembered from before; return what was written."""
    newest: dict[PeerId, LinkPeer] = {}
    for entry in (*seen, *remembered):
        newest.setdefault(entry.peer, entry)
    known = list(newest.values())[:MAX_KNOWN_PEERS]
    await runtime.compute.run(runtime.storage.write, STORAGE_NAME, encode(known))
    return known


def encode(known: Iterable[LinkPeer]) -> bytes:
    data: bytes = msgpack.packb([[entry.peer, entry.address.host, entry.address.port] for entry in known])
    return data


def decode(data: bytes) -> list[LinkPeer]:
    """Return the peers in `data`; nothing when it is damaged."""
    try:
        rows = unpack(data)
        return [LinkPeer(parse_peer_id(peer), check_dialable(Address(host, port))) for peer, host, port in rows]
    except (ValueError, TypeError):
        return []
