"""Peers share the windows of a run without a word about it."""

from collections import Counter
from collections.abc import Iterable
from itertools import combinations

import hypothesis.strategies as st
import numpy as np
from hypothesis import given, settings

from p2ptrain.ids import PeerId, RunId
from p2ptrain.training.cursor import MAX_POSITION, WindowCursor, count_double

RUN = RunId(b"r" * 32)
PEERS = [PeerId(f"peer-{index}") for index in range(8)]


def cursor(peer: PeerId, *, num_windows: int = 1000, position: int = 0, run_id: RunId = RUN) -> WindowCursor:
    return WindowCursor(run_id=run_id, me=peer, num_windows=num_windows, position=position)


def drawn_below(end: int, peers: Iterable[PeerId], num_windows: int) -> dict[PeerId, list[int]]:
    """Return every position below `end` that each of these peers draws, while they all know each other."""
    peers = list(peers)
    drawn: dict[PeerId, list[int]] = {}
    for peer in peers:
        walker, drawn[peer] = cursor(peer, num_windows=num_windows), []
        while walker.position < end:
            drawn[peer] += walker.draw(1, peers)[0]
        drawn[peer] = [position for position in drawn[peer] if position < end]
    return drawn


@given(num_windows=st.integers(1, 3000), epoch=st.integers(0, 1000))
def test_one_peer_alone_reads_every_window_once_per_epoch(num_windows: int, epoch: int) -> None:
    walker = cursor(PEERS[0], num_windows=num_windows, position=epoch * num_windows)
    assert sorted(walker.next_windows(num_windows, ())) == list(range(num_windows))
    assert walker.position == (epoch + 1) * num_windows


def test_every_epoch_has_another_order_and_a_restart_finds_the_same_one() -> None:  # BUG-DA06
    walker = cursor(PEERS[0])
    first, second = walker.next_windows(1000, ()), walker.next_windows(1000, ())
    assert sum(a == b for a, b in zip(first, second, strict=True)) < 20
    assert cursor(PEERS[0], position=1000).next_windows(1000, ()) == second
    assert cursor(PEERS[0], run_id=RunId(b"s" * 32)).next_windows(1000, ()) != first


def test_the_order_looks_random() -> None:
    windows = np.array(cursor(PEERS[0], num_windows=10_000).next_windows(10_000, ()))
    assert abs(np.corrcoef(windows[:-1], windows[1:])[0, 1]) < 0.05
    assert abs(np.corrcoef(np.arange(10_000), windows)[0, 1]) < 0.05


def test_four_peers_with_one_config_draw_different_windows() -> None:  # BUG-DA03
    drawn = {peer: set(cursor(peer, num_windows=100_000).next_windows(1000, PEERS[:4])) for peer in PEERS[:4]}
    assert all(drawn[a].isdisjoint(drawn[b]) for a, b in combinations(PEERS[:4], 2))


@settings(max_examples=40)
@given(num_peers=st.integers(1, 8), num_windows=st.integers(1, 300))
def test_while_views_agree_nothing_is_drawn_twice_and_nothing_is_skipped(num_peers: int, num_windows: int) -> None:
    drawn = drawn_below(500, PEERS[:num_peers], num_windows)
    assert sorted(position for positions in drawn.values() for position in positions) == list(range(500))


def test_a_thousand_peers_share_alike() -> None:
    peers = [PeerId(f"peer-{index}") for index in range(1000)]
    ends = []
    for peer in peers[:20]:
        walker = cursor(peer)
        walker.next_windows(50, peers)
        ends.append(walker.position)
    assert 0.8 < np.mean(ends) / 50_000 < 1.2


Event = tuple[str, int, int]
EVENTS = st.tuples(st.sampled_from(["draw", "draw", "join", "leave"]), st.integers(0, 7), st.integers(1, 30))


@settings(max_examples=200)
@given(events=st.lists(EVENTS, max_size=40), num_windows=st.integers(1, 500))
def test_no_two_live_peers_draw_a_position_whoever_comes_and_goes(events: list[Event], num_windows: int) -> None:
    live: dict[PeerId, WindowCursor] = {PEERS[0]: cursor(PEERS[0], num_windows=num_windows)}
    stored: dict[PeerId, int] = {}
    drawn: dict[PeerId, list[int]] = {PEERS[0]: []}  # by those who live, in this life
    for event, index, count in events:
        peer = PEERS[index]
        if event == "draw" and peer in live:
            drawn[peer] += live[peer].draw(count, list(live))[0]
            assert count_double(drawn) == 0
        elif event == "join" and peer not in live:
            newcomer = cursor(peer, num_windows=num_windows, position=stored.get(peer, 0))
            newcomer.join((other.position for other in live.values()), margin=0)
            assert newcomer.position >= stored.get(peer, 0)
            live[peer], drawn[peer] = newcomer, []
        elif event == "leave" and peer in live:
            stored[peer] = live.pop(peer).position
            del drawn[peer]


def test_the_margin_covers_what_is_drawn_before_the_newcomer_is_known() -> None:
    old, newcomer = cursor(PEERS[0]), cursor(PEERS[1])
    before = old.draw(100, ())[0]
    newcomer.join([old.position], margin=50)
    unaware = old.draw(50, ())[0]
    assert set(newcomer.draw(200, PEERS[:2])[0]).isdisjoint([*before, *unaware])


def test_restarts_neither_replay_nor_lose_windows() -> None:  # BUG-DA02
    num_windows, position, seen = 10_000, 0, Counter[int]()
    for lifetime in (1700, 2300, 900, 3100, 2000):
        walker = cursor(PEERS[0], num_windows=num_windows, position=position)
        walker.join([], margin=100)
        seen.update(walker.next_windows(lifetime, ()))
        position = walker.position
    assert len(seen) == num_windows and set(seen.values()) == {1}


def test_a_peer_with_little_text_goes_round_and_round() -> None:  # BUG-DA01
    assert Counter(cursor(PEERS[0], num_windows=3).next_windows(300, ())) == {0: 100, 1: 100, 2: 100}


def test_an_absurd_position_of_a_peer_is_ignored() -> None:
    walker = cursor(PEERS[0], position=7)
    walker.join([-5, MAX_POSITION + 1, 10**30], margin=10)
    assert walker.position == 7
    walker.join([MAX_POSITION], margin=10)
    assert all(0 <= window < 1000 for window in walker.next_windows(20, PEERS))


def test_a_peer_may_or_may_not_name_itself_among_the_live() -> None:
    assert cursor(PEERS[0]).next_windows(50, PEERS[:3]) == cursor(PEERS[0]).next_windows(50, PEERS[1:3])


def test_drawing_nothing_moves_nothing() -> None:
    walker = cursor(PEERS[0], position=12)
    assert walker.draw(0, ()) == ([], []) and walker.position == 12


def test_double_draws_are_counted_across_peers_and_within_one() -> None:
    assert count_double({PEERS[0]: range(10), PEERS[1]: range(10, 20)}) == 0
    assert count_double({PEERS[0]: [1, 2, 3], PEERS[1]: {3, 4}, PEERS[2]: [3, 9, 9]}) == 3
    assert count_double({}) == 0
