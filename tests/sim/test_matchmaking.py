"""hivemind's own matchmaking in virtual time: its groups under skewed clocks and under churn."""

import asyncio
import os
import subprocess
import sys

import pytest

from p2ptrain.sim.matchmaking import MatchmakingResult, Plan, simulate_matchmaking


def eight_peers(*, skew: float, seed: int = 1) -> MatchmakingResult:
    return simulate_matchmaking(
        8, seed=seed, hours=0.05, interval=20.0, skew=skew, target_group_size=8, averaging_timeout=30.0
    )


@pytest.mark.parametrize("skew", [0.0, 2.0, 4.0])
def test_clocks_that_are_a_few_seconds_apart_make_one_group(skew: float) -> None:
    result = eight_peers(skew=skew)
    assert len(result.rounds) >= 6
    for one in result.rounds:
        assert one.group_sizes == (8,) and one.num_merged == 8
        assert one.seconds < 5.0  # one of them for the all-reduce
    assert result.participation == result.largest_group_share == 1.0


@pytest.mark.parametrize("skew", [8.0, 12.0])
def test_clocks_that_are_farther_apart_split_the_swarm(skew: float) -> None:
    result = eight_peers(skew=skew)
    for one in result.rounds:
        assert len(one.group_sizes) > 1
        assert one.seconds > 6.0
    assert result.largest_group_share < 0.8


def test_the_farther_the_smaller_the_groups_and_the_longer_the_rounds() -> None:
    results = [eight_peers(skew=skew) for skew in (0.0, 8.0, 20.0)]
    shares = [result.largest_group_share for result in results]
    goodputs = [result.goodput for result in results]
    assert shares == sorted(shares, reverse=True) and shares[0] > shares[1] > shares[2]
    assert goodputs[0] > goodputs[1] > goodputs[2]
    assert any(one.num_alone for one in results[2].rounds)  # found nobody in 30 s


def with_a_death_at(seconds: float, *, all_reduce_timeout: float | None) -> MatchmakingResult:
    """Return what becomes of four peers that begin their first round at 100 s and reduce for ten seconds."""
    plan: Plan = [[(0.0, seconds)], *[[(0.0, 3600.0)]] * 3]
    return simulate_matchmaking(
        4, seed=2, hours=0.08, interval=100.0, plan=plan, all_reduce_seconds=10.0, target_group_size=4,
        all_reduce_timeout=all_reduce_timeout,
    )  # fmt: skip


def test_a_death_in_the_all_reduce_costs_the_others_their_time_out_and_their_work() -> None:
    first, *later = with_a_death_at(106.0, all_reduce_timeout=40.0).rounds
    assert first.group_sizes == (4,)
    assert (first.num_merged, first.num_failed, first.num_died) == (0, 3, 1)
    assert first.seconds > 40.0
    assert [one.num_merged for one in later] == [3] * len(later) and later


def test_without_a_time_out_a_death_in_the_all_reduce_hangs_the_others_for_ever() -> None:
    result = with_a_death_at(106.0, all_reduce_timeout=None)
    first, *later = result.rounds
    assert (first.num_merged, first.num_failed, first.num_died) == (0, 0, 4)
    assert all(one.num_present == 0 for one in later)
    assert result.merged_seconds == 0.0


def test_a_death_during_matchmaking_does_not_stop_the_others_for_longer_than_their_time_outs() -> None:
    for seconds in (100.7, 101.5, 102.5):
        first, *later = with_a_death_at(seconds, all_reduce_timeout=40.0).rounds
        assert first.num_merged + first.num_failed + first.num_alone == 3
        assert first.seconds < 60.0 + 40.0 + 5.0
        assert later[-1].num_merged == 3


def test_churn_counts_what_is_merged_and_what_is_lost() -> None:
    result = simulate_matchmaking(
        12, seed=3, hours=1.0, interval=120.0,
        sessions=(lambda chance: chance.expovariate(1 / 1200.0), lambda chance: chance.expovariate(1 / 600.0)),
    )  # fmt: skip
    assert len(result.rounds) > 20
    assert 0.2 < result.goodput < result.goodput_while_on < 1.0
    assert result.merged_seconds < result.trained_seconds < result.on_seconds < result.possible_seconds
    for one in result.rounds:
        assert one.num_merged + one.num_failed + one.num_alone + one.num_died == one.num_present
        assert one.num_present <= one.num_alive
    assert sum(one.num_died for one in result.rounds) < sum(one.num_merged for one in result.rounds)


def test_nothing_is_left_running() -> None:
    leftovers: list[asyncio.Task[object]] = []
    original = asyncio.Runner.close

    def close(runner: asyncio.Runner) -> None:
        leftovers.extend(asyncio.all_tasks(runner.get_loop()))
        original(runner)

    asyncio.Runner.close = close  # type: ignore[method-assign]
    try:
        eight_peers(skew=12.0)
    finally:
        asyncio.Runner.close = original  # type: ignore[method-assign]
    assert not leftovers


def test_one_seed_gives_one_result_in_processes_that_hash_differently() -> None:
    script = (
        "from p2ptrain.sim.matchmaking import simulate_matchmaking\n"
        "on = lambda chance: chance.expovariate(1 / 600.0)\n"
        "print(simulate_matchmaking(10, seed=4, hours=0.3, interval=60.0, sessions=(on, on), skew=5.0))"
    )
    told = [
        subprocess.run(
            [sys.executable, "-c", script], env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True, text=True, check=True,
        ).stdout
        for hash_seed in ("1", "4242")
    ]  # fmt: skip
    assert told[0] == told[1] and "num_merged" in told[0]


def test_no_peers_and_no_time_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one peer"):
        simulate_matchmaking(0, seed=1, hours=1.0)
