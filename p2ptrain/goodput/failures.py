"""Chips fail: how much of a cluster's time becomes training, for learners that pause, shrink and grow again.

A learner is elastic data parallelism over slices of chips. Failures strike chips at random. The slice of a failed chip
goes down and the learner pauses to go on without it; failures during a pause are handled by it. After its repair a slice
is ready; ready slices come back together, now and then, at the price of another pause:

    RUNNING --failure--> PAUSED (stop_seconds) --> RUNNING with fewer slices
    RUNNING --slices ready, and readmission_interval since the last time--> PAUSED (readmission_seconds) --> RUNNING

With one learner this is elastic data parallelism; with M, each of a part of the chips, it is Decoupled DiLoCo with a
quorum of one, where no learner ever waits for another.

    goodput   the share of all chips' time in which they train
    uptime    the share of time in which at least one learner trains

The paper publishes how often a chip fails, how many there are and that a slice's failure is not the end of a step for the
other learners. It does not publish the times of recovery: those of `FailureModel` are fitted to its 25 numbers, and
say nothing about any real machine.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from p2ptrain.goodput import published
from p2ptrain.goodput.timeline import Timeline, chance

NUM_FAILURES: Final = 40_000  # per cell: with 2,500 a cell moves by 1-2 points from seed to seed, with these by 0.1-0.3
WARM_UP: Final = 3_600.0  # s: a cluster begins whole, which it never is again


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureModel:
    """What a failure costs. Times in seconds."""

    interruption_interval: float = published.CHIP_INTERRUPTION_INTERVAL
    """Mean time between two interruptions of one chip. Published."""
    slice_chips: int = 256
    """Chips that go down together. Chosen: a usual slice; it matters where a learner has few slices."""
    stop_seconds: float = 18.0
    """Pause after a failure, until the rest goes on. Fitted."""
    readmission_seconds: float = 15.0
    """Pause to take repaired slices back. Fitted."""
    mean_repair_seconds: float = 300.0
    """Mean of the (exponential) time until a failed slice is ready again. Fitted; 300 to 900 fit about equally."""
    readmission_interval: float = 300.0
    """Least time between two readmissions. Fitted."""
    restart_seconds: float = 80.0
    """What a failure costs without elasticity: everything stops and starts again. Fitted to the extra row."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of the table, as shares from 0 to 1."""

    goodput: float
    uptime: float


class ElasticLearner:
    """One learner on a timeline; counts what it trains and when it pauses from `counts_from` on."""

    def __init__(
        self, timeline: Timeline, chance: random.Random, model: FailureModel, num_chips: float, counts_from: float
    ) -> None:
        self._timeline, self._chance, self._model = timeline, chance, model
        self._num_slices = max(1, round(num_chips / model.slice_chips))
        self._failure_interval = model.interruption_interval / num_chips
        self._num_active, self._num_ready = self._num_slices, 0
        self._paused_until = 0.0
        self._readmission_from = 0.0  # no readmission before this
        self._is_readmission_planned = False
        self._counted_to = counts_from
        self.trained = 0.0
        """Seconds of training, weighted by the share of the slices that took part."""
        self.pauses: list[tuple[float, float]] = []
        self._plan_failure()

    def count(self) -> None:
        """Bring `trained` up to now."""
        now = self._timeline.now
        running_from = max(self._counted_to, self._paused_until)
        if now > running_from:
            self.trained += (now - running_from) * self._num_active / self._num_slices
        self._counted_to = max(self._counted_to, now)

    def _plan_failure(self) -> None:
        self._timeline.call_later(self._chance.expovariate(1.0 / self._failure_interval), self._fail)

    def _fail(self) -> None:
        """A failure strikes some chip; where a slice is down already it changes nothing."""
        self._plan_failure()
        if self._chance.random() * self._num_slices >= self._num_active:
            return
        self.count()
        self._num_active -= 1
        self._timeline.call_later(self._chance.expovariate(1.0 / self._model.mean_repair_seconds), self._repaired)
        if self._timeline.now >= self._paused_until:
            self._pause(self._model.stop_seconds)

    def _repaired(self) -> None:
        self._num_ready += 1
        self._plan_readmission()

    def _plan_readmission(self) -> None:
        if not self._is_readmission_planned:
            self._is_readmission_planned = True
            self._timeline.call_at(max(self._timeline.now, self._readmission_from, self._paused_until), self._readmit)

    def _readmit(self) -> None:
        self._is_readmission_planned = False
        if self._timeline.now < self._paused_until:  # a failure came first
            self._plan_readmission()
            return
        self.count()
        self._num_active, self._num_ready = self._num_active + self._num_ready, 0
        self._readmission_from = self._timeline.now + self._model.readmission_interval
        self._pause(self._model.readmission_seconds)

    def _pause(self, seconds: float) -> None:
        self._paused_until = self._timeline.now + seconds
        self.pauses.append((self._timeline.now, self._paused_until))


