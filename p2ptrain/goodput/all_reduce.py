"""Volunteers in a synchronous swarm: everybody trains, then all reduce together, and nobody goes on before.

A round is some steps and one all-reduce. Who is silently gone, or later than the time-out, makes the all-reduce fail:
everybody waits for the time-out, regroups, and tries again with those that are there. A short time-out throws out who
is merely late, a long one makes every departure dear; the best one is searched for. Newcomers download the model and
come in with the next round.

This is kinder than life: departures of one round are noticed together, regrouping always works, peers are equally
fast, and bytes cost no time.
"""

import math
import random
from bisect import bisect_right
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final

import numpy as np
import numpy.typing as npt

from p2ptrain.goodput.sessions import Plan, seconds_on
from p2ptrain.goodput.timeline import chance

TIMEOUTS: Final = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 96.0, 128.0)  # s


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduce:
    """A synchronous swarm. Times in seconds; all of them chosen, none measured."""

    steps_per_round: int = 1
    """Inner steps between two all-reduces: 1 is data parallelism, more is local SGD."""
    step_seconds: float = 15.0
    exchange_seconds: float = 1.0
    """The all-reduce itself, when nobody is missing: some round trips between homes."""
    regroup_seconds: float = 15.0
    """From a failed all-reduce until a new group stands."""
    join_seconds: float = 60.0
    """What a newcomer needs before it can take part."""
    median_lateness: float = 0.25
    """How late a member comes to an all-reduce: lognormal, by busy machines and home links."""
    lateness_spread: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduceResult:
    """What a synchronous swarm came to, with the time-out that suits it best."""

    timeout: float
    goodput: float
    """Training that was merged, by what always-on peers would have trained."""
    goodput_while_on: float
    """The same by what the peers could have trained while they were on."""
    undisturbed: float
    """`goodput_while_on` if as many peers were on, and nobody came or left: what waiting for the last one costs alone."""
    num_rounds: int
    num_failed: int
    """All-reduces that somebody was missing from."""


class _Members:
    """Who is in the swarm when: sessions, without the time to join."""

    def __init__(self, plan: Plan, join_seconds: float) -> None:
        stays = [(since + join_seconds, until) for own in plan for since, until in own if since + join_seconds < until]
        self._since: npt.NDArray[np.float64] = np.array([since for since, _ in stays])
        self._until: npt.NDArray[np.float64] = np.array([until for _, until in stays])
        self._arrivals = sorted(since for since, _ in stays)

    def count(self, joined_by: float, still_there_at: float) -> int:
        return int(np.count_nonzero((self._since <= joined_by) & (self._until > still_there_at)))

    def next_arrival(self, after: float) -> float:
        index = bisect_right(self._arrivals, after)
        return self._arrivals[index] if index < len(self._arrivals) else math.inf


def simulate_all_reduce(
    plan: Plan, seconds: float, timeout: float, model: AllReduce, chance: random.Random
) -> AllReduceResult:
    """Return what a synchronous swarm with this time-out comes to."""
    members = _Members(plan, model.join_seconds)
    now, merged_steps, num_rounds, num_failed = 0.0, 0.0, 0, 0
    while now < seconds:
        began_at = now
        num_members = members.count(began_at, began_at)
        if not num_members:
            now = members.next_arrival(now)
            continue
        now += model.steps_per_round * model.step_seconds
        num_late, last_comes_after = _lateness(num_members, timeout, model, chance)
        done_at = now + last_comes_after + model.exchange_seconds
        is_complete = not num_late
        while num_members and not (is_complete and members.count(began_at, done_at) == num_members):
            num_failed += 1
            now += timeout + model.regroup_seconds
            done_at = now + model.exchange_seconds
            num_members, is_complete = members.count(began_at, now), True
        now = done_at
        num_rounds += 1
        in_time = min(1.0, (seconds - began_at) / (now - began_at))  # of the last round, the part before the end
        merged_steps += in_time * max(0, num_members - num_late) * model.steps_per_round
    trained = merged_steps * model.step_seconds
    return AllReduceResult(
        timeout=timeout, goodput=trained / (len(plan) * seconds), goodput_while_on=trained / seconds_on(plan, seconds),
        undisturbed=math.nan, num_rounds=num_rounds, num_failed=num_failed,
    )  # fmt: skip


def _lateness(num_members: int, timeout: float, model: AllReduce, chance: random.Random) -> tuple[int, float]:
    """Return how many members are later than the time-out, and how late the last of the others is (s).

    Drawn from the latest down: the largest of n uniform numbers is distributed as the n-th root of one.
    """
    normal = NormalDist(math.log(model.median_lateness), model.lateness_spread)
    quantile, num_late = 1.0, 0
    for num_others in range(num_members, 0, -1):
        quantile *= chance.random() ** (1.0 / num_others)
        lateness = math.exp(normal.inv_cdf(min(max(quantile, 1e-12), 1.0 - 1e-12)))
        if lateness <= timeout:
            return num_late, lateness
        num_late += 1
    return num_late, timeout


def tuned(plan: Plan, seconds: float, *, seed: int, model: AllReduce | None = None) -> AllReduceResult:
    """Return what it comes to with the best of `TIMEOUTS`, all tried with the same chance."""
    model = model or AllReduce()
    num_on = max(1, round(seconds_on(plan, seconds) / seconds))
    always_on: Plan = [[(-model.join_seconds, math.inf)]] * num_on
    best, undisturbed = (
        max(
            (simulate_all_reduce(tried, seconds, timeout, model, chance(seed, "all-reduce")) for timeout in TIMEOUTS),
            key=lambda result: result.goodput,
        )
        for tried in (plan, always_on)
    )
    return replace(best, undisturbed=undisturbed.goodput)
