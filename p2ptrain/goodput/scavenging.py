"""Scavenged compute: chips that are there for half of the work only, and how much sooner it is done.

The same amount of training in every case. For its first half there are the cluster's own chips; for the second, extra
ones in units of a quarter of the cluster, each now and then taken away and replaced by another. The ideal is half of the
time and the other half divided by 1 + extra.

* Data parallelism is one job over all chips. A change means sharding the model anew, during which nobody trains. Changes
  are taken together: those during a re-sharding with it, later ones when `reshard_interval` is over.
* Decoupled: a unit is a learner of its own. A new one copies the model from a peer; nobody else notices.

The paper publishes the relative times, not how often chips came and went, nor what re-sharding took. Both are fitted to
its four numbers of data parallelism; the decoupled ones are then a prediction.
"""

import random
from dataclasses import dataclass
from typing import Final

from p2ptrain.goodput import published
from p2ptrain.goodput.timeline import Timeline, chance

UNIT: Final = 0.25  # of the cluster's own chips: the smallest extra in the paper's table


@dataclass(frozen=True, slots=True, kw_only=True)
class Scavenging:
    """How extra chips come and go. Times in seconds."""

    unit_lifetime: float = 1_000.0
    """Mean time until a unit is taken away and replaced. Fitted."""
    reshard_seconds: float = 435.0
    """What it takes to shard a data-parallel job anew. Fitted."""
    reshard_interval: float = 300.0
    """From the end of a re-sharding to the next at least. As the readmissions of `failures.FailureModel`."""
    copy_seconds: float = 18.0
    """What a new learner needs to copy the model. Chosen: the paper says that six steps of time go unnoticed."""
    work_seconds: float = 30 * 86_400.0
    """What the cluster's own chips alone would need: long, so that chance averages out."""


def ideal_time(extra: float) -> float:
    """Return the relative time if extra chips cost nothing."""
    return 0.5 + 0.5 / (1.0 + extra)


class _Phase:
    """The second half of the work, with extra chips that are replaced now and then."""

    def __init__(self, model: Scavenging, extra: float, chance: random.Random) -> None:
        self._timeline, self._model, self._chance = Timeline(), model, chance
        self._num_units = round(extra / UNIT)
        self._counted_to = 0.0
        self.done = 0.0  # seconds of the cluster's own chips alone

    def _change_later(self) -> None:
        if self._num_units:
            rate = self._num_units / self._model.unit_lifetime
            self._timeline.call_later(self._chance.expovariate(rate), self._change)

    def seconds(self) -> float:
        """Return how long this half takes."""
        self._change_later()
        work = self._model.work_seconds / 2.0
        while True:
            self._timeline.run(self._timeline.now + self._model.reshard_interval)
            self._count()
            if self.done >= work:
                return self._timeline.now - (self.done - work) / self._speed()

    def _count(self) -> None:
        now = self._timeline.now
        self.done += max(0.0, now - self._counted_to) * self._speed()
        self._counted_to = max(self._counted_to, now)

    def _speed(self) -> float:
        return 1.0 + self._num_units * UNIT

    def _change(self) -> None:
        raise NotImplementedError


class _DataParallel(_Phase):
    """Everything stops while the job is sharded anew."""

    _is_reshard_planned = False
    _reshard_from = 0.0

    def _change(self) -> None:
        self._change_later()
        is_under_way = self._timeline.now < self._counted_to
        if not self._is_reshard_planned and not is_under_way:
            self._is_reshard_planned = True
            self._timeline.call_at(max(self._timeline.now, self._reshard_from), self._reshard)

    def _reshard(self) -> None:
        self._is_reshard_planned = False
        self._count()
        self._counted_to = self._timeline.now + self._model.reshard_seconds  # nothing is done until then
        self._reshard_from = self._counted_to + self._model.reshard_interval


class _Decoupled(_Phase):
    """Only the new learner's own time is lost."""

    def _change(self) -> None:
        self._change_later()
        self.done -= self._model.copy_seconds * UNIT


def simulate_scavenging(*, seed: int, model: Scavenging | None = None) -> dict[str, list[float]]:
    """Return the time to finish relative to no extra chips, for each kind of training and each amount of extra."""
    model = model or Scavenging()
    kinds: dict[str, type[_Phase]] = dict(zip(published.SCAVENGING_TIME, (_DataParallel, _Decoupled), strict=True))
    return {
        name: [
            0.5 + kind(model, extra, chance(seed, "scavenging", name, extra)).seconds() / model.work_seconds
            for extra in published.EXTRA_COMPUTE
        ]
        for name, kind in kinds.items()
    }
