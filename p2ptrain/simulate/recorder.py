"""Writes down the lives of a simulated swarm, as the supervisor of real processes does.

Births, deaths and instants are the world's own knowledge: true time, whatever the clocks of the machines say. A thousand
peers say a million things an hour, so what is only ever counted or summed up is counted or summed up at once, and thrown
away: of a life's accounts of its progress the first and the last are kept, of the adoptions of a commit the first one by
anybody, of losses a curve.
"""

import math
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from p2ptrain.events import Event
from p2ptrain.peer import Peer
from p2ptrain.sim.ports import WALL_START
from p2ptrain.sim.swarm import SimSwarm
from p2ptrain.simulate.lives import End, Life

MAX_EVENTS: Final = 300_000  # kept of the whole swarm: some hundred megabytes, and as much as anybody can look through
MAX_POSITION: Final = 1 << 27  # of the data, up to which double draws are counted
ONLY_COUNTED: Final = frozenset(
    {"peer-up", "peer-down", "round-called", "reachability", "left-out", "stage", "writes-lost"}
)


@dataclass(kw_only=True)
class ThinLife(Life):
    """A life that keeps of its events what the judge weighs."""

    curve_interval: float = 1.0
    """Seconds between two points of its loss curve."""
    num_unkept: int = 0
    _curve: "tuple[array[float], array[float]]" = field(default_factory=lambda: (array("d"), array("d")), repr=False)
    _max_accounts: int = 2

    def hear_one(self, event: Event, *, keep: bool) -> None:
        """Follow an event; keep it, if that is wanted and it is not one of those that are summed up."""
        self._follow_round(event)
        if event.kind == "progress":
            self._account(event)
        elif event.kind == "dropped":
            self._sum_up(event)
        elif keep:
            self.events.append(event)
            self._by_kind[event.kind].append(event)
        else:
            self.num_unkept += 1

    def stop(self) -> None:
        """Training is over in the whole swarm: the last account so far is the one that counts for its pace."""
        self._max_accounts = len(self._by_kind["progress"]) + 1

    def loss_curve(self) -> tuple[Sequence[float], Sequence[float]]:
        return self._curve

    def _account(self, event: Event) -> None:
        """Keep the first account with steps in it, the last one before the stop, and the last one."""
        if not event.fields["inner_steps"]:
            return
        kept = self._by_kind["progress"]
        if len(kept) < self._max_accounts:
            kept.append(event)
        else:
            kept[-1] = event
        times, losses = self._curve
        if math.isfinite(event.fields["loss"]) and (not times or event.at >= times[-1] + self.curve_interval):
            times.append(event.at)
            losses.append(event.fields["loss"])

    def _sum_up(self, event: Event) -> None:
        """Keep one event for each reason, with the sum of the tokens."""
        sums = self._by_kind["dropped"]
        for index, earlier in enumerate(sums):
            if earlier.fields["reason"] == event.fields["reason"]:
                tokens = earlier.fields["tokens"] + event.fields["tokens"]
                sums[index] = replace(earlier, fields={**earlier.fields, "tokens": tokens})
                return
        sums.append(event)


