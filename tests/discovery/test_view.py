"""The partial view: a join of records, bounded, and the exchange that makes two views alike."""

import random
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.discovery.records import MemberRecord
from p2ptrain.discovery.view import MAX_MEMBERS, SHUFFLE, Entry, PartialView
from p2ptrain.ids import PeerId, RunId, digest
from p2ptrain.net.identity import Identity

NOW = 1_800_000_000.0
RUN_ID = RunId(digest("test", b"run"))
OWN = Identity(bytes(32)).peer_id
CHANCE = random.Random(0)


@cache
def identity(number: int) -> Identity:
    return Identity(number.to_bytes(32, "big"))


@cache
def entry(number: int, *, age: float = 0.0, sequence: int = 0, gone: bool = False, step: int = 0) -> Entry:
    record = MemberRecord(
        peer=identity(number).peer_id,
        run_id=RUN_ID,
        addresses=(),
        role="trainer",
        issued_at=NOW - age,
        sequence=sequence,
        lifetime=600.0,
        gone=gone,
        num_inner_steps=step,
    )
    return Entry(record, record.to_bytes(identity(number)))


def view_of(*entries: Entry, capacity: int = MAX_MEMBERS) -> PartialView:
    view = PartialView(OWN, capacity)
    view.merge(entries, random.Random(0))
    return view


entries = st.builds(
    entry,
    st.integers(0, 5),
    age=st.sampled_from([0.0, 1.0, 2.0]),
    sequence=st.integers(0, 2),
    gone=st.booleans(),
    step=st.integers(0, 1),
)


@given(st.lists(entries), st.randoms())
def test_the_order_of_arrival_makes_no_difference(arrivals: list[Entry], chance: random.Random) -> None:
    shuffled = chance.sample(arrivals, len(arrivals))
    assert list(view_of(*arrivals)) == list(view_of(*shuffled))


@given(st.lists(entries))
def test_merging_again_changes_nothing(arrivals: list[Entry]) -> None:
    view = view_of(*arrivals)
    before = list(view)
    assert view.merge(arrivals, random.Random(0)) == []
    assert list(view) == before


@given(st.lists(entries), st.lists(entries))
def test_two_views_are_alike_after_one_exchange(left: list[Entry], right: list[Entry]) -> None:
    ours, theirs = view_of(*left), view_of(*right)
    for_them, wanted = ours.compare(theirs.summary(NOW), NOW, CHANCE)
    for_us = theirs.tagged(wanted, NOW)
    theirs.merge(for_them, random.Random(0))
    ours.merge(for_us, random.Random(0))
    assert {known.record.age_key: known.peer for known in ours} == {
        known.record.age_key: known.peer for known in theirs
    }
    assert theirs.compare(ours.summary(NOW), NOW, CHANCE) == ([], [])


def test_the_newest_record_of_a_peer_wins() -> None:
    view = view_of(entry(1, age=5.0), entry(1, age=1.0), entry(1, age=3.0))
    assert list(view) == [entry(1, age=1.0)]


# BUG-D16
def test_a_farewell_wins_at_equal_age() -> None:
    view = view_of(entry(1, gone=True), entry(1))
    assert list(view) == [entry(1, gone=True)]


# BUG-D12
def test_a_peer_never_lists_itself() -> None:
    assert list(view_of(entry(0), entry(1))) == [entry(1)]


def test_a_full_view_forgets_somebody_at_random_and_stays_at_its_capacity() -> None:
    survivors: set[PeerId] = set()
    for seed in range(20):
        view = view_of(*(entry(number) for number in range(1, 5)), capacity=4)
        view.merge([entry(5)], random.Random(seed))
        assert len(view) == 4
        survivors.update(known.peer for known in view)
    assert len(survivors) == 5


def test_a_full_view_keeps_the_peers_we_are_connected_with_and_forgets_farewells_first() -> None:
    view = view_of(entry(1), entry(2), entry(3, gone=True), capacity=3)
    view.merge([entry(4)], random.Random(0), keep={entry(1).peer})
    assert {known.peer for known in view} == {entry(1).peer, entry(2).peer, entry(4).peer}
    view.merge([entry(5), entry(6), entry(7)], random.Random(0), keep={entry(1).peer})
    assert view.get(entry(1).peer) is not None


def test_a_full_view_takes_in_few_strangers_at_a_time_but_every_newer_record() -> None:
    view = view_of(*(entry(number, age=1.0) for number in range(1, 5)), capacity=4)
    news = view.merge([entry(number) for number in range(1, 20)], random.Random(0))
    assert len(view) == 4
    assert len([known for known in view if known.record.age_key[0] == NOW]) == 4
    assert len([known for known in news if known.peer not in {entry(number).peer for number in range(1, 5)}]) <= SHUFFLE


def test_two_full_views_that_share_nobody_exchange_a_few_strangers() -> None:
    ours = view_of(*(entry(number) for number in range(1, MAX_MEMBERS + 1)))
    theirs = view_of(*(entry(number) for number in range(1001, MAX_MEMBERS + 1001)))
    lacking, wanted = ours.compare(theirs.summary(NOW), NOW, CHANCE)
    assert len(lacking) == len(wanted) == SHUFFLE


def test_an_expired_record_is_forgotten_unless_its_peer_is_connected() -> None:
    view = view_of(entry(1, age=100.0), entry(2, age=100.0), entry(3))
    view.expire(NOW + 550.0, keep={entry(1).peer})
    assert {known.peer for known in view} == {entry(1).peer, entry(3).peer}


def test_an_expired_record_is_not_passed_on() -> None:
    view = view_of(entry(1, age=100.0))
    assert view.summary(NOW + 550.0) == b""
    assert view.compare(b"", NOW + 550.0, CHANCE) == ([], [])


def test_the_own_record_is_passed_on_but_not_listed() -> None:
    ours, theirs = view_of(), view_of()
    ours.own = entry(0)
    assert list(ours) == []
    assert ours.compare(theirs.summary(NOW), NOW, CHANCE) == ([entry(0)], [])
    theirs.merge([entry(1)], random.Random(0))
    assert ours.compare(theirs.summary(NOW), NOW, CHANCE) == ([entry(0)], [entry(1).tag])
    assert view_of(entry(0)).compare(ours.summary(NOW), NOW, CHANCE) == ([], [entry(0).tag])


@given(st.binary(max_size=4000))
def test_no_summary_breaks_the_comparison(summary: bytes) -> None:
    view = view_of(entry(1), entry(2))
    try:
        lacking, wanted = view.compare(summary, NOW, CHANCE)
    except ValueError:
        return
    assert len(lacking) == 2 and len(wanted) <= MAX_MEMBERS + 1


def test_a_summary_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError):
        view_of().compare(bytes(21 * (MAX_MEMBERS + 2)), NOW, CHANCE)
