"""Learners of two speeds: waiting for all costs time, waiting for nobody costs contributions, grace neither."""

import pytest

from p2ptrain.goodput import published
from p2ptrain.goodput.heterogeneity import MixedLearners, simulate_policies


@pytest.mark.parametrize("num_slow", [1, 4])
@pytest.mark.parametrize("seed", [1, 2])
def test_grace_hears_almost_all_and_costs_nothing(num_slow: int, seed: int) -> None:
    wait_for_all, no_grace, grace = simulate_policies(seed=seed, mix=MixedLearners(num_slow=num_slow))
    assert wait_for_all.goodput < 0.92
    assert no_grace.goodput > 0.99 and grace.goodput > 0.99
    assert no_grace.contributions < 1.5 < 7.0 < grace.contributions < wait_for_all.contributions == 8.0
    assert no_grace.slow_share < 0.05 < 0.75 < grace.slow_share < grace.fast_share


def test_the_goodput_is_the_papers() -> None:
    for result in simulate_policies(seed=3):
        assert 100.0 * result.goodput == pytest.approx(published.POLICIES[result.name][0], abs=1.0)


def test_equal_learners_without_jitter_lose_nothing_to_waiting() -> None:
    mix = MixedLearners(num_slow=0, jitter=0.0)
    assert [result.goodput for result in simulate_policies(seed=4, mix=mix)] == [1.0, 1.0, 1.0]
    assert simulate_policies(seed=4, mix=mix)[2].contributions == 8.0


def test_a_merge_that_takes_long_leaves_no_room_for_grace() -> None:
    quick, slow = (simulate_policies(seed=5, mix=MixedLearners(sync_time=time))[2] for time in (0.2, 1.9))
    assert slow.contributions < quick.contributions - 2.0
    assert slow.goodput > 0.98
