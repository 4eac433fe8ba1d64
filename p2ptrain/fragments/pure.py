"""What a peer works out from bytes alone: signatures, parsing, applying an update.

Each is a pure function of its arguments, and an argument of the peer. A peer of its own process computes them as they
stand here, and remembers which signatures it has checked, since a commit repeats the envelopes that its leader checked
as contributions. A process with a thousand peers may compute each once for all of them (sim/memo.py): equal bytes then
become one object, which nobody changes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import msgpack

from p2ptrain.config import OuterConfig
from p2ptrain.discovery.records import MemberRecord, ParseMember
from p2ptrain.errors import StateSyncError
from p2ptrain.fragments.chain import Commit, Envelope, Verify
from p2ptrain.fragments.layout import Fragment
from p2ptrain.fragments.state import FragmentState
from p2ptrain.ids import PeerId, digest
from p2ptrain.net.identity import verify
from p2ptrain.wire.codecs import CODECS, CodecError

NUM_REMEMBERED = 1024  # signatures: those of the last rounds of all fragments
MAX_REMEMBERED_BYTES = 4096  # of one signed message: an envelope, not a commit, which is checked once anyway


def apply_update(state: FragmentState, commit: Commit, data: bytes, codec: str, outer: OuterConfig) -> FragmentState:
    """Return the state after a commit from its update's bytes, with its digest computed; StateSyncError."""
    if digest("update", data) != commit.update:
        raise StateSyncError("the update's bytes do not match their digest")
    try:
        update = CODECS[codec].decode(data, state.anchor.size)
    except CodecError as error:
        raise StateSyncError(f"the update cannot be decoded: {error}") from None
    after = state.after(commit, update, outer)
    _ = after.digest  # computed here, on a worker thread, and cached
    return after


def pack_snapshot(commit: Commit, state: FragmentState) -> tuple[int, bytes]:
    """Return the length of the commit, and commit and state as one run of bytes."""
    data = commit.to_bytes()
    return len(data), b"".join([data, *state.to_buffers()])


def parse_snapshot(
    data: bytes, commit_bytes: int, fragment: Fragment, outer: OuterConfig
) -> tuple[Commit, FragmentState]:
    """Return commit and state out of a snapshot's bytes; StateSyncError unless the state matches the commit."""
    commit = Commit.from_bytes(data[:commit_bytes])
    state = FragmentState.from_bytes(data[commit_bytes:], fragment.num_elements, outer)
    if commit.fragment != fragment.index:
        raise StateSyncError("a snapshot of another fragment")
    if state.digest != commit.state:
        raise StateSyncError("the snapshot's bytes do not match the state in its commit")
    return commit, state


def pack_head(commit: Commit, state: FragmentState) -> bytes:
    """Return a head and its state as they are kept on disk."""
    packed: bytes = msgpack.packb(pack_snapshot(commit, state))
    return packed


@dataclass(frozen=True, kw_only=True)
class Pure:
    """The functions, by name."""

    verify: Verify
    parse_commit: Callable[[bytes], Commit] = Commit.from_bytes
    parse_envelope: Callable[[bytes], Envelope] = Envelope.from_bytes
    parse_member: ParseMember = MemberRecord.parse
    apply_update: Callable[[FragmentState, Commit, bytes, str, OuterConfig], FragmentState] = apply_update
    pack_snapshot: Callable[[Commit, FragmentState], tuple[int, bytes]] = pack_snapshot
    parse_snapshot: Callable[[bytes, int, Fragment, OuterConfig], tuple[Commit, FragmentState]] = parse_snapshot
    pack_head: Callable[[Commit, FragmentState], bytes] = pack_head

    @classmethod
    def of_one_peer(cls) -> "Pure":
        """Return the functions for a peer that has a process of its own."""
        remembered = lru_cache(NUM_REMEMBERED)(verify)

        def verify_once(peer: PeerId, domain: str, message: bytes, signature: bytes) -> bool:
            is_short = len(message) <= MAX_REMEMBERED_BYTES
            return (remembered if is_short else verify)(peer, domain, message, signature)

        return cls(verify=verify_once)
