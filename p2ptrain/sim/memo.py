"""What many peers of one process work out from the same bytes, worked out once.

A commit of 64 members reaches a thousand peers: as many times 65 signatures, 64 envelopes to parse, one update to apply.
All of that is a function of the bytes alone, so here the first peer computes it and the others get the same object. What
is shared is never changed: commits and states are frozen, and their arrays read-only. An error is not remembered.

`plain` has the functions as they are, for checkers that do not trust a memory.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Final, TypeVar

from p2ptrain.config import OuterConfig
from p2ptrain.discovery.records import MemberRecord
from p2ptrain.fragments.chain import Commit, Envelope
from p2ptrain.fragments.layout import Fragment
from p2ptrain.fragments.pure import Pure, apply_update, pack_head, pack_snapshot, parse_snapshot
from p2ptrain.fragments.state import FragmentState
from p2ptrain.ids import Digest
from p2ptrain.net.identity import verify

NUM_SIGNATURES: Final = 1 << 15  # a thousand peers' records, and the envelopes of the last rounds
NUM_RECORDS: Final = 1 << 13
NUM_COMMITS: Final = 1 << 9
NUM_STATES: Final = 1 << 8  # of 100 kB each in a run of a thousand peers; what is not recent is in some archive anyway

Value = TypeVar("Value")


class Memo:
    """`pure` is for the peers of a swarm: give it to them as `PeerOptions.pure`."""

    def __init__(self) -> None:
        self.plain = Pure(verify=verify)
        self._states: OrderedDict[Hashable, FragmentState] = OrderedDict()
        self._snapshots: OrderedDict[Hashable, tuple[int, bytes]] = OrderedDict()
        self._parsed: OrderedDict[Hashable, tuple[Commit, FragmentState]] = OrderedDict()
        self._files: OrderedDict[Hashable, bytes] = OrderedDict()
        self.pure = Pure(
            verify=lru_cache(NUM_SIGNATURES)(verify),
            parse_commit=lru_cache(NUM_COMMITS)(Commit.from_bytes),
            parse_envelope=lru_cache(NUM_SIGNATURES)(Envelope.from_bytes),
            parse_member=lru_cache(NUM_RECORDS)(MemberRecord.parse),
            apply_update=self._apply_update,
            pack_snapshot=self._pack_snapshot,
            parse_snapshot=self._parse_snapshot,
            pack_head=self._pack_head,
        )

    def _apply_update(
        self, state: FragmentState, commit: Commit, data: bytes, codec: str, outer: OuterConfig
    ) -> FragmentState:
        key = state.digest, commit.digest, data, codec, outer
        return _remembered(self._states, key, lambda: apply_update(state, commit, data, codec, outer))

    def _pack_snapshot(self, commit: Commit, state: FragmentState) -> tuple[int, bytes]:
        return _remembered(self._snapshots, _head(commit, state), lambda: pack_snapshot(commit, state))

    def _parse_snapshot(
        self, data: bytes, commit_bytes: int, fragment: Fragment, outer: OuterConfig
    ) -> tuple[Commit, FragmentState]:
        key = data, commit_bytes, fragment.index, outer
        return _remembered(self._parsed, key, lambda: parse_snapshot(data, commit_bytes, fragment, outer))

    def _pack_head(self, commit: Commit, state: FragmentState) -> bytes:
        return _remembered(self._files, _head(commit, state), lambda: pack_head(commit, state))


def _head(commit: Commit, state: FragmentState) -> tuple[Digest, bytes, Digest]:
    return commit.digest, commit.signature, state.digest


def _remembered(store: OrderedDict[Hashable, Value], key: Hashable, compute: Callable[[], Value]) -> Value:
    value = store.get(key)
    if value is None:
        value = store[key] = compute()
        if len(store) > NUM_STATES:
            store.popitem(last=False)
    return value
