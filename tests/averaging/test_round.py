"""When a round opens and closes, told as stories with a clock in hand."""

import pytest

from p2ptrain.averaging.round import Abort, Call, Close, Decision, Phase, Round, RoundTimes, Wait, grace_window
from p2ptrain.ids import PeerId

A, B, C, D = (PeerId(name) for name in "abcd")
TIMES = RoundTimes(interval=10.0, lonely_window=30.0, grace_window=1.0, collect_timeout=5.0)


def a_round(parent_contributors: int = 4, least_quorum: int = 1, max_members: int = 64) -> Round:
    return Round(
        opened_at=100.0,
        times=TIMES,
        parent_contributors=parent_contributors,
        least_quorum=least_quorum,
        max_members=max_members,
    )


def called(this_round: Round, *members: PeerId, at: float = 110.0) -> Round:
    for member in members:
        this_round.register(member, at - 1)
    decision = this_round.decide(at)
    assert isinstance(decision, Call), decision
    this_round.call(decision, at)
    return this_round


def test_nobody_is_called_before_the_interval_is_over() -> None:
    this_round = a_round()
    for member in (A, B, C, D):
        this_round.register(member, 101.0)
    assert this_round.decide(109.9) == Wait(110.0, "not due for 0.10 s")
    assert isinstance(this_round.decide(110.0), Call)


def test_who_is_draining_waits_neither_for_the_interval_nor_for_a_majority() -> None:
    this_round = a_round(parent_contributors=4)
    this_round.register(A, 101.0)
    this_round.in_a_hurry = True
    assert isinstance(this_round.decide(101.0), Call)


def test_half_of_the_last_rounds_members_are_needed_until_the_lonely_window_has_passed() -> None:
    this_round = a_round(parent_contributors=4)
    this_round.register(A, 101.0)
    assert this_round.decide(110.0) == Wait(130.0, "1 of 2 members needed for a quorum")
    assert isinstance(this_round.decide(130.0), Call)


def test_a_lone_peer_that_was_alone_before_is_not_delayed() -> None:  # BUG-A01
    this_round = called(a_round(parent_contributors=1), A)
    this_round.arrive(A, 110.0)
    assert this_round.decide(110.0) == Close((A,), "all 1 members contributed")


def test_the_round_closes_at_once_when_all_have_contributed() -> None:
    this_round = called(a_round(), A, B)
    this_round.arrive(B, 110.1)
    this_round.arrive(A, 110.2)
    assert this_round.decide(110.2) == Close((A, B), "all 2 members contributed")


def test_late_members_are_waited_for_until_the_grace_window_ends() -> None:
    this_round = called(a_round(), A, B, C, D)
    this_round.arrive(A, 110.1)
    this_round.arrive(B, 110.2)
    assert this_round.decide(110.3) == Wait(111.2, "quorum reached, waiting for 2 late members")
    this_round.arrive(C, 111.0)
    assert this_round.decide(111.2) == Close((A, B, C), "grace window ended with 3 of 4 members")


def test_a_lost_member_is_not_waited_for() -> None:
    this_round = called(a_round(), A, B, C)
    this_round.arrive(A, 110.1)
    this_round.arrive(B, 110.1)
    this_round.leave(C, "connection lost")
    assert this_round.decide(110.1) == Close((A, B), "all 2 members contributed")
    assert this_round.absent == {C: "connection lost"}


def test_a_contribution_counts_although_its_peer_died_afterwards() -> None:
    this_round = called(a_round(), A, B)
    this_round.arrive(A, 110.1)
    this_round.leave(A, "connection lost")
    this_round.arrive(B, 110.2)
    assert this_round.decide(110.2) == Close((A, B), "all 2 members contributed")


def test_a_round_in_which_nobody_has_work_is_aborted() -> None:
    this_round = called(a_round(parent_contributors=1), A)
    this_round.leave(A, "nothing to contribute")
    assert this_round.decide(110.1) == Abort("no member had work to contribute")


