"""The judge, on swarms that never ran: every measure from events that were written by hand."""

import math
from dataclasses import replace
from typing import Any

import pytest

from p2ptrain.config import FragmentsConfig, RunConfig
from p2ptrain.events import Event
from p2ptrain.simulate.judge import Observation, Summary, judge
from p2ptrain.simulate.lives import End, Life

CONFIG = RunConfig(fragments=FragmentsConfig(count=2))
GENESIS = "00"
STARTED_AT, STOPPED_AT = 1000.0, 1040.0  # wall time; peers train at 100 tokens, 10 steps a second


def peer_id(number: int) -> str:
    return f"peer-{number}"


def event(kind: str, at: float, **fields: Any) -> Event:
    return Event(kind, at, at - STARTED_AT, fields)


def training_life(number: int, *, born_at: float = STARTED_AT, until: float = STOPPED_AT) -> Life:
    """A life that starts at once and gives account every second; `until` is its last account."""
    life = Life(number=number, born_at=born_at)
    life.hear(
        [event("started", born_at, peer=peer_id(number), run="RUN"), event("training", born_at + 1, first_step=10)]
    )
    if number == 1:
        life.hear([event("validation", born_at, loss=5.5, version=0)])
    for second in range(1, int(until - born_at) + 1):
        life.hear([progress(born_at + second, steps=10 * second, drawn=[1_000_000 * number + int(born_at) + second])])
    return life


def progress(at: float, *, steps: int, drawn: list[int], pending: int = 0) -> Event:
    return event(
        "progress",
        at,
        inner_steps=steps,
        tokens=10 * steps,
        loss=2.0,
        utilisation=0.9,
        tokens_merged=0,
        pending=pending,
        drawn=drawn,
    )


def adopted(commit: str, parent: str, at: float, tokens: dict[int, int], *, fragment: int, version: int) -> Event:
    """What each adopter of a commit says; `tokens` by number of the peer."""
    return event(
        "adopted", at, fragment=fragment, version=version, commit=commit, parent=parent, committed_at=at,
        tokens={peer_id(number): count for number, count in tokens.items()}, total_work=version, included=True,
    )  # fmt: skip


def chain(fragment: int, *rounds: tuple[float, dict[int, int]]) -> list[Event]:
    """Return the adoptions of a chain, each round (seconds after the start, tokens by number)."""
    names = [GENESIS, *(f"f{fragment}v{version}" for version in range(1, len(rounds) + 1))]
    return [
        adopted(names[index + 1], names[index], STARTED_AT + seconds, tokens, fragment=fragment, version=index + 1)
        for index, (seconds, tokens) in enumerate(rounds)
    ]


def report(number: int, *, versions: int, trained: int, merged: int, pending: int = 0, **changes: Any) -> Event:
    heads = [
        {"fragment": fragment, "version": versions, "commit": f"f{fragment}v{versions}" if versions else GENESIS,
         "total_work": versions, "state": "s", "anchor": f"anchor-{fragment}"}
        for fragment in range(2)
    ]  # fmt: skip
    fields: dict[str, Any] = {
        "peer": peer_id(number), "inner_steps": trained // 10, "tokens": trained, "heads": heads, "validation_loss": 2.5,
        "tallies": [{"trained": trained, "merged": merged, "pending": pending, "dropped": {}}] * 2, "utilisation": 0.9,
    }  # fmt: skip
    return event("report", STOPPED_AT + 5, **{**fields, **changes})


def seen(lives: list[Life], **changes: Any) -> Observation:
    numbers = sorted({life.number for life in lives})
    fields: dict[str, Any] = {
        "config": CONFIG, "num_peers": len(numbers), "expected": numbers, "lives": lives, "trained_from": STARTED_AT,
        "stopped_at": STOPPED_AT, "reports_from": STOPPED_AT,
    }  # fmt: skip
    return Observation(**{**fields, **changes})


def two_peers_in_harmony() -> list[Life]:
    """Two peers that trained 4,000 tokens each, all of it merged in two rounds of each fragment."""
    lives = [training_life(number) for number in (1, 2)]
    for fragment in range(2):
        commits = chain(fragment, (20, {1: 2000, 2: 2000}), (39, {1: 2000, 2: 2000}))
        for life in lives:
            life.hear(commits)
    for life in lives:
        life.hear([report(life.number, versions=2, trained=4000, merged=4000)])
    return lives


