"""When processes are killed, and which."""

import pytest

from p2ptrain.events import Event
from p2ptrain.simulate.faults import KILL_LEADER, KILL_ONE, Fault, choose_victim, plan_faults
from p2ptrain.simulate.lives import End, Life


def life(number: int, *, up: bool = True, leads: bool = False) -> Life:
    one = Life(number=number, born_at=0.0)
    if up:
        one.hear([Event("started", 0.0, 0.0, {"peer": f"peer-{number}"})])
    if leads:
        one.hear([Event("round-called", 1.0, 1.0, {"fragment": 0, "version": 5})])
    return one


def test_faults_begin_after_the_first_commit_and_end_before_the_stop() -> None:
    faults = plan_faults(first_commit_at=3.0, stop_at=120.0, kill_one_every=20.0, kill_leader_every=35.0)
    assert [(fault.due_at, fault.kind) for fault in faults] == [
        (23.0, KILL_LEADER), (23.0, KILL_ONE), (43.0, KILL_ONE), (58.0, KILL_LEADER), (63.0, KILL_ONE), (83.0, KILL_ONE),
        (93.0, KILL_LEADER), (103.0, KILL_ONE),
    ]  # fmt: skip


def test_without_intervals_nobody_is_killed() -> None:
    assert plan_faults(first_commit_at=3.0, stop_at=120.0, kill_one_every=None, kill_leader_every=None) == []


def test_the_choice_follows_from_the_seed() -> None:
    def victims(seed: int) -> list[int]:
        chosen = [
            choose_victim(Fault(0.0, KILL_ONE, turn), [life(number) for number in range(1, 9)], seed=seed)
            for turn in range(12)
        ]
        return [one.number for one in chosen if one is not None]

    assert victims(7) == victims(7)
    assert victims(7) != victims(8)
    assert len(set(victims(7))) > 3


def test_the_choice_does_not_depend_on_the_order_of_lives() -> None:
    lives = [life(number) for number in range(1, 6)]
    fault = Fault(0.0, KILL_ONE, 3)
    assert choose_victim(fault, lives, seed=1) is choose_victim(fault, lives[::-1], seed=1)


def test_only_the_leader_of_an_open_round_is_killed_as_a_leader() -> None:
    follower, leader = life(1), life(2, leads=True)
    assert choose_victim(Fault(0.0, KILL_LEADER, 0), [follower, leader], seed=0) is leader
    assert choose_victim(Fault(0.0, KILL_LEADER, 0), [follower, life(2)], seed=0) is None


def test_the_last_one_standing_is_spared() -> None:
    dead = life(1)
    dead.close(End.KILLED, 1.0)
    assert choose_victim(Fault(0.0, KILL_ONE, 0), [dead, life(2), life(3, up=False)], seed=0) is None


@pytest.mark.parametrize(
    ("kind", "version", "is_open"),
    [
        ("round-committed", 5, False),
        ("round-aborted", 5, False),
        ("adopted", 5, False),
        ("adopted", 6, False),
        ("adopted", 4, True),
    ],
)
def test_a_round_is_open_from_the_call_until_it_ends_or_is_overtaken(kind: str, version: int, is_open: bool) -> None:
    leader = life(1, leads=True)
    leader.hear([Event(kind, 2.0, 2.0, {"fragment": 0, "version": version})])
    assert bool(leader.open_rounds) is is_open


def test_a_round_that_is_called_again_is_open_again() -> None:
    leader = life(1, leads=True)
    fields = {"fragment": 0, "version": 5}
    leader.hear([Event("round-aborted", 2.0, 2.0, fields), Event("round-called", 3.0, 3.0, fields)])
    assert leader.open_rounds == {(0, 5)}
