"""Events in order of their time: the clock of the small simulations here.

    timeline = Timeline()
    timeline.call_at(3.0, fail)
    timeline.run(until=10.0)

Chance comes from `chance`, a generator that follows from a seed and from what it is for, so one part of a study draws
the same numbers whatever else is simulated.
"""

import heapq
import itertools
import random
from collections.abc import Callable

from p2ptrain.ids import digest


class Timeline:
    """A queue of events; those of one instant happen in the order in which they were planned."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def call_at(self, at: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at, next(self._numbers), action))

    def call_later(self, seconds: float, action: Callable[[], None]) -> None:
        self.call_at(self.now + seconds, action)

    def run(self, until: float) -> None:
        """Let everything happen up to and including an instant."""
        events = self._events
        while events and events[0][0] <= until:
            self.now, _, action = heapq.heappop(events)
            action()
        self.now = until


def chance(seed: int, *what: object) -> random.Random:
    """Return a generator of its own for everything that has a name."""
    return random.Random(digest("goodput-chance", " ".join([str(seed), *map(str, what)]).encode()))