def test_a_member_with_long_steps_is_called_that_much_earlier() -> None:
    this_round = a_round()
    this_round.register(A, 101.0, step_seconds=3.0)
    this_round.register(B, 101.0, step_seconds=0.1)
    assert this_round.decide(106.0) == Wait(107.0, "not due for 4.00 s")
    early = this_round.decide(107.0)
    assert early == Call((A,), "1 members need long to answer", early=True)
    this_round.call(early, 107.0)
    assert this_round.decide(108.0) == Wait(110.0, "not due for 2.00 s") and this_round.accepts(A)
    this_round.arrive(A, 109.0)
    rest = this_round.decide(110.0)
    assert isinstance(rest, Call) and rest.members == (B,) and not rest.early
    this_round.call(rest, 110.0)
    this_round.arrive(B, 110.1)
    assert this_round.decide(110.1) == Close((A, B), "all 2 members contributed")


def test_a_member_that_declines_stays_registered_and_one_that_is_lost_does_not() -> None:
    this_round = called(a_round(), A, B, C)
    this_round.decline(A, "too few steps")
    this_round.leave(B, "connection lost")
    assert set(this_round.registered) == {A, C} and this_round.absent == {A: "too few steps", B: "connection lost"}


def test_an_attempt_after_a_failed_one_waits_a_little_even_in_a_hurry() -> None:
    this_round = a_round(parent_contributors=1)
    this_round.not_before, this_round.in_a_hurry = 112.0, True
    this_round.register(A, 101.0)
    assert this_round.decide(111.0) == Wait(112.0, "not due for 1.00 s")
    assert isinstance(this_round.decide(112.0), Call)


def test_a_round_that_lost_its_quorum_is_aborted_and_one_without_answers_is_given_up() -> None:
    this_round = called(a_round(parent_contributors=4), A, B)
    this_round.arrive(A, 110.1)
    assert this_round.decide(114.9) == Wait(115.0, "1 of 2 contributions needed for a quorum")
    assert isinstance(this_round.decide(115.0), Abort)
    this_round.leave(B, "connection lost")
    assert isinstance(this_round.decide(110.2), Abort)


def test_who_was_not_called_or_comes_after_the_close_is_not_accepted() -> None:
    this_round = called(a_round(), A, B)
    this_round.register(C, 110.5)
    assert this_round.accepts(A) and not this_round.accepts(C)
    this_round.close()
    assert not this_round.accepts(A)
    this_round.arrive(A, 110.6)
    assert this_round.phase is Phase.CLOSED and this_round.decide(111.0) == Wait(None, "the round is closed")
    assert isinstance(this_round.decide(1e9), Wait)


def test_more_members_than_allowed_are_called_in_the_order_in_which_they_registered() -> None:
    this_round = a_round(parent_contributors=1, max_members=2)
    for member, at in ((C, 101.0), (A, 102.0), (B, 103.0)):
        this_round.register(member, at)
    decision: Decision = this_round.decide(110.0)
    assert isinstance(decision, Call) and decision.members == (A, C)


@pytest.mark.parametrize("clock_step", [0.0, 1.0])
def test_equal_times_are_no_ties(clock_step: float) -> None:  # BUG-A03: a clock that ticks in whole seconds
    this_round = a_round(parent_contributors=2)
    for member in (B, A):
        this_round.register(member, 101.0 + clock_step)
    decision = this_round.decide(110.0)
    assert isinstance(decision, Call) and decision.members == (A, B)


def test_the_grace_window_follows_recent_lateness_within_bounds() -> None:  # BUG-A06
    assert grace_window([], step_seconds=0.1, longest=2.0) == 2.0
    assert grace_window([0.5] * 10, step_seconds=0.1, longest=2.0) == 0.5
    assert grace_window([0.001] * 10, step_seconds=0.1, longest=2.0) == pytest.approx(0.15)
    assert grace_window([60.0] * 10, step_seconds=0.1, longest=2.0) == 2.0
    assert grace_window([0.1] * 8 + [1.0] * 2, step_seconds=0.1, longest=2.0) == 1.0


def test_an_early_contribution_does_not_start_the_grace_window_before_the_others_are_called() -> None:
    this_round = a_round(parent_contributors=1)
    this_round.register(A, 101.0, step_seconds=3.0)
    this_round.register(B, 101.0)
    this_round.call(Call((A,), "", early=True), 107.0)
    this_round.arrive(A, 108.0)
    this_round.call(Call((B,), ""), 110.0)
    assert this_round.decide(110.5) == Wait(111.0, "quorum reached, waiting for 1 late members")
