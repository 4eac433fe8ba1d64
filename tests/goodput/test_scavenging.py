"""Chips that are there for half of the work: ideal for decoupled learners, a loss for one job until there are many."""

import pytest

from p2ptrain.goodput import published
from p2ptrain.goodput.scavenging import Scavenging, ideal_time, simulate_scavenging


def test_the_papers_times() -> None:
    for name, times in simulate_scavenging(seed=1).items():
        assert times == pytest.approx(published.SCAVENGING_TIME[name], abs=0.04)


def test_decoupled_is_near_the_ideal_and_one_job_is_slower_than_without_the_chips() -> None:
    times = simulate_scavenging(seed=2)
    ideal = [ideal_time(extra) for extra in published.EXTRA_COMPUTE]
    assert ideal == pytest.approx([1.0, 0.9, 0.8333, 0.75, 0.625], abs=1e-4)
    assert all(0.0 <= ours - best < 0.01 for ours, best in zip(times["decoupled"], ideal, strict=True))
    assert times["data parallel"][1] > 1.0 > times["data parallel"][4]


def test_without_costs_both_are_ideal() -> None:
    free = Scavenging(reshard_seconds=0.0, copy_seconds=0.0)
    ideal = [ideal_time(extra) for extra in published.EXTRA_COMPUTE]
    for times in simulate_scavenging(seed=3, model=free).values():
        assert times == pytest.approx(ideal, abs=1e-6)
