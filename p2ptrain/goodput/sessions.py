"""When volunteers are on: heavy-tailed sessions, as people have them.

Most sessions are short and most of the time is in long ones, so a swarm always has many peers that will soon be gone. A
plan says for each peer when it is on; every way to train is then tried with the same plan.
"""

import random
from dataclasses import dataclass, field
from typing import Final

from p2ptrain.goodput.timeline import chance
from p2ptrain.sim.churn import Durations

Session = tuple[float, float]  # from, until (s)
Plan = list[list[Session]]  # of each peer, in order of time

WARM_UP_CYCLES: Final = 20  # sessions before the beginning, so that the study begins in the middle of peers' lives


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """How long volunteers stay and how long they are away: the spread of published measurements, round means."""

    on: Durations = field(default_factory=lambda: Durations(kind="lognormal", mean_minutes=120.0))
    off: Durations = field(default_factory=lambda: Durations(kind="lognormal", mean_minutes=30.0))

    def plan(self, num_peers: int, seconds: float, *, seed: int) -> Plan:
        """Return each peer's sessions that touch the time from 0 to `seconds`; a last one may go on beyond it."""
        return [self._of_one_peer(chance(seed, "sessions", number), seconds) for number in range(num_peers)]

    def _of_one_peer(self, chance: random.Random, seconds: float) -> list[Session]:
        cycle = 60.0 * (self.on.mean_minutes + self.off.mean_minutes)
        at = -cycle * (WARM_UP_CYCLES + chance.random())
        sessions: list[Session] = []
        while at < seconds:
            until = at + self.on.draw(chance)
            if until > 0.0:
                sessions.append((max(at, 0.0), until))
            at = until + self.off.draw(chance)
        return sessions


def seconds_on(plan: Plan, seconds: float) -> float:
    """Return the time that all peers together are on before the end."""
    return sum(min(until, seconds) - since for own in plan for since, until in own)


def num_departures(plan: Plan, seconds: float) -> int:
    """Return how often a peer leaves before the end."""
    return sum(until < seconds for own in plan for _, until in own)
