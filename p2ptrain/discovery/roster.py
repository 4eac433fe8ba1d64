"""Who takes part, as far as this peer knows: the partial view, and who of it is alive.

A peer is alive while it is connected, or while its record is fresh and we have no reason to doubt it: when its
connection broke and a new dial failed it is down, at once, until it connects again or a newer record of it arrives.
A farewell ends a life whatever the connection says. No I/O happens here.
"""

from collections.abc import Iterable

from p2ptrain.discovery.records import MemberRecord, ParseMember, Verify
from p2ptrain.discovery.view import AgeKey, Entry, PartialView
from p2ptrain.ids import PeerId, RunId
from p2ptrain.net.identity import verify
from p2ptrain.runtime import Runtime


class Roster:
    """The view, the connections, and the doubts of one peer."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        own: PeerId,
        run_id: RunId,
        verify: Verify = verify,
        parse: ParseMember = MemberRecord.parse,
    ) -> None:
        self._runtime, self._run_id, self._verify, self._parse = runtime, run_id, verify, parse
        self.view = PartialView(own)
        self.connected: set[PeerId] = set()
        self.live: dict[PeerId, MemberRecord] = {}  # by ascending peer id
        self.num_refused = 0  # records that were not believed: counted, never logged one by one
        self._down: dict[PeerId, AgeKey] = {}  # the age of the record that is doubted
        self._seen: tuple[int, int, set[PeerId]] | None = None  # of what `live` was computed
        self._num_doubts = 0

    def check(self, signed: Iterable[bytes]) -> list[Entry]:
        """Return the records that are not known and can be believed; what cannot is dropped and counted."""
        now = self._runtime.clock.wall()
        entries = []
        for data in signed:
            if self.view.has(data):
                continue
            try:
                record = MemberRecord.from_bytes(
                    data, run_id=self._run_id, now=now, verify=self._verify, parse=self._parse
                )
            except ValueError:
                self.num_refused += 1
            else:
                entries.append(Entry(record, data))
        return entries

    def merge(self, entries: Iterable[Entry]) -> list[Entry]:
        """Take checked records into the view; return the ones that are news."""
        news = self.view.merge(entries, self._runtime.entropy.random, keep=self.connected)
        for entry in news:
            if entry.peer in self.live:  # what `refresh` need not find out
                self.live[entry.peer] = entry.record
            if entry.peer in self._down:
                self._num_doubts += 1
        return news

    def doubt(self, peer: PeerId) -> None:
        """Count a peer as down unless it is connected."""
        entry = self.view.get(peer)
        if entry is not None and peer not in self.connected:
            self._down[peer] = entry.record.age_key
            self._num_doubts += 1

    def forgive(self) -> None:
        """Drop every doubt: it was our own connection that failed."""
        self._down.clear()
        self._num_doubts += 1

    def refresh(self) -> tuple[list[PeerId], list[PeerId]]:
        """Recompute who is alive; return who came and who left since the last time."""
        self.view.expire(self._runtime.clock.wall(), keep=self.connected)
        seen = self.view.num_changes, self._num_doubts, self.connected
        if seen == self._seen:
            return [], []
        self._seen = seen
        self._down = {peer: age for peer, age in self._down.items() if self.view.get(peer) is not None}
        doubts = self._down
        before, self.live = (
            self.live,
            {
                entry.peer: entry.record
                for entry in self.view
                if not entry.record.gone and (not doubts or self._is_beyond_doubt(entry))
            },
        )
        if self.live.keys() == before.keys():
            return [], []
        return [peer for peer in self.live if peer not in before], [peer for peer in before if peer not in self.live]

    def _is_beyond_doubt(self, entry: Entry) -> bool:
        doubted = self._down.get(entry.peer)
        return entry.peer in self.connected or doubted is None or doubted < entry.record.age_key