def with_report(life: Life, **changes: Any) -> Life:
    """Return the life with another last report."""
    last = life.last("report")
    assert last is not None
    other = Life(number=life.number, born_at=life.born_at, ended_at=life.ended_at, end=life.end)
    other.hear([one for one in life.events if one.kind != "report"])
    other.hear([replace(last, fields={**last.fields, **changes})])
    return other


def killed(life: Life, at: float) -> Life:
    life.close(End.KILLED, at)
    return life


def conserved(summary: Summary) -> bool:
    accounted = summary["tokens_merged"] + summary["tokens_pending"] + sum(summary["tokens_dropped"].values())
    return abs(summary["tokens_trained"] - accounted) <= 2 and bool(summary["tokens_conserved"])


def test_a_swarm_in_harmony_gets_full_marks() -> None:
    summary = judge(seen(two_peers_in_harmony()))
    assert summary["anchors_agree"], summary["disagreements"]
    assert summary["anchors_compared"] == 4
    assert (summary["tokens_trained"], summary["tokens_merged"], summary["tokens_pending"]) == (8000, 8000, 0)
    assert summary["goodput"] == pytest.approx(1.0, abs=0.01)
    assert summary["participation"] == 1.0
    assert summary["utilisation"] == pytest.approx(0.9)
    assert summary["contributors_per_round"] == {"2": 4}
    assert (summary["rounds_committed"], summary["solo_rounds"], summary["forks"], summary["reorgs"]) == (4, 0, 0, 0)
    assert (summary["validation_loss_first"], summary["validation_loss_last"]) == (5.5, 2.5)
    assert (summary["run_id"], summary["num_double_windows"]) == ("RUN", 0)
    assert conserved(summary)


def test_each_peer_is_accounted_for() -> None:
    first, second = judge(seen(two_peers_in_harmony()))["peers"]
    assert (first["number"], first["peer_id"], second["peer_id"]) == (1, "peer-1", "peer-2")
    assert (first["inner_steps"], first["tokens"], first["tokens_merged"], first["rounds_joined"]) == (
        400,
        4000,
        4000,
        4,
    )
    assert (first["joined_at"], first["killed_at"]) == (0.0, [])
    assert first["heads"][1] == {"fragment": 1, "version": 2, "commit": "f1v2"}


def test_a_swarm_that_never_averages_has_no_goodput() -> None:
    lives = [training_life(number) for number in (1, 2)]
    for life in lives:
        life.hear([report(life.number, versions=0, trained=4000, merged=0, pending=4000)])
    summary = judge(seen(lives))
    assert summary["goodput"] == 0.0
    assert summary["participation"] == 0.0
    assert summary["tokens_pending"] == 8000
    assert conserved(summary)
    assert not summary["anchors_agree"]  # equal, but only because nobody ever moved


def test_commits_of_a_lost_fork_count_for_nothing() -> None:
    lives = two_peers_in_harmony()
    lives[0].hear([adopted("lost", "f0v1", STARTED_AT + 38, {1: 999}, fragment=0, version=2)])
    for life in lives:
        life.hear([event("fork", STARTED_AT + 39, fragment=0, version=2, a="f0v2", b="lost")])
    lives[1].hear([event("fork", STARTED_AT + 39, fragment=0, version=2, a="lost", b="f0v2")])
    lives[0].hear([event("reorg", STARTED_AT + 39, fragment=0, depth=1)])
    summary = judge(seen(lives))
    assert summary["tokens_merged"] == 8000
    assert summary["solo_rounds"] == 0
    assert (summary["forks"], summary["reorgs"]) == (1, 1)


def test_tokens_are_means_over_fragments() -> None:
    lives = [training_life(number) for number in (1, 2)]
    for life in lives:
        life.hear([*chain(0, (39, {1: 4000, 2: 4000})), *chain(1, (39, {1: 2000, 2: 2000}))])
        tallies = [
            {"trained": 4000, "merged": merged, "pending": 4000 - merged, "dropped": {}} for merged in (4000, 2000)
        ]
        life.hear([report(life.number, versions=1, trained=4000, merged=0, tallies=tallies)])
    summary = judge(seen(lives))
    assert (summary["tokens_merged"], summary["tokens_pending"]) == (6000, 2000)
    assert conserved(summary)