def simulate_cell(
    num_chips: int, num_learners: int, *, seed: int, model: FailureModel | None = None, num_failures: int = NUM_FAILURES
) -> Cell:
    """Return goodput and uptime of a cluster of chips, divided among learners, over about so many failures."""
    model = model or FailureModel()
    timeline = Timeline()
    chips_each = num_chips / num_learners
    learners = [
        ElasticLearner(timeline, chance(seed, "failures", num_chips, num_learners, number), model, chips_each, WARM_UP)
        for number in range(num_learners)
    ]
    end = WARM_UP + num_failures * model.interruption_interval / num_chips
    timeline.run(end)
    for learner in learners:
        learner.count()
    seconds = end - WARM_UP
    all_paused = seconds_in_all([learner.pauses for learner in learners], WARM_UP, end)
    return Cell(sum(learner.trained for learner in learners) / (num_learners * seconds), 1.0 - all_paused / seconds)


def seconds_in_all(pauses: Sequence[Sequence[tuple[float, float]]], begin: float, end: float) -> float:
    """Return for how long, between two instants, every learner was in one of its pauses; a learner's do not overlap."""
    changes = sorted(
        change
        for own in pauses
        for start, stop in own
        if stop > begin and start < end
        for change in ((max(start, begin), 1), (min(stop, end), -1))
    )
    total, num_paused, since = 0.0, 0, begin
    for at, change in changes:
        if num_paused == len(pauses):
            total += at - since
        num_paused, since = num_paused + change, at
    return total


def closed_form(num_chips: int, num_learners: int, model: FailureModel | None = None) -> float:
    """Return the goodput where failures are so rare that each is over before the next: 1 / (1 + (N/M) d / MTBI).

    d, in seconds of the whole learner, is the two pauses, and a slice's share of the time that it is away.
    """
    model = model or FailureModel()
    chips_each = num_chips / num_learners
    away = model.mean_repair_seconds * model.slice_chips / chips_each
    cost = model.stop_seconds + model.readmission_seconds + away
    return 1.0 / (1.0 + chips_each * cost / model.interruption_interval)


def inelastic(num_chips: int, model: FailureModel | None = None) -> float:
    """Return the goodput of data parallelism that starts again after every failure: MTBF / (MTBF + restart)."""
    model = model or FailureModel()
    between_failures = model.interruption_interval / num_chips
    return between_failures / (between_failures + model.restart_seconds)


def simulate_table(
    *, seed: int, model: FailureModel | None = None, num_failures: int = NUM_FAILURES
) -> dict[str, list[Cell]]:
    """Return the 25 cells: elastic data parallelism and Decoupled with 2 to 16 learners, by number of chips."""
    return {
        row: [
            simulate_cell(
                num_chips,
                1 if row == published.ELASTIC else int(row),
                seed=seed,
                model=model,
                num_failures=num_failures,
            )
            for num_chips in published.CHIPS
        ]
        for row in published.GOODPUT
    }


def differences(table: dict[str, list[Cell]]) -> dict[str, list[float]]:
    """Return ours - the paper's, in points."""
    return {
        row: [100.0 * cell.goodput - paper for cell, paper in zip(cells, published.GOODPUT[row], strict=True)]
        for row, cells in table.items()
    }


def root_mean_square(table: dict[str, list[Cell]]) -> float:
    """Return the root mean square of the differences over all cells, in points."""
    errors = [error for row in differences(table).values() for error in row]
    return float((sum(error * error for error in errors) / len(errors)) ** 0.5)
