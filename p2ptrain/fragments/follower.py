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
from p2ptrain.fragments.chain import MAX_WORK, ChainError, Commit, Ledger, check_commit
from p2ptrain.fragments.donor import Donors
from p2ptrain.fragments.history import ledgers_before
from p2ptrain.fragments.layout import Fragment
from p2ptrain.fragments.pure import Pure
from p2ptrain.fragments.state import FragmentState
from p2ptrain.ids import Digest, PeerId
from p2ptrain.runtime import Runtime
from p2ptrain.tasks import describe
from p2ptrain.wire.codecs import CODECS

MAX_REPLAY = 2  # with momentum a snapshot is two updates long, so more than two missing ones cost more than it does
MAX_CLOCK_SKEW = 600.0  # seconds; a commit from further in the future would lift the cap on its work
MAX_CANDIDATES_PER_PEER = 4  # heads that one peer named and that were not tried yet; the oldest are forgotten
RETRY_WINDOW = 1.0  # seconds for which a head whose bytes nobody gave is not tried again
REFUSED_WINDOW = 30.0  # the same for a head that breaks a rule
RESYNC_SHARE = 0.67  # of the peers asked: more than one half of a swarm that was split in two can muster

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
        pure: Pure,
    ) -> None:
        self.fragment, self.archive = fragment, archive
        self._config, self._donors, self._runtime, self._events, self._pure = config, donors, runtime, events, pure
        self._candidates: dict[Digest, _Candidate] = {}
        self._refused_until: dict[Digest, float] = {}
        self._num_failures: dict[PeerId, int] = {}  # of heads that each peer named, since it was last right
        self._wake = asyncio.Event()
        self._listeners: list[Callable[[Adopted], None]] = []

    def on_adopted(self, listener: Callable[[Adopted], None]) -> None:
        self._listeners.append(listener)

    def offer(self, head_digest: Digest, work: int, source: PeerId, commit: Commit | None = None) -> None:
        """Note that a peer has this head; it is followed if it beats ours (a head that failed lately is left alone)."""
        candidate = self._candidates.get(head_digest) or _Candidate(head_digest, work)
        if candidate.weight <= self.archive.head.weight or work > MAX_WORK or self._is_refused(head_digest):
            return
        self._candidates[head_digest] = candidate
        if source not in candidate.sources:
            candidate.sources.append(source)
        candidate.commit = candidate.commit or commit
        of_source = [one for one in self._candidates.values() if one.sources[0] == source]
        if len(of_source) > MAX_CANDIDATES_PER_PEER:
            del self._candidates[of_source[0].digest]
        self._wake.set()

    def lacks(self, head_digest: Digest, work: int) -> bool:
        """Return whether a head would be followed whose commit is not here yet."""
        if head_digest == self.archive.head.digest or work < self.archive.head.total_work:
            return False
        candidate = self._candidates.get(head_digest)
        return (candidate is None or candidate.commit is None) and not self._is_refused(head_digest)

    def _is_refused(self, head_digest: Digest) -> bool:
        return self._refused_until.get(head_digest, 0.0) > self._runtime.clock.monotonic()

    def _refuse(self, candidate: _Candidate, window: float) -> None:
        """Leave a head alone for a while; the peers that named it wait behind those that have been right."""
        now = self._runtime.clock.monotonic()
        self._refused_until = {head: until for head, until in self._refused_until.items() if until > now}
        self._refused_until[candidate.digest] = now + window
        for source in candidate.sources:
            self._num_failures[source] = self._num_failures.get(source, 0) + 1

    def _most_promising(self, candidates: Sequence[_Candidate]) -> _Candidate:
        """Return whom to follow: a head whose commit fits on what we have, then who failed least, then the heaviest."""

        def promise(one: _Candidate) -> tuple[bool, int, tuple[int, int]]:
            fits = one.commit is not None and self.archive.commit(one.commit.parent) is not None
            return fits, -min(self._num_failures.get(source, 0) for source in one.sources), one.weight

        return max(candidates, key=promise)

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
            candidate = self._most_promising(heavier)
            try:
                await self._move_to(candidate)
                for source in candidate.sources:
                    self._num_failures.pop(source, None)
            except (*PeerErrors, StateSyncError) as error:
                self._drop(candidate, str(error), RETRY_WINDOW)
            except ChainError as error:
                self._drop(candidate, str(error), REFUSED_WINDOW)
            except (ValueError, ArithmeticError, LookupError) as error:
                # Bytes that no check foresaw end this head, not this follower.
                self._drop(candidate, describe(error), REFUSED_WINDOW)
            self._candidates.pop(candidate.digest, None)

    def _drop(self, candidate: _Candidate, reason: str, window: float) -> None:
        self._refuse(candidate, window)
        self._events.emit("head-dropped", fragment=self.fragment.index, commit=candidate.digest.hex(), reason=reason)

    async def _move_to(self, candidate: _Candidate) -> None:
        path = await self._path_to(candidate)
        if not path:
            await self._learn_history(candidate)
            path = await self._path_to(candidate, fully=True)
        if not path:
            await self._resync(candidate, "no commit of that chain is known here")
            return
        ancestor = self.archive.commit(path[0].parent)
        assert ancestor is not None  # _path_to ends at a known commit
        depth = self._depth_of_fork(ancestor)
        if depth is None or depth > self._config.limits.max_reorg:
            since = "out of sight" if depth is None else f"{depth} commits ago"
            await self._resync(candidate, f"deep reorganisation refused: the fork began {since}")
            return
        ledgers = await self._runtime.compute.run(self._check_path, path, ancestor)
        if ancestor.digest == self.archive.head.digest and len(path) <= MAX_REPLAY:
            await self._replay(path, candidate)
            return
        commit, state = await self._snapshot(candidate, path[-1])
        ledgers.append(ledgers[-1].after(path[-1]))
        if state.ledger != ledgers[-1]:
            raise ChainError("the snapshot's ledger is not the one that its commits lead to")
        for known, ledger in zip(path, ledgers[1:], strict=True):
            self._report_forks(known)
            self.archive.remember(known, ledger)
        self.adopt(commit, state, source=candidate.sources[0])

    async def _path_to(self, candidate: _Candidate, *, fully: bool = False) -> list[Commit]:
        """Return the commits from a known one (exclusive) to the candidate, oldest first; empty when we are too far behind.

        A commit counts as known when it is clear where its chain and ours part. `fully`: ask for all of them.
        """
        if not fully and candidate.commit is not None and self._is_connected(candidate.commit.parent):
            return [candidate.commit]
        known = [commit.digest for commit in self.archive.chain(self.archive.head.digest, MAX_COMMITS)]
        path = await self._donors.commits(self.fragment.index, candidate.digest, _spread(known), candidate.sources)
        held = next((index for index in range(len(path), 0, -1) if self._is_connected(path[index - 1].parent)), 0)
        return path[held - 1 :] if held else []

    def _is_connected(self, known: Digest) -> bool:
        """Return whether a commit is held here and has an ancestor on our chain that is held, too."""
        commit = self.archive.commit(known)
        return commit is not None and self._depth_of_fork(commit) is not None

    async def _learn_history(self, candidate: _Candidate) -> bool:
        """Learn what came before the commit that we began with, in case that a fork is older; return whether we did."""
        chain, deepest = self.archive.chain(self.archive.head.digest, MAX_COMMITS), self._config.limits.max_reorg
        first, ledger = chain[-1], self.archive.ledger(chain[-1].digest)
        if first.version == 0 or ledger is None or len(chain) > deepest:
            return False
        try:
            commits = await self._donors.commits(
                self.fragment.index, first.digest, [], candidate.sources, most=min(1024, 2 * deepest)
            )
        except StateSyncError:
            return False
        before = await self._runtime.compute.run(ledgers_before, ledger, commits)
        for commit, ledger_after in before[: deepest + 1 - len(chain)][::-1]:
            self.archive.remember(commit, ledger_after)
        return bool(before)

    def _check_path(self, path: Sequence[Commit], ancestor: Commit) -> list[Ledger]:
        """Check each commit on the one before it (on a worker thread: signatures); return the ledger before each."""
        ledger = self.archive.ledger(ancestor.digest)
        if ledger is None:
            raise ChainError("the fork began before the ledgers that are kept")
        ledgers: list[Ledger] = []
        parent = ancestor
        for commit in path:
            if ledgers:
                ledger = ledgers[-1].after(parent)
            ledgers.append(ledger)
            check_commit(
                commit, parent, ledger, self._config.limits, num_pieces=len(self.fragment.pieces),
                max_staleness=self._config.rounds.max_staleness, verify=self._pure.verify,
            )  # fmt: skip
            self._check_time(commit)
            parent = commit
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

    async def fetch_update(self, commit: Commit, holders: Sequence[PeerId]) -> bytes:
        """Return the update of a commit from those who have it at hand, for somebody else; StateSyncError."""
        return await self._donors.update(self.fragment, commit, self._update_bytes, holders, fetch=False)

    @property
    def _update_bytes(self) -> int:
        return CODECS[self._config.codec.down].num_bytes(self.fragment.num_elements)

    def apply(self, state: FragmentState, commit: Commit, data: bytes) -> FragmentState:
        """Return the state after a commit from the update's bytes; runs on a worker thread."""
        return self._pure.apply_update(state, commit, data, self._config.codec.down, self._config.outer)

    async def _snapshot(self, candidate: _Candidate, commit: Commit) -> tuple[Commit, FragmentState]:
        holders = [*candidate.sources, commit.leader, *commit.contributors]
        found, state = await self._donors.snapshot(self.fragment, self._config.outer, holders, wanted=commit.digest)
        return found, state

    async def _resync(self, candidate: _Candidate, reason: str) -> None:
        """Start again from a donor's snapshot, like a newcomer, if nearly everybody we know has gone on without us.

        Our own work since then is given up. Otherwise it is a split of the swarm, and refused: nobody can tell who is
        right, so people must.
        """
        lighter, heavier = await self._donors.count_heavier(self.fragment.index, self.archive.head.total_work)
        if heavier < RESYNC_SHARE * (lighter + heavier) or not heavier:
            raise ChainError(f"{reason}; {heavier} of {lighter + heavier} peers follow a heavier chain than ours")
        commit, state = await self._donors.snapshot(self.fragment, self._config.outer, candidate.sources)
        self._check_time(commit)
        missing = commit.version - self.archive.head.version
        self._events.emit("resync", fragment=self.fragment.index, missing=missing, reason=reason)
        self.adopt(commit, state, source=candidate.sources[0])

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
