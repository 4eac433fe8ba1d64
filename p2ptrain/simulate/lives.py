"""One life of one peer: what a process said from its start to its end.

A killed peer that comes back with the same identity is the same peer in another life. Everything that is known of a
life from outside is here: when it began and ended, how, and its events, which the supervisor reads and the judge
weighs. Instants are wall time: all processes of a simulation share one clock.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from p2ptrain.events import Event


class End(Enum):
    """How a life ended."""

    RUNNING = "running"
    KILLED = "killed"  # by the supervisor, on purpose
    CRASHED = "crashed"  # by itself, before it was asked to leave
    LEFT = "left"


@dataclass(kw_only=True)
class Life:
    """One process of the peer with this number (the host is 1)."""

    number: int
    born_at: float
    ended_at: float | None = None
    end: End = End.RUNNING
    exit_code: int | None = None
    events: list[Event] = field(default_factory=list)
    open_rounds: set[tuple[int, int]] = field(default_factory=set)
    """(fragment, version) of the rounds that it leads now: called, and neither committed nor given up."""
    _by_kind: dict[str, list[Event]] = field(default_factory=lambda: defaultdict(list), repr=False)

    def hear(self, events: Iterable[Event]) -> None:
        for event in events:
            self.events.append(event)
            self._by_kind[event.kind].append(event)
            self._follow_round(event)

    def close(self, end: End, at: float) -> None:
        self.end, self.ended_at = end, at

    def all(self, kind: str) -> Sequence[Event]:
        return self._by_kind.get(kind, ())

    def first(self, kind: str) -> Event | None:
        return next(iter(self.all(kind)), None)

    def last(self, kind: str) -> Event | None:
        return next(reversed(self.all(kind)), None)

    def latest(self, kind: str, name: str, default: Any) -> Any:
        """Return a field of the last event of a kind, or the default while there is none."""
        event = self.last(kind)
        return default if event is None else event.fields.get(name, default)

    @property
    def peer(self) -> str:
        """The peer id; empty until the process has started."""
        started = self.first("started")
        return "" if started is None else str(started.fields["peer"])

    @property
    def was_lost(self) -> bool:
        """Whether it ended without a chance to hand on its work."""
        return self.end in (End.KILLED, End.CRASHED)

    @property
    def is_running(self) -> bool:
        return self.end is End.RUNNING

    @property
    def is_up(self) -> bool:
        """Whether others can reach it: it runs and has said that its link can be used."""
        return self.is_running and self.first("started") is not None

    @property
    def trained_from(self) -> float | None:
        """When its first inner step was made."""
        event = self.first("training")
        return None if event is None else event.at

    def loss_curve(self) -> tuple[Sequence[float], Sequence[float]]:
        """Return instants and the training loss at each."""
        accounts = [event for event in self.all("progress") if math.isfinite(event.fields["loss"])]
        return [event.at for event in accounts], [event.fields["loss"] for event in accounts]

    def was_alive(self, at: float) -> bool:
        return self.born_at <= at and (self.ended_at is None or at < self.ended_at)

    def _follow_round(self, event: Event) -> None:
        """Keep `open_rounds` as of this event."""
        if event.kind == "round-called":
            self.open_rounds.add(_round(event))
        elif event.kind in ("round-committed", "round-aborted"):
            self.open_rounds.discard(_round(event))
        elif event.kind == "adopted":
            fragment, version = _round(event)
            self.open_rounds = {one for one in self.open_rounds if one[0] != fragment or one[1] > version}


def _round(event: Event) -> tuple[int, int]:
    return int(event.fields["fragment"]), int(event.fields["version"])
