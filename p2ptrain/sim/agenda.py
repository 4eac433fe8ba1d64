"""What the simulated network is about to do, in order of time.

The network has many more events than the loop needs timers: deliveries, transfers that end, dials that are answered.
They wait in a heap of their own, of which the loop knows only the earliest instant; all that is due then happens in one
callback, in the order in which it was planned. That callback belongs to no process, so a frozen peer's bytes still
travel.
"""

import asyncio
from collections.abc import Callable
from contextvars import Context
from heapq import heappop, heappush
from typing import Any, Final

WORLD: Final = Context()
"""The context of what happens in no process: the network's own callbacks."""


class Agenda:
    """Events of the network; an event is a function and its one argument."""

    __slots__ = ("_armed_at", "_events", "_is_firing", "_loop", "num_planned")

    def __init__(self) -> None:
        self._events: list[tuple[float, int, Callable[[Any], object], Any]] = []
        self._armed_at = float("inf")  # the earliest instant for which a timer of the loop is set
        self.num_planned = 0  # events so far
        self._is_firing = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def now(self) -> float:
        """Return the virtual time (s)."""
        return asyncio.get_running_loop().time()

    def at(self, when: float, function: Callable[[Any], object], argument: Any = None) -> None:
        """Call a function with an argument at an instant; now, if that is past."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # another story of the same world, whose time begins at 0 again
            self._loop, self._armed_at, self._is_firing = loop, float("inf"), False
            self._events.clear()
        self.num_planned += 1
        heappush(self._events, (when, self.num_planned, function, argument))
        if when < self._armed_at and not self._is_firing:
            self._arm(loop, when)

    def _arm(self, loop: asyncio.AbstractEventLoop, when: float) -> None:
        self._armed_at = when
        loop.call_at(when, self._fire, when, context=WORLD)

    def _fire(self, when: float) -> None:
        if when != self._armed_at:
            return  # an earlier timer was set after this one, and will be set again for what is left
        loop, events = asyncio.get_running_loop(), self._events
        due = max(loop.time(), when)
        self._is_firing = True
        try:
            while events and events[0][0] <= due:
                _, _, function, argument = heappop(events)
                function(argument)
        finally:
            self._is_firing = False
            self._armed_at = float("inf")
            if events:
                self._arm(loop, events[0][0])
