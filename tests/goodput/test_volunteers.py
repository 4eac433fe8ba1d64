"""Volunteers with p2ptrain's own peers, small and short: what is measured is what their chains hold."""

import pytest

from p2ptrain.config import RunConfig, load_run_config
from p2ptrain.goodput.budget import Budget, OutOfTime
from p2ptrain.goodput.hivemind import simulate_hivemind
from p2ptrain.goodput.options import GoodputOptions
from p2ptrain.goodput.sessions import Plan
from p2ptrain.goodput.study import simulate_sizes
from p2ptrain.goodput.volunteers import VolunteerResult, VolunteerRun, simulate_volunteers
from p2ptrain.real.clock import SystemClock

SECONDS = 240.0
ALWAYS = [(0.0, 99.0 * SECONDS)]


class CountingClock:
    """A clock of which each look takes a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 1.0
        return self.now

    def wall(self) -> float:
        return self.monotonic()


def small_run() -> VolunteerRun:
    config = load_run_config("sim-quadratic")
    rounds = config.rounds.model_copy(update={"inner_steps": 10})
    quick: RunConfig = config.model_copy(update={"rounds": rounds})
    return VolunteerRun(config=quick, network=None, seconds=SECONDS, step_seconds=2.0)


def simulate(plan: Plan, seed: int = 1) -> VolunteerResult:
    budget = Budget(SystemClock(), 1e6)
    return simulate_volunteers(len(plan), plan, small_run(), seed=seed, budget=budget, on_progress=lambda words: None)


def test_peers_that_stay_lose_only_the_time_to_come() -> None:
    result = simulate([ALWAYS] * 3)
    assert 0.8 < result.goodput <= result.trained < 1.0
    assert result.goodput_while_on == pytest.approx(result.goodput)
    assert result.dropped == {} and result.num_sessions == 3 and result.rounds > 8.0


def test_who_vanishes_costs_the_others_nothing() -> None:
    plan: Plan = [ALWAYS, ALWAYS, ALWAYS, [(0.0, 100.0), (150.0, 99.0 * SECONDS)]]
    undisturbed, disturbed = simulate([ALWAYS] * 4), simulate(plan)
    lost = undisturbed.goodput - disturbed.goodput
    away = 50.0 / (4 * SECONDS)
    assert disturbed.num_sessions == 5
    assert away - 0.01 < lost < away + 40.0 / (4 * SECONDS)  # what it had not handed over: up to an interval and a half
    assert disturbed.goodput_while_on > disturbed.goodput


def test_the_same_seed_gives_the_same_story() -> None:
    plan: Plan = [ALWAYS, [(0.0, 70.0), (90.0, 170.0)]]
    first, again = simulate(plan, seed=7), simulate(plan, seed=7)
    assert (first.goodput, first.trained, first.rounds) == (again.goodput, again.trained, again.rounds)


def test_a_budget_that_does_not_suffice_is_said() -> None:
    budget = Budget(CountingClock(), 4.0)
    with pytest.raises(OutOfTime, match="of 0:04:00 virtual time was all that fitted"):
        simulate_volunteers(2, [ALWAYS] * 2, small_run(), seed=1, budget=budget, on_progress=lambda words: None)


def test_hivemind_merges_what_its_groups_cover() -> None:
    plan: Plan = [[(0.0, 99_999.0)]] * 3 + [[(0.0, 500.0)]]
    result = simulate_hivemind(4, plan, seconds=900.0, interval=150.0, seed=1)
    assert 0.5 < result.goodput < result.goodput_while_on < 1.0
    assert 0.5 < result.largest_group <= 1.0 and result.rounds >= 4


def test_sizes_that_do_not_fit_are_left_out_and_the_others_are_there() -> None:
    said: list[str] = []
    options = GoodputOptions(peers=(2, 4000), hours=1.0, minutes=1.0)
    small, large = simulate_sizes(options, small_run(), CountingClock(), said.append)
    assert small.p2ptrain is not None and small.hivemind is not None and small.left_out == {}
    assert large.p2ptrain is None and large.hivemind is None and list(large.left_out) == ["p2ptrain", "hivemind"]
    assert "it needs about" in large.left_out["p2ptrain"] and "are left" in large.left_out["hivemind"]
    assert large.all_reduce.goodput < large.local_sgd.goodput < large.time_on
    assert said and said[0].startswith("2 peers: 0:01:00 of 0:04:00 virtual time") and "to go" in said[0]
