"""Names for peers, runs and bytes.

A peer id is the libp2p form of an Ed25519 public key (an "identity" multihash of its protobuf), in base58: 12D3KooW….
It can be turned back into the key, so a signature can be checked by id alone. A digest is BLAKE3, 32 bytes, and every
use has a domain of its own, so that bytes of one kind can never stand for another kind.
"""

from functools import lru_cache
from typing import Final, NewType

import base58
from blake3 import blake3

from p2ptrain.errors import LinkError

ED25519_PREFIX: Final = b"\x00\x24\x08\x01\x12\x20"  # multihash identity, 36 bytes; protobuf: type Ed25519, 32-byte key

PeerId = NewType("PeerId", str)
Digest = NewType("Digest", bytes)
RunId = NewType("RunId", bytes)

DIGEST_BYTES: Final = 32


@lru_cache(maxsize=1 << 14)
def peer_id_from_public_key(public_key: bytes) -> PeerId:
    """Return the peer id of a raw 32-byte Ed25519 public key."""
    if len(public_key) != 32:
        raise ValueError(f"an Ed25519 public key has 32 bytes, not {len(public_key)}")
    return PeerId(base58.b58encode(ED25519_PREFIX + public_key).decode())


@lru_cache(maxsize=1 << 14)
def public_key_of(peer: PeerId) -> bytes:
    """Return the raw public key (32 bytes) inside a peer id; ValueError when the text is no peer id."""
    raw = peer_id_bytes(peer)
    return raw[len(ED25519_PREFIX) :]


@lru_cache(maxsize=1 << 14)
def peer_id_bytes(peer: PeerId) -> bytes:
    """Return a peer id's 38 bytes as libp2p (and hivemind's PeerID) know them; ValueError when it is none."""
    if len(peer) > 64:
        raise ValueError("a peer id has at most 64 characters")
    try:
        raw = base58.b58decode(peer)
    except ValueError:
        raise ValueError(f"{peer!r} is not base58") from None
    if len(raw) != len(ED25519_PREFIX) + 32 or not raw.startswith(ED25519_PREFIX):
        raise ValueError(f"{peer!r} is not the id of an Ed25519 key")
    return raw


def parse_peer_id(text: str) -> PeerId:
    """Return `text` as a peer id, or raise ValueError."""
    peer_id_bytes(PeerId(text))
    return PeerId(text)


def short(peer: str) -> str:
    """Return the last six characters, for a line that people read (all ids begin alike)."""
    return peer[-6:]


def digest(domain: str, *parts: bytes | bytearray | memoryview) -> Digest:
    """Return the 32-byte BLAKE3 digest of the parts under a domain; where the parts divide is part of the digest."""
    hasher = blake3(f"p2ptrain {domain}\n".encode())
    for part in parts:
        view = memoryview(part).cast("B") if len(part) else b""
        hasher.update(len(view).to_bytes(8, "little"))
        hasher.update(view)
    return Digest(hasher.digest())


def format_run_id(run_id: RunId) -> str:
    """Return a run id as people see it: base58, 43 or 44 characters."""
    return base58.b58encode(run_id).decode()


def parse_run_id(text: str) -> RunId:
    """Return the run id that `text` spells, or raise LinkError."""
    try:
        raw = base58.b58decode(text) if len(text) <= 64 else b""
    except ValueError:
        raw = b""
    if len(raw) != DIGEST_BYTES:
        raise LinkError(f"run id {text[:64]!r} is not 32 bytes of base58")
    return RunId(raw)
