"""The partial view: the newest record of each of some other peers, at most 128 of them.

Merging is a join: per peer the newest record stays, so the order in which records arrive, and how often, makes no
difference while there is room. A full view takes in few strangers at a time, and for each a random entry leaves,
farewells first: in a large swarm views stay random samples without being rewritten at every exchange, and whoever
floods a view can crowd it but cannot choose whom it forgets. Two peers that compare views send summaries, 21 bytes an
entry, and then only the records that the other lacks.
"""

import math
import random
import struct
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from p2ptrain.discovery.records import MemberRecord
from p2ptrain.ids import PeerId, public_key_of

MAX_MEMBERS: Final = 128  # a random sample of this size is connected whatever the swarm's size; 35 kB of records
SHUFFLE: Final = 1  # strangers that a full view takes in at once: a view of 128 is renewed in about ten minutes
TAG_BYTES: Final = 8  # the start of a public key names a peer in a summary

_LINE: Final = struct.Struct(f"<{TAG_BYTES}sdI?")  # tag, issued_at, sequence, gone
MAX_SUMMARY_BYTES: Final = (MAX_MEMBERS + 1) * _LINE.size  # with the writer's own line

AgeKey = tuple[float, int, bool]


@dataclass(frozen=True)
class Entry:
    """A record together with the signed bytes that prove it to others."""

    record: MemberRecord
    signed: bytes

    @cached_property
    def peer(self) -> PeerId:
        return self.record.peer

    @cached_property
    def tag(self) -> bytes:
        return public_key_of(self.record.peer)[:TAG_BYTES]

    @cached_property
    def line(self) -> bytes:
        """What a summary says of it."""
        return _LINE.pack(self.tag, *self.record.age_key)

    @cached_property
    def expires_at(self) -> float:
        return self.record.expires_at

    @property
    def rank(self) -> tuple[AgeKey, bytes]:
        """Newest wins; a peer that signs two records of one age is settled by their bytes, everywhere alike."""
        return self.record.age_key, self.signed


