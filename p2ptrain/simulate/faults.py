"""Which processes are killed, and when. Pure: the same seed and the same situation give the same choice.

Two kinds of faults begin 20 s after the first commit anywhere, when the swarm is at work: `kill-one` SIGKILLs a random
peer, `kill-leader` the leader of a round that is open at that moment (so it waits for one). The killed peer comes back
5 s later with the same identity. No fault is made right before the end, since the swarm could not show any more that it
recovers, and none that would leave nobody alive.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from p2ptrain.simulate.lives import Life

FAULTS_AFTER: Final = 20.0  # seconds from the first commit
RESTART_AFTER: Final = 5.0  # seconds that a killed peer stays dead
QUIET_BEFORE_STOP: Final = 10.0  # seconds without faults at the end: 5 dead, about as many to be back in the rounds

KILL_ONE: Final = "kill-one"
KILL_LEADER: Final = "kill-leader"


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """A kill that is due at an instant; `turn` counts those of its kind from 0."""

    due_at: float
    kind: str
    turn: int


def plan_faults(
    *, first_commit_at: float, stop_at: float, kill_one_every: float | None, kill_leader_every: float | None
) -> list[Fault]:
    """Return all faults of a simulation, by the time at which they are due."""
    begin, end = first_commit_at + FAULTS_AFTER, stop_at - QUIET_BEFORE_STOP
    faults = []
    for kind, interval in ((KILL_ONE, kill_one_every), (KILL_LEADER, kill_leader_every)):
        due_at, turn = begin, 0
        while interval is not None and due_at <= end:
            faults.append(Fault(due_at, kind, turn))
            turn += 1
            due_at = begin + turn * interval
    return sorted(faults)


def choose_victim(fault: Fault, lives: Sequence[Life], *, seed: int) -> Life | None:
    """Return the life that this fault ends, or None while there is none that it may end."""
    up = [life for life in lives if life.is_up]
    candidates = up if fault.kind == KILL_ONE else [life for life in up if life.open_rounds]
    if len(up) < 2 or not candidates:
        return None
    candidates.sort(key=lambda life: life.number)
    return Random(f"{seed} {fault.kind} {fault.turn}").choice(candidates)
