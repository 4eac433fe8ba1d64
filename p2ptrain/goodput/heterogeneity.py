"""Learners of different speed: what a merge waits for, and what that costs.

The paper's schedule: one fragment is due at each step; a merge waits for K learners, then for a grace window, and is to
return within τ steps. Three rules differ only in that:

    K = M               every learner is waited for
    K = 1, no grace     the first report closes the round
    K = 1, grace        ξ_grace = clamp(γ (τ ξ_step - (ξ_quorum + ξ_sync)), 0, longest): the idle room before anybody would notice

What happens here. A learner has a clock that counts the schedule's steps. It moves on by one at each of its own step
boundaries; where the others went on without it, it moves to the round that is open. Reaching t it reports for round t,
unless that round is closed. Before it goes further than τ beyond the last merge it waits for the next: with a quorum of
one that hardly ever comes about, as the measured goodput shows. Goodput is the share of the learners' time in steps.

The quality of a model cannot be had from such a simulation. How many contributions a round has stands in for it, beside
the scores that the paper measured: a rule under which few learners are heard is the one whose model got worse.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from p2ptrain.goodput import published
from p2ptrain.goodput.timeline import Timeline, chance

NUM_ROUNDS: Final = 5_000
WARM_UP_ROUNDS: Final = 100
AVERAGE_WEIGHT: Final = 0.125  # of a new value in the moving averages of times, as open implementations have it


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a round waits for."""

    name: str
    quorum: int
    has_grace: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedLearners:
    """Two generations of learners. Times in steps of the faster one."""

    num_learners: int = published.NUM_MIXED_LEARNERS
    num_slow: int = 1
    """Fitted: the paper says that there were two generations, not how many of each. One slow learner gives its 84 % for
    K = M; with four of them it would be 91 %."""
    slow_step: float = 1.0 / (1.0 - published.SLOWEST_BEHIND)
    """Behind by 18 %: in the time of 100 steps it makes 82."""
    jitter: float = published.JITTER
    """A step takes up to so much longer or shorter, evenly distributed. Published size, chosen distribution."""
    sync_time: float = 0.5
    """ξ_sync: from the end of a round's wait until every learner has the merge. Chosen."""
    safety: float = 0.9
    """γ, the share of the idle room that a grace window may use. Chosen; open implementations have up to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyResult:
    """What a policy came to. Shares from 0 to 1."""

    name: str
    goodput: float
    contributions: float
    """Mean number of learners in a round."""
    fast_share: float
    """Share of the rounds that a learner of the faster generation was in."""
    slow_share: float


def policies(num_learners: int = published.NUM_MIXED_LEARNERS) -> list[Policy]:
    """Return the three rules of the paper, under its names."""
    all_of_them, no_grace, grace = published.POLICIES
    return [
        Policy(name=all_of_them, quorum=num_learners, has_grace=False),
        Policy(name=no_grace, quorum=1, has_grace=False),
        Policy(name=grace, quorum=1, has_grace=True),
    ]


@dataclass(kw_only=True)
class _Learner:
    number: int
    step_time: float
    clock: int = 0  # steps of the schedule that it has made or adopted
    waits_since: float | None = None
    waited: float = 0.0


@dataclass(kw_only=True)
class _Round:
    number: int
    began_at: float
    members: list[int] = field(default_factory=list)


class Schedule:
    """The learners and their syncer, on a timeline."""

    def __init__(self, policy: Policy, mix: MixedLearners, chance: random.Random) -> None:
        self._policy, self._mix, self._chance = policy, mix, chance
        self._timeline = Timeline()
        self._learners = [
            _Learner(number=number, step_time=mix.slow_step if number < mix.num_slow else 1.0)
            for number in range(mix.num_learners)
        ]
        self._open: dict[int, _Round] = {}
        self._num_closed = 0
        self._merged = 0
        self._mean_step, self._mean_quorum = 1.0, 0.0
        self._began_at = 0.0
        self.closed: list[_Round] = []

    def run(self) -> PolicyResult:
        """Run the rounds; what the first ones did is not counted."""
        for learner in self._learners:
            self._step(learner)
        self._run_rounds(WARM_UP_ROUNDS)
        for learner in self._learners:
            learner.waited = 0.0
            learner.waits_since = None if learner.waits_since is None else self._timeline.now
        began_at = self._timeline.now
        self.closed.clear()
        self._run_rounds(WARM_UP_ROUNDS + NUM_ROUNDS)
        seconds = self._timeline.now - began_at
        waited = sum(learner.waited for learner in self._learners)
        waited += sum(self._timeline.now - one.waits_since for one in self._learners if one.waits_since is not None)
        return PolicyResult(
            name=self._policy.name,
            goodput=1.0 - waited / (seconds * len(self._learners)),
            contributions=sum(len(one.members) for one in self.closed) / len(self.closed),
            fast_share=self._share(lambda number: number >= self._mix.num_slow),
            slow_share=self._share(lambda number: number < self._mix.num_slow),
        )

    def _run_rounds(self, number: int) -> None:
        while self._num_closed < number:
            self._timeline.run(self._timeline.now + 1.0)

    def _share(self, of: Callable[[int], bool]) -> float:
        num_such = sum(of(learner.number) for learner in self._learners)
        heard = sum(of(number) for one in self.closed for number in one.members)
        return heard / (num_such * len(self.closed)) if num_such else 0.0

    # Learners

    def _step(self, learner: _Learner) -> None:
        seconds = learner.step_time * (1.0 + self._mix.jitter * self._chance.uniform(-1.0, 1.0))
        self._timeline.call_later(seconds, lambda: self._stepped(learner, seconds))

    def _stepped(self, learner: _Learner, seconds: float) -> None:
        self._mean_step += AVERAGE_WEIGHT * (seconds - self._mean_step)
        learner.clock = max(learner.clock + 1, self._current())
        self._report(learner)
        if learner.clock - self._merged > published.OVERLAP_STEPS:
            learner.waits_since = self._timeline.now
        else:
            self._step(learner)

    # The syncer

    def _report(self, learner: _Learner) -> None:
        number = learner.clock
        if number <= self._num_closed:
            return  # too late
        one = self._open.setdefault(number, _Round(number=number, began_at=self._timeline.now))
        one.members.append(learner.number)
        if len(one.members) == self._policy.quorum:
            waited = self._timeline.now - one.began_at
            self._mean_quorum += AVERAGE_WEIGHT * (waited - self._mean_quorum)
            self._timeline.call_later(self._grace(), lambda: self._close(number))

    def _current(self) -> int:
        """Return the number of the round that is open, or of the last one where none is."""
        return self._num_closed + (self._num_closed + 1 in self._open)

    def _grace(self) -> float:
        """Eq. 3."""
        if not self._policy.has_grace:
            return 0.0
        slack = published.OVERLAP_STEPS * self._mean_step - (self._mean_quorum + self._mix.sync_time)
        return min(max(self._mix.safety * slack, 0.0), published.LONGEST_GRACE_STEPS * self._mean_step)

    def _close(self, number: int) -> None:
        """Merge a round; rounds are of different fragments, so the next may be open already."""
        for earlier in sorted(one for one in self._open if one <= number):
            self.closed.append(self._open.pop(earlier))
        self._num_closed = max(self._num_closed, number)
        self._timeline.call_later(self._mix.sync_time, lambda: self._deliver(number))

    def _deliver(self, number: int) -> None:
        self._merged = max(self._merged, number)
        for learner in self._learners:
            if learner.waits_since is not None and learner.clock - self._merged <= published.OVERLAP_STEPS:
                learner.waited += self._timeline.now - learner.waits_since
                learner.waits_since = None
                self._step(learner)


def simulate_policies(*, seed: int, mix: MixedLearners | None = None) -> list[PolicyResult]:
    """Return what the three rules come to with the same learners and the same chance."""
    mix = mix or MixedLearners()
    return [Schedule(policy, mix, chance(seed, "policies")).run() for policy in policies(mix.num_learners)]
