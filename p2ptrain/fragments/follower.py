"""Following the heaviest chain of one fragment.

Peers announce heads. A follower takes the heaviest one that beats its own, gets the commits between, checks each, gets
the bytes (the missing updates, or a snapshot where that is less), applies them, compares the state digest, and only then
moves, whole. A head whose bytes nobody serves counts as absent: it is dropped, and heard of again when somebody has it.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from p2ptrain.config import RunConfig
from p2ptrain.errors import NetworkError, Refused, RemoteProtocolError, StateSyncError
from p2ptrain.events import Events
from p2ptrain.fragments.archive import MAX_COMMITS, Archive
from p2ptrain.fragments.chain import ChainError, Commit, Ledger, Verify, check_commit
from p2ptrain.fragments.donor import Donors
from p2ptrain.fragments.layout import Fragment
from p2ptrain.fragments.state import FragmentState
from p2ptrain.ids import Digest, PeerId, digest
from p2ptrain.runtime import Runtime
from p2ptrain.wire.codecs import CODECS, CodecError

MAX_REPLAY = 2  # with momentum a snapshot is two updates long, so more than two missing ones cost more than it does
MAX_CLOCK_SKEW = 600.0  # seconds; a commit from further in the future would lift the cap on its work
MAX_CANDIDATES = 64  # heads heard of and not yet tried; the lightest are forgotten first

PeerErrors = (NetworkError, Refused, RemoteProtocolError)


@dataclass
class _Candidate:
    """A head that somebody claims to have."""

    digest: Digest
    total_work: int
    sources: list[PeerId] = field(default_factory=list)
    commit: Commit | None = None

    @property
    def weight(self) -> tuple[int, int]:
        return self.total_work, -int.from_bytes(self.digest, "big")


@dataclass(frozen=True, slots=True)
class Adopted:
    """A move of the head: what learner, rounds and monitor hear of."""

    commit: Commit
    state: FragmentState
    depth: int  # commits that were given up (0: the chain only grew)
    source: PeerId | None


class Follower:
    """Keeps one fragment's archive on the heaviest chain. `run` is its task."""

    def __init__(
        self,
        *,
        fragment: Fragment,
        config: RunConfig,
        archive: Archive,
        donors: Donors,
        runtime: Runtime,
        events: Events,
        verify: Verify,
    ) -> None:
        self.fragment, self.archive = fragment, archive
        self._config, self._donors, self._runtime, self._events, self._verify = config, donors, runtime, events, verify
        self._candidates: dict[Digest, _Candidate] = {}
        self._wake = asyncio.Event()
        self._listeners: list[Callable[[Adopted], None]] = []

    def on_adopted(self, listener: Callable[[Adopted], None]) -> None:
        self._listeners.append(listener)

    def offer(self, head_digest: Digest, work: int, source: PeerId, commit: Commit | None = None) -> None:
        """Note that a peer has this head; it is followed if it beats ours."""
        candidate = self._candidates.get(head_digest) or _Candidate(head_digest, work)
        if candidate.weight <= self.archive.head.weight:
            return
        self._candidates[head_digest] = candidate
        if source not in candidate.sources:
            candidate.sources.append(source)
        candidate.commit = candidate.commit or commit
        if len(self._candidates) > MAX_CANDIDATES:
            del self._candidates[min(self._candidates.values(), key=lambda one: one.weight).digest]
        self._wake.set()

    def adopt(self, commit: Commit, state: FragmentState, *, source: PeerId | None = None) -> bool:
        """Make a checked commit and its state the head if it is heavier than ours; return whether it is now."""
        old = self.archive.head
        if commit.weight <= old.weight:
            return False
        self._report_forks(commit)
        self.archive.remember(commit, state.ledger)
        depth = self._depth_of_fork(commit) or 0
        self.archive.adopt(commit, state)
        if depth:
            self._events.emit(
                "reorg",
                fragment=self.fragment.index,
                depth=depth,
                **{"from": old.digest.hex(), "to": commit.digest.hex()},
            )
        for listener in self._listeners:
            listener(Adopted(commit, state, depth, source))
        return True

    async def run(self) -> None:
        """Follow heavier heads as they are heard of, for ever."""
        while True:
            self._wake.clear()
            heavier = [one for one in self._candidates.values() if one.weight > self.archive.head.weight]
            self._candidates = {one.digest: one for one in heavier}
            if not heavier:
                await self._wake.wait()
                continue
            candidate = max(heavier, key=lambda one: one.weight)
            try:
                await self._move_to(candidate)
            except (*PeerErrors, StateSyncError, ChainError) as error:
                self._events.emit(
                    "head-dropped", fragment=self.fragment.index, commit=candidate.digest.hex(), reason=str(error)
                )
            self._candidates.pop(candidate.digest, None)

    async def _move_to(self, candidate: _Candidate) -> None:
        source = candidate.sources[0] if candidate.sources else None
        path = await self._path_to(candidate)
        if not path:
            await self._resync(candidate)
            return
        ancestor = self.archive.commit(path[0].parent)
        assert ancestor is not None  # _path_to ends at a known commit
        depth = self._depth_of_fork(ancestor)
        if depth is None or depth > self._config.limits.max_reorg:
            raise ChainError(
                f"deep reorganisation refused: the fork began {'out of sight' if depth is None else f'{depth} commits ago'}"
            )
        ledgers = await self._runtime.compute.run(self._check_path, path, ancestor)
        for commit, ledger in zip(path, ledgers, strict=True):
            self._report_forks(commit)
            self.archive.remember(commit, ledger)
        if ancestor.digest == self.archive.head.digest and len(path) <= MAX_REPLAY:
            try:
                await self._replay(path, candidate)
                return
            except (*PeerErrors, StateSyncError) as error:
                self._events.emit("replay-failed", fragment=self.fragment.index, reason=str(error))
        commit, state = await self._snapshot(candidate, path[-1])
        self.adopt(commit, state, source=source)

    async def _path_to(self, candidate: _Candidate) -> list[Commit]:
        """Return the commits from a known one (exclusive) to the candidate, oldest first; empty when we are too far behind."""
        if candidate.commit is not None and self.archive.commit(candidate.commit.parent) is not None:
            return [candidate.commit]
        known = [commit.digest for commit in self.archive.chain(self.archive.head.digest, MAX_COMMITS)]
        path = await self._donors.commits(self.fragment.index, candidate.digest, _spread(known), candidate.sources)
        held = next(
            (index for index in range(len(path), 0, -1) if self.archive.commit(path[index - 1].parent) is not None), 0
        )
        return path[held - 1 :] if held else []

    def _check_path(self, path: Sequence[Commit], ancestor: Commit) -> list[Ledger]:
        """Check each commit on the one before it (on a worker thread: signatures); return the ledger after each."""
        ledger = self.archive.ledger(ancestor.digest)
        if ledger is None:
            raise ChainError("the fork began before the ledgers that are kept")
        ledgers: list[Ledger] = []
        parent = ancestor
        for commit in path:
            check_commit(
                commit, parent, ledger, self._config.limits, num_pieces=len(self.fragment.pieces),
                max_staleness=self._config.rounds.max_staleness, verify=self._verify,
            )  # fmt: skip
            self._check_time(commit)
            parent, ledger = commit, ledger.after(commit)
            ledgers.append(ledger)
        return ledgers

    def _check_time(self, commit: Commit) -> None:
        if commit.committed_at > self._runtime.clock.wall() + MAX_CLOCK_SKEW:
            raise ChainError("the commit's time is in the future")

    async def _replay(self, path: Sequence[Commit], candidate: _Candidate) -> None:
        """Apply the missing updates to our state, one commit at a time."""
        for commit in path:
            parent_state = self.archive.state
            if self.archive.head.digest != commit.parent:
                raise StateSyncError("the head moved while its successor was fetched")
            holders = [*candidate.sources, commit.leader, *commit.contributors]
            data = self.archive.update(commit.update)
            if data is None:
                data = await self._donors.update(self.fragment, commit, self._update_bytes, holders)
            state = await self._runtime.compute.run(self.apply, parent_state, commit, data)
            if state.digest != commit.state:
                self._events.emit(
                    "state-mismatch", fragment=self.fragment.index, commit=commit.digest.hex(), leader=commit.leader
                )
                raise StateSyncError("the update does not lead to the state that its commit names")
            self.archive.remember_update(commit.update, data)
            self.adopt(commit, state, source=candidate.sources[0] if candidate.sources else None)

    @property
    def _update_bytes(self) -> int:
        return CODECS[self._config.codec.down].num_bytes(self.fragment.num_elements)

    def apply(self, state: FragmentState, commit: Commit, data: bytes | bytearray) -> FragmentState:
        """Return the state after a commit from the update's bytes; runs on a worker thread."""
        if digest("update", data) != commit.update:
            raise StateSyncError("the update's bytes do not match their digest")
        try:
            update = CODECS[self._config.codec.down].decode(data, self.fragment.num_elements)
        except CodecError as error:
            raise StateSyncError(f"the update cannot be decoded: {error}") from None
        after = state.after(commit, update, self._config.outer)
        _ = after.digest  # computed here, on the worker thread, and cached
        return after

    async def _snapshot(self, candidate: _Candidate, commit: Commit) -> tuple[Commit, FragmentState]:
        holders = [*candidate.sources, commit.leader, *commit.contributors]
        found, state = await self._donors.snapshot(self.fragment, self._config.outer, holders, wanted=commit.digest)
        return found, state

    async def _resync(self, candidate: _Candidate) -> None:
        """Start again from a donor's snapshot, like a newcomer: allowed only when we are far behind, never across a fork."""
        commit, state = await self._donors.snapshot(self.fragment, self._config.outer, candidate.sources)
        missing = commit.version - self.archive.head.version
        if missing <= self._config.limits.max_reorg:
            raise ChainError("the two chains have no common commit; they are never merged")
        self._check_time(commit)
        if not self._verify(commit.leader, Commit.DOMAIN, commit.payload, commit.signature):
            raise ChainError("the commit's signature is not its leader's")
        self._events.emit("resync", fragment=self.fragment.index, missing=missing)
        self.adopt(commit, state, source=candidate.sources[0] if candidate.sources else None)

    def _report_forks(self, commit: Commit) -> None:
        if self.archive.commit(commit.digest) is None:
            for sibling in self.archive.siblings(commit):
                self._events.emit(
                    "fork",
                    fragment=self.fragment.index,
                    version=commit.version,
                    a=sibling.digest.hex(),
                    b=commit.digest.hex(),
                )

    def _depth_of_fork(self, commit: Commit) -> int | None:
        """Return how many commits of our chain a known commit gives up (0: none); None when they have no known ancestor."""
        depths = (
            self.archive.depth_from_head(ancestor.digest) for ancestor in self.archive.chain(commit.digest, MAX_COMMITS)
        )
        return next((depth for depth in depths if depth is not None), None)


def _spread(digests: Sequence[Digest]) -> list[Digest]:
    """Return the newest 16, then ever sparser ones: enough for the other side to find a common commit."""
    indices = [*range(16), *(16 + 2**power for power in range(20))]
    return [digests[index] for index in indices if index < len(digests)]
