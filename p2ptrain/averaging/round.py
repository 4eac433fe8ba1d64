"""Deciding when a round opens and when it closes. Pure.

A round of a fragment belongs to one head and one leader.

    GATHERING   members register; when the interval since the head is over and there is a quorum, the leader calls them
                (who takes long from one step boundary to the next is called that much earlier)
    COLLECTING  each called member snapshots its work and sends it; the round closes when all have answered, or at the
                end of the grace window after a quorum (Decoupled DiLoCo, arXiv:2604.21428)
    CLOSED      the list is frozen; what comes later waits for the next round

A quorum is half as many members as the parent commit had contributors, so that a healthy majority makes the heavy
chain. A swarm that shrank does not wait for ever: after the lonely window the run's own K is enough. A member that is
lost or declines is not waited for.

A leader takes `max_members` and some spare ones, who take the place of those that are lost. When more register, those
have the seats that have waited for longest, by the ledger; the others are told at once that there is none, and wait for
the next head.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from p2ptrain.ids import PeerId


class Phase(Enum):
    GATHERING = "gathering"
    COLLECTING = "collecting"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTimes:
    """What a leader knows when a round opens. Durations in seconds."""

    interval: float  # H x the median step time: the least time between two rounds of a fragment
    lonely_window: float  # after it `least_quorum` is enough
    grace_window: float  # late members are waited for this long after a quorum contributed
    collect_timeout: float  # a called round without a quorum is given up after this


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before `until` (None: before the next event)."""

    until: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class Call:
    """Ask these members for their work; an early call leaves the others for later."""

    members: tuple[PeerId, ...]
    reason: str
    early: bool = False


