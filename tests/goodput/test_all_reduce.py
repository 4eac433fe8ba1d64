"""Volunteers' sessions, and a synchronous swarm that stands still whenever one of them goes."""

import random
from statistics import fmean, median

import pytest

from p2ptrain.goodput.all_reduce import AllReduce, simulate_all_reduce, tuned
from p2ptrain.goodput.sessions import Sessions, num_departures, seconds_on
from p2ptrain.sim.churn import Durations

HOURS = 3600.0
PUNCTUAL = AllReduce(median_lateness=1e-9, exchange_seconds=0.0, join_seconds=0.0)


def run(plan: list[list[tuple[float, float]]], seconds: float, timeout: float, model: AllReduce = PUNCTUAL) -> float:
    return simulate_all_reduce(plan, seconds, timeout, model, random.Random(1)).goodput


def test_sessions_have_heavy_tails_and_their_mean_share_of_time() -> None:
    plan = Sessions().plan(2_000, 8 * HOURS, seed=1)
    assert seconds_on(plan, 8 * HOURS) / (2_000 * 8 * HOURS) == pytest.approx(0.8, abs=0.02)
    begun = [until - since for own in plan for since, until in own if since > 0.0]
    assert median(begun) < 0.6 * fmean(begun)
    for own in plan:
        instants = [instant for session in own for instant in session]
        assert instants == sorted(instants) and all(since < 8 * HOURS for since, _ in own)


def test_the_same_seed_gives_the_same_plan_and_more_peers_leave_the_others_as_they_were() -> None:
    few, many, other = (Sessions().plan(count, HOURS, seed=seed) for count, seed in ((4, 2), (9, 2), (4, 3)))
    assert many[:4] == few != other


def test_nobody_leaves_and_nothing_is_lost() -> None:
    assert run([[(0.0, 99 * HOURS)]] * 5, HOURS, 10.0) == pytest.approx(1.0, abs=0.001)


def test_one_departure_stalls_all_for_the_timeout_and_the_regrouping() -> None:
    plan = [[(0.0, 99 * HOURS)]] * 9 + [[(0.0, 1800.0)]]
    stalled = 20.0 + PUNCTUAL.regroup_seconds
    expected = (9 * (HOURS - stalled) + 1800.0) / (10 * HOURS)
    assert run(plan, HOURS, 20.0) == pytest.approx(expected, abs=0.005)


def test_departures_cost_a_large_swarm_more() -> None:
    sessions = Sessions(off=Durations(kind="constant", mean_minutes=1.0))
    shares = [
        tuned(sessions.plan(count, 4 * HOURS, seed=4), 4 * HOURS, seed=4).goodput_while_on
        for count in (8, 32, 128, 512)
    ]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.7 and shares[3] < 0.5


def test_the_searched_timeout_beats_a_short_and_a_long_one() -> None:
    plan, model = Sessions().plan(128, 4 * HOURS, seed=5), AllReduce()
    best = tuned(plan, 4 * HOURS, seed=5)
    assert 1.0 < best.timeout < 128.0
    for timeout in (1.0, 128.0):
        assert simulate_all_reduce(plan, 4 * HOURS, timeout, model, random.Random(5)).goodput < best.goodput


def test_rarer_all_reduces_are_hurt_less() -> None:
    plan = Sessions().plan(64, 4 * HOURS, seed=6)
    assert num_departures(plan, 4 * HOURS) > 50
    every_step, every_round = (
        tuned(plan, 4 * HOURS, seed=6, model=AllReduce(steps_per_round=count)).goodput for count in (1, 20)
    )
    assert every_round > every_step + 0.1