class Recorder:
    """Listens to a swarm from its first start to its end."""

    def __init__(self, swarm: SimSwarm, *, curve_interval: float = 1.0, keeps_validations: bool = False) -> None:
        """`keeps_validations`: whether the swarm's own list of events is to have them, for a scenario that looks there."""
        self.lives: list[ThinLife] = []
        self.draws = Draws()
        self.num_events: Counter[str] = Counter()
        """All events by kind, kept or not."""
        self._swarm, self._curve_interval = swarm, curve_interval
        self._kinds: set[str] = set()
        self._open: dict[str, int] = {}  # host -> index of the life that goes on there
        self._numbers: dict[str, int] = {}
        self._tokens: dict[str, dict[str, int]] = {}  # by commit: one dict for all that adopted it
        self._validated = -1  # the newest version whose validation was kept
        self._num_kept = 0
        self._is_closed = False
        swarm.on_life = self._life
        swarm.on_event = self._event
        swarm.keeps_event = self._is_for_the_swarm
        self._keeps_validations = keeps_validations

    def stop(self) -> None:
        """Training is over: what comes now is the drain."""
        for life in self.lives:
            life.stop()

    def close(self) -> None:
        """What happens from now on is the end of the simulation, not of a peer."""
        self._is_closed = True

    def _is_for_the_swarm(self, event: Event) -> bool:
        """Keep there what ends the simulation, and the first of each kind, which tells that it occurred."""
        is_first = event.kind not in self._kinds
        self._kinds.add(event.kind)
        return is_first or event.kind == "task-failed" or (event.kind == "validation" and self._keeps_validations)

    def _now(self) -> float:
        return WALL_START + self._swarm.now

    def _number(self, host: str) -> int:
        for index in range(len(self._numbers), len(self._swarm.host_names)):
            self._numbers[self._swarm.host_names[index]] = index + 1
        return self._numbers[host]

    def _life(self, host: str, what: str) -> None:
        if self._is_closed:
            return
        if what == "began":
            self._open[host] = len(self.lives)
            self.lives.append(
                ThinLife(number=self._number(host), born_at=self._now(), curve_interval=self._curve_interval)
            )
        elif host in self._open:
            if what == "killed":
                self._last_account(host, self._swarm.peers.get(host))
            self.lives[self._open.pop(host)].close(End.KILLED if what == "killed" else End.LEFT, self._now())

    def _event(self, host: str, event: Event) -> None:
        self.num_events[event.kind] += 1
        if host not in self._open or self._is_closed:
            return
        index = self._open[host]
        life = self.lives[index]
        event = replace(event, at=self._now())
        if event.kind == "progress":
            for position in event.fields["drawn"]:
                self.draws.draw(position, index, self.lives)
            event = replace(
                event, fields={**event.fields, "drawn": [], "utilisation": self._utilisation(host, life, event)}
            )
        elif event.kind == "left":
            self._last_account(host, self._swarm.leaving.get(host))
        keep = self._is_kept(event)
        if event.kind == "adopted":
            event = self._shared(event)
        self._num_kept += keep
        life.hear_one(event, keep=keep)

    def _utilisation(self, host: str, life: Life, event: Event) -> float:
        """Return time stepping / time offered, since a simulated step takes no time of the learner's own clock."""
        started, compute = life.first("started"), self._swarm.compute(host)
        seconds = event.at - started.at if started is not None else 0.0
        step_seconds = compute.step_seconds * compute.straggler / (compute.device.speed * compute.device.utilisation)
        return min(1.0, event.fields["inner_steps"] * step_seconds / seconds) if seconds > 0.0 else 0.0

    def _is_kept(self, event: Event) -> bool:
        if event.kind in ("started", "training", "report", "killed"):
            return True
        if event.kind in ONLY_COUNTED or self._num_kept >= MAX_EVENTS:
            return False
        if event.kind == "adopted":
            return event.fields["commit"] not in self._tokens
        if event.kind == "validation":
            is_new = int(event.fields["version"]) > self._validated
            self._validated = max(self._validated, int(event.fields["version"]))
            return is_new
        return True

    def _shared(self, event: Event) -> Event:
        """Return an adoption with the instant at which the world saw it, whatever the leader's clock says."""
        fields = event.fields
        tokens = self._tokens.setdefault(fields["commit"], fields["tokens"])
        return replace(event, fields={**fields, "tokens": tokens, "committed_at": event.at})

    def _last_account(self, host: str, peer: Peer | None) -> None:
        """Note where the tokens of a process went that ends now: nobody will ask it later."""
        if peer is None or peer.learner is None or host not in self._open:
            return
        life = self.lives[self._open[host]]
        progress, tallies, counters = peer.learner.progress, peer.learner.tallies(), peer.transport.counters()
        if not progress.inner_steps:
            return
        fields: dict[str, Any] = {
            "inner_steps": progress.inner_steps, "tokens": progress.tokens, "loss": progress.loss,
            "utilisation": life.latest("progress", "utilisation", 0.0), "tokens_merged": sum(one.merged for one in tallies) // len(tallies),
            "pending": sum(one.pending for one in tallies) / len(tallies),
            "bytes_sent": counters["bytes_sent"], "bytes_received": counters["bytes_received"],
        }  # fmt: skip
        life.hear_one(Event("progress", self._now(), 0.0, fields), keep=True)


class Draws:
    """Counts positions of the data that were drawn although a live peer had drawn them before (see measures.py)."""

    def __init__(self) -> None:
        self.num_double = 0
        self._first = array("i")  # by position: 1 + index of the first life that drew it; 0: nobody has
        self._others: dict[int, list[int]] = {}

    def draw(self, position: int, index: int, lives: Sequence[Life]) -> None:
        """Note that a life draws a position now."""
        if not 0 <= position < MAX_POSITION:
            return
        if position >= len(self._first):
            self._first.extend([0] * (position + 1024 - len(self._first)))
        first = self._first[position]
        if not first:
            self._first[position] = index + 1
            return
        others = self._others.setdefault(position, [])
        self.num_double += any(lives[one].is_running for one in (first - 1, *others))
        others.append(index)