@dataclass(frozen=True, slots=True)
class Close:
    """Merge what these members contributed."""

    members: tuple[PeerId, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Abort:
    """Give this attempt up; everybody's work stays pending."""

    reason: str


Decision = Wait | Call | Close | Abort

Rank = tuple[float, bytes]
"""Who has a seat first: the smaller. When a member was merged last (wall time; 0: never), then a lot."""

SPARE_SHARE = 0.25  # of the seats, for those who take the place of members that are lost


@dataclass(kw_only=True)
class Round:
    """One attempt of a leader at the next commit of a fragment."""

    opened_at: float  # when the leader adopted the head
    times: RoundTimes
    parent_contributors: int
    least_quorum: int
    max_members: int
    not_before: float = 0.0  # after an attempt that failed, the next one waits a little
    in_a_hurry: bool = False
    """Do not wait for the interval or for a majority: the run is being drained, and who has no work says so."""
    phase: Phase = Phase.GATHERING
    registered: dict[PeerId, float] = field(default_factory=dict)  # peer -> when it registered
    leads: dict[PeerId, float] = field(
        default_factory=dict
    )  # peer -> how much earlier than the others it is called (s)
    ranks: dict[PeerId, Rank] = field(default_factory=dict)  # of the registered
    called_at: float = 0.0
    outstanding: set[PeerId] = field(default_factory=set)
    arrived: dict[PeerId, float] = field(default_factory=dict)  # peer -> when its contribution was complete
    absent: dict[PeerId, str] = field(default_factory=dict)  # peer -> why it is not in this round

    def register(self, peer: PeerId, now: float, step_seconds: float = 0.0, rank: Rank = (0.0, b"")) -> bool:
        """A member is ready; it answers a call at its next step boundary, at most `step_seconds` later.

        Return whether it has a seat; it may still lose it to one of a better rank, who comes later.
        """
        if peer not in self.registered and len(self.registered) >= self.capacity:
            last = max(self._uncalled(self.registered), key=self._order, default=None)
            if last is None or self.ranks[last] <= rank:
                return False
            self._forget(last)
        self.registered.setdefault(peer, now)
        self.ranks[peer] = rank
        is_slow = step_seconds > self.times.grace_window
        self.leads[peer] = min(step_seconds, self.times.interval / 2) if is_slow else 0.0
        return True

    @property
    def capacity(self) -> int:
        """How many may be registered."""
        return self.max_members + int(SPARE_SHARE * self.max_members)

    def carry_on(self, failed: "Round") -> None:
        """Keep the members of an attempt that failed."""
        self.registered, self.leads, self.ranks = dict(failed.registered), dict(failed.leads), dict(failed.ranks)

    def _forget(self, peer: PeerId) -> None:
        for book in (self.registered, self.leads, self.ranks):
            book.pop(peer, None)

    def _order(self, peer: PeerId) -> tuple[Rank, float, PeerId]:
        return self.ranks[peer], self.registered[peer], peer

    def _uncalled(self, peers: Iterable[PeerId]) -> list[PeerId]:
        return [peer for peer in peers if not (peer in self.outstanding or peer in self.arrived or peer in self.absent)]

    def arrive(self, peer: PeerId, now: float) -> None:
        """A called member's contribution is complete and valid."""
        if peer in self.outstanding:
            self.outstanding.discard(peer)
            self.arrived[peer] = now

    def leave(self, peer: PeerId, reason: str) -> None:
        """A member is lost. What it contributed before stays."""
        self._forget(peer)
        self.decline(peer, reason)

    def decline(self, peer: PeerId, reason: str) -> None:
        """A member has nothing for this round, or nothing valid; it stays registered for the next attempt."""
        if peer in self.outstanding:
            self.outstanding.discard(peer)
            self.absent[peer] = reason

    def accepts(self, peer: PeerId) -> bool:
        """Whether this member was called and has not answered yet."""
        return self.phase is not Phase.CLOSED and peer in self.outstanding

    def quorum(self, now: float) -> int:
        """Return how many members a round needs at this time."""
        if self.in_a_hurry or now >= self.opened_at + self.times.lonely_window:
            return self.least_quorum
        return max(self.least_quorum, -(-self.parent_contributors // 2))

    def decide(self, now: float) -> Decision:
        """Return what to do now, with a sentence that says why."""
        if self.phase is Phase.GATHERING:
            return self._decide_to_call(now)
        if self.phase is Phase.COLLECTING:
            return self._decide_to_close(now)
        return Wait(None, "the round is closed")

    def call(self, decision: Call, now: float) -> None:
        """The members of a decision have been called; the first call that is not an early one opens the collection."""
        self.outstanding |= set(decision.members)
        if not decision.early:
            self.phase, self.called_at = Phase.COLLECTING, now

    def close(self) -> None:
        self.phase = Phase.CLOSED

    def _decide_to_call(self, now: float) -> Decision:
        due_at = self.not_before if self.in_a_hurry else max(self.opened_at + self.times.interval, self.not_before)
        num_registered, quorum = len(self.registered), self.quorum(now)
        members = sorted(self.registered, key=self._order)[: self.max_members]
        uncalled = self._uncalled(members)
        if now < due_at:
            slow = tuple(sorted(peer for peer in uncalled if self.leads[peer] and now >= due_at - self.leads[peer]))
            if slow and num_registered >= quorum:
                return Call(slow, f"{len(slow)} members need long to answer", early=True)
            look_at = min(
                [due_at, *(due_at - self.leads[peer] for peer in uncalled if now < due_at - self.leads[peer])]
            )
            return Wait(look_at, f"not due for {due_at - now:.2f} s")
        if num_registered < quorum:
            lonely_at = self.opened_at + self.times.lonely_window
            return Wait(
                lonely_at if now < lonely_at else None, f"{num_registered} of {quorum} members needed for a quorum"
            )
        return Call(tuple(sorted(uncalled)), f"{len(members)} members are ready")

    def _decide_to_close(self, now: float) -> Decision:
        quorum = self.quorum(now)
        members = tuple(sorted(self.arrived))
        if self.absent and now < self.called_at + self.times.grace_window:
            missing = self.max_members - len(self.outstanding) - len(members)
            spare = sorted(self._uncalled(self.registered), key=self._order)[:missing]
            if spare:
                return Call(tuple(spare), f"{len(spare)} take the place of others", early=True)
        if not self.outstanding:
            if not members:
                return Abort("no member had work to contribute")
            if len(members) < quorum:
                return Abort(
                    f"{len(members)} of {quorum} contributions needed for a quorum, and nobody is left to wait for"
                )
            return Close(members, f"all {len(members)} members contributed")
        if len(members) >= quorum:
            grace_window = self.times.collect_timeout / 4 if self.in_a_hurry else self.times.grace_window
            grace_ends_at = max(self.called_at, sorted(self.arrived.values())[quorum - 1]) + grace_window
            if now >= grace_ends_at:
                return Close(
                    members, f"grace window ended with {len(members)} of {len(members) + len(self.outstanding)} members"
                )
            return Wait(grace_ends_at, f"quorum reached, waiting for {len(self.outstanding)} late members")
        gives_up_at = self.called_at + self.times.collect_timeout
        if now >= gives_up_at:
            return Abort(f"{len(members)} of {quorum} contributions in {self.times.collect_timeout:.1f} s")
        return Wait(gives_up_at, f"{len(members)} of {quorum} contributions needed for a quorum")


def grace_window(lateness: Sequence[float], *, step_seconds: float, longest: float) -> float:
    """Return how long to wait for late members after a quorum (s), at most `longest`: everybody's return waits for it.

    At least the 90th percentile of how late members were lately (seconds from the call to the complete contribution,
    of those too who came too late), and never less than a step and a half: a snapshot waits for a step boundary.
    """
    ordered = sorted(lateness)
    usual = ordered[int(0.9 * (len(ordered) - 1))] if ordered else longest
    return min(longest, max(usual, 1.5 * step_seconds))