def a_swarm_with_a_killed_peer() -> list[Life]:
    """Peer 2 is killed after 20 s with 1,500 of 2,000 tokens merged, is back at 25 s and trains 1,500 more."""
    steady, before = training_life(1), killed(training_life(2, until=STARTED_AT + 20), STARTED_AT + 20)
    after = training_life(2, born_at=STARTED_AT + 25)
    for fragment in range(2):
        commits = chain(fragment, (15, {1: 1500, 2: 1500}), (39, {1: 2500, 2: 1500}))
        before.hear(commits[:1])
        after.hear(commits[1:])
        steady.hear(commits)
    steady.hear([report(1, versions=2, trained=4000, merged=4000)])
    after.hear([report(2, versions=2, trained=1500, merged=1500)])
    return [steady, before, after]


def test_what_died_with_a_killed_process_is_dropped_with_that_reason() -> None:
    summary = judge(seen(a_swarm_with_a_killed_peer()))
    assert summary["tokens_dropped"] == {"killed": 500}
    assert (summary["tokens_trained"], summary["tokens_merged"]) == (7500, 7000)
    assert conserved(summary)
    assert summary["anchors_agree"], summary["disagreements"]
    assert summary["peers"][1]["killed_at"] == [20.0]
    assert summary["peers"][1]["inner_steps"] == 200 + 150


def test_a_kill_costs_goodput_what_it_kept_the_swarm_from_merging() -> None:
    summary = judge(seen(a_swarm_with_a_killed_peer()))
    assert summary["goodput"] == pytest.approx(
        7000 / 8000, abs=0.01
    )  # undisturbed: two peers, 40 s, 100 tokens a second


def test_chains_know_better_than_the_last_account_of_a_killed_process() -> None:
    steady, before, after = a_swarm_with_a_killed_peer()
    mute = Life(number=2, born_at=before.born_at)
    mute.hear([one for one in before.events if one.kind != "progress" or one.at < STARTED_AT + 12])
    summary = judge(seen([steady, killed(mute, STARTED_AT + 20), after]))
    assert summary["tokens_merged"] == 7000
    assert summary["tokens_dropped"] == {}
    assert conserved(summary)


def test_tokens_that_no_account_explains_stay_visible() -> None:
    first, second = two_peers_in_harmony()
    tallies = [{"trained": 4300, "merged": 4000, "pending": 0, "dropped": {}}] * 2
    summary = judge(seen([first, with_report(second, tallies=tallies)]))
    assert summary["tokens_balance"] == 300
    assert not summary["tokens_conserved"]


def test_dropped_tokens_keep_their_reason() -> None:
    first, second = two_peers_in_harmony()
    tallies = [{"trained": 4300, "merged": 4000, "pending": 0, "dropped": {"stale": 300}}] * 2
    summary = judge(seen([first, with_report(second, tallies=tallies)]))
    assert summary["tokens_dropped"] == {"stale": 300}
    assert conserved(summary)


@pytest.mark.parametrize("what", ["anchor", "commit"])
def test_one_peer_that_differs_ends_the_agreement(what: str) -> None:
    first, second = two_peers_in_harmony()
    heads = [dict(head) for head in second.latest("report", "heads", [])]
    heads[1][what] = "other"
    summary = judge(seen([first, with_report(second, heads=heads)]))
    assert not summary["anchors_agree"]
    assert summary["disagreements"][0].startswith("fragment 1: not everybody has the same")


def test_a_late_joiner_that_is_missing_ends_the_agreement() -> None:
    summary = judge(seen(two_peers_in_harmony(), expected=[1, 2, 3]))
    assert not summary["anchors_agree"]
    assert summary["disagreements"] == ["peer 3 was not there at the end"]


def test_a_peer_that_ended_by_itself_ends_the_agreement() -> None:
    first, second = two_peers_in_harmony()
    second.close(End.CRASHED, STOPPED_AT + 6)
    summary = judge(seen([first, second]))
    assert not summary["anchors_agree"]
    assert summary["num_crashed"] == 1


def test_a_report_from_before_the_end_does_not_count() -> None:
    summary = judge(seen(two_peers_in_harmony(), reports_from=STOPPED_AT + 6))
    assert not summary["anchors_agree"]