class PartialView:
    """What one peer knows about others.

    It never lists that peer itself; `own` is its record, which is only compared and passed on like the others.
    """

    def __init__(self, own: PeerId, capacity: int = MAX_MEMBERS) -> None:
        self.own: Entry | None = None
        self._own_peer = own
        self._capacity = capacity
        self._entries: dict[PeerId, Entry] = {}
        self._lines: dict[PeerId, bytes] = {}  # of a summary
        self._signed: set[bytes] = set()
        self._order: list[PeerId] | None = []  # ascending; None once somebody came or left
        self._next_expiry = math.inf  # nothing expires before
        self.num_changes = 0
        """Grows whenever somebody comes or leaves."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        """Yield the entries by ascending peer id."""
        if self._order is None:
            self._order = sorted(self._entries)
        return map(self._entries.__getitem__, self._order)

    def get(self, peer: PeerId) -> Entry | None:
        return self._entries.get(peer)

    def has(self, signed: bytes) -> bool:
        """Return whether a record is here, by the bytes that were signed."""
        return signed in self._signed

    def merge(self, entries: Iterable[Entry], chance: random.Random, keep: Container[PeerId] = ()) -> list[Entry]:
        """Take in what is newer than what is here; return the entries that were and that found room.

        Peers in `keep` (those we are connected with) are evicted last.
        """
        newer, room = [], max(0, self._capacity - len(self)) + SHUFFLE
        for entry in entries:
            known = self._entries.get(entry.peer)
            room -= known is None
            if entry.peer != self._own_peer and (room >= 0 if known is None else known.rank < entry.rank):
                self._put(entry, known)
                newer.append(entry)
        while len(self._entries) > self._capacity:
            self._evict(chance, keep)
        return [entry for entry in newer if self._entries.get(entry.peer) is entry]

    def _evict(self, chance: random.Random, keep: Container[PeerId]) -> None:
        others = [entry for entry in self if entry.peer not in keep]
        farewells = [entry for entry in others if entry.record.gone]
        self._drop(chance.choice(farewells or others or list(self)))

    def _put(self, entry: Entry, known: Entry | None) -> None:
        peer = entry.peer
        self._entries[peer], self._lines[peer] = entry, entry.line
        self._signed.add(entry.signed)
        self._next_expiry = min(self._next_expiry, entry.expires_at)
        if known is not None:
            self._signed.discard(known.signed)
        if known is None or known.record.gone != entry.record.gone:
            self._order = None
            self.num_changes += 1

    def _drop(self, entry: Entry) -> None:
        del self._entries[entry.peer], self._lines[entry.peer]
        self._signed.discard(entry.signed)
        self._order = None
        self.num_changes += 1

    def expire(self, now: float, keep: Container[PeerId] = ()) -> None:
        """Forget whose record has expired, except for peers in `keep`."""
        if now < self._next_expiry:
            return
        for entry in list(self._entries.values()):
            if entry.expires_at <= now and entry.peer not in keep:
                self._drop(entry)
        self._next_expiry = min((entry.expires_at for entry in self._entries.values()), default=math.inf)

    def summary(self, now: float) -> bytes:
        """Return what is here and has not expired, a few bytes an entry."""
        if now >= self._next_expiry:
            return b"".join(entry.line for entry in self._fresh(now))
        return b"".join([self.own.line if self.own is not None else b"", *self._lines.values()])

    @property
    def is_full(self) -> bool:
        return len(self) >= self._capacity

    def compare(self, summary: bytes, now: float, chance: random.Random) -> tuple[list[Entry], list[bytes]]:
        """Return the entries that the writer of `summary` lacks, and the tags of those that it has newer.

        Of what is unknown to a full view, on either side, only a few are named.
        """
        lines = _lines(summary)
        theirs_by_line, ours_by_line = dict.fromkeys(lines), dict(zip(self._lines.values(), self._lines, strict=True))
        theirs = _read(line for line in lines if line not in ours_by_line)  # most lines are the same, and nothing new
        differing = [self._entries[peer] for line, peer in ours_by_line.items() if line not in theirs_by_line]
        if self.own is not None:
            differing.insert(0, self.own)
            if self.own.line in theirs_by_line:
                del theirs[self.own.tag], differing[0]
        ours = {entry.tag: entry for entry in differing if entry.expires_at > now}
        unknown_there = [entry for tag, entry in ours.items() if tag not in theirs]
        unknown_here = [tag for tag in theirs if tag not in ours]
        if len(lines) >= MAX_MEMBERS:
            unknown_there = chance.sample(unknown_there, min(SHUFFLE, len(unknown_there)))
        if self.is_full:
            unknown_here = chance.sample(unknown_here, min(SHUFFLE, len(unknown_here)))
        known = [(tag, entry) for tag, entry in ours.items() if tag in theirs]
        newer_here = [entry for tag, entry in known if theirs[tag] < entry.record.age_key]
        newer_there = [tag for tag, entry in known if entry.record.age_key < theirs[tag]]
        return newer_here + unknown_there, newer_there + unknown_here

    def tagged(self, tags: Container[bytes], now: float) -> list[Entry]:
        """Return the entries whose tags are among `tags`."""
        return [entry for entry in self._fresh(now) if entry.tag in tags]

    def _fresh(self, now: float) -> Iterator[Entry]:
        known = self if self.own is None else (self.own, *self)
        return (entry for entry in known if entry.expires_at > now)


def _lines(summary: bytes) -> list[bytes]:
    size = _LINE.size
    if len(summary) > MAX_SUMMARY_BYTES or len(summary) % size:
        raise ValueError(f"a summary has whole lines of {size} bytes, at most {MAX_SUMMARY_BYTES}")
    return [summary[start : start + size] for start in range(0, len(summary), size)]


def _read(lines: Iterable[bytes]) -> dict[bytes, AgeKey]:
    return {tag: (issued_at, sequence, gone) for tag, issued_at, sequence, gone in map(_LINE.unpack, lines)}