def test_after_the_last_fault_there_must_be_a_commit_of_two() -> None:
    steady, before, after = a_swarm_with_a_killed_peer()
    late = killed(training_life(3, until=STARTED_AT + 39), STARTED_AT + 39.5)
    summary = judge(seen([steady, before, after, late], expected=[1, 2]))
    assert not summary["anchors_agree"]
    assert "no commit of two or more contributors after the last fault" in summary["disagreements"][0]


def test_a_swarm_of_one_need_not_meet_anybody() -> None:
    life = training_life(1)
    for fragment in range(2):
        life.hear(chain(fragment, (39, {1: 4000})))
    life.hear([report(1, versions=1, trained=4000, merged=4000)])
    summary = judge(seen([life]))
    assert summary["anchors_agree"], summary["disagreements"]
    assert summary["solo_rounds"] == 2
    assert summary["goodput"] == pytest.approx(1.0, abs=0.01)


def test_participation_waits_for_a_newcomer_one_interval() -> None:
    # BUG-A14: only trainers count, and only those that could have been in the round
    lives = two_peers_in_harmony()
    newcomer = training_life(3, born_at=STARTED_AT + 37)  # its first step is made one second before the commit at 39 s
    helper = Life(number=4, born_at=STARTED_AT)
    helper.hear([event("started", STARTED_AT, peer=peer_id(4), run="RUN")])
    assert judge(seen([*lives, newcomer, helper]))["participation"] == 1.0
    idle = training_life(5, born_at=STARTED_AT + 21)  # trains for 18 s and is in no round
    assert judge(seen([*lives, idle]))["participation"] == pytest.approx((1 + 2 / 3) / 2, abs=1e-3)


def test_rounds_after_the_stop_are_no_matter_of_participation() -> None:
    lives = [training_life(number) for number in (1, 2)]
    for life in lives:
        for fragment in range(2):
            life.hear(chain(fragment, (39, {1: 3900, 2: 3900}), (41, {1: 100})))
    lives[0].hear([report(1, versions=2, trained=4000, merged=4000)])
    lives[1].hear([report(2, versions=2, trained=4000, merged=3900, pending=100)])
    summary = judge(seen(lives))
    assert summary["participation"] == 1.0
    assert (summary["rounds_committed"], summary["solo_rounds"]) == (4, 2)


def test_attempts_without_work_after_the_stop_are_not_aborted_rounds() -> None:
    lives = two_peers_in_harmony()
    lives[0].hear(
        [event("round-aborted", at, fragment=0, version=3, reason="") for at in (STOPPED_AT - 9, STOPPED_AT + 1)]
    )
    assert judge(seen(lives))["rounds_aborted"] == 1


def test_a_window_is_double_only_if_its_first_drawer_was_alive() -> None:
    heir, dead = training_life(1), killed(training_life(2, until=STARTED_AT + 10), STARTED_AT + 10.5)
    dead.hear([progress(STARTED_AT + 10, steps=100, drawn=[7, 8])])
    heir.hear([progress(STARTED_AT + 10.2, steps=102, drawn=[7]), progress(STARTED_AT + 12, steps=120, drawn=[8])])
    assert judge(seen([heir, dead]))["num_double_windows"] == 1


def test_a_gap_in_a_chain_is_reported() -> None:
    lives = two_peers_in_harmony()
    gappy = []
    for life in lives:
        other = Life(number=life.number, born_at=life.born_at)
        other.hear([one for one in life.events if one.fields.get("commit") != "f0v1"])
        gappy.append(other)
    summary = judge(seen(gappy))
    assert summary["rounds_missing"] == 1
    assert (
        summary["tokens_balance"] == 2000
    )  # 2,000 tokens of each peer are in the commit that nobody knows, in one of two fragments


def test_an_interrupted_simulation_never_agrees() -> None:
    summary = judge(seen(two_peers_in_harmony(), interrupted=True))
    assert not summary["anchors_agree"]
    assert summary["interrupted"]


def test_a_swarm_that_never_began_can_be_judged() -> None:
    summary = judge(seen([Life(number=1, born_at=STARTED_AT)], trained_from=STOPPED_AT))
    assert (summary["tokens_trained"], summary["goodput"], summary["peers"]) == (0, 0.0, [])
    assert summary["validation_loss_last"] is None


def test_a_loss_that_is_no_number_is_null() -> None:
    lives = [with_report(life, validation_loss=math.nan) for life in two_peers_in_harmony()]
    assert judge(seen(lives))["validation_loss_last"] is None
