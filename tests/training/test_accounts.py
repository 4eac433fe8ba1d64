"""The books of a learner: over any history of steps, hand-overs, commits and reorganisations, nothing is lost or doubled."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from p2ptrain.training.accounts import FragmentAccount, HandOver

ZERO = np.zeros(2, np.float32)


def account(**settings_: object) -> FragmentAccount:
    return FragmentAccount(anchor=ZERO, version=0, **settings_)  # type: ignore[arg-type]


class Chain:
    """The ledger entry of one peer and the anchor, commit by commit, as a fork-choosing swarm would make them."""

    def __init__(self) -> None:
        self.commits: list[tuple[int, np.ndarray, list[HandOver]]] = [(0, ZERO, [])]

    def merge(self, hand_over: HandOver) -> None:
        _, anchor, merged = self.commits[-1]
        self.commits.append((hand_over.last_step, anchor - hand_over.decoded, [*merged, hand_over]))  # type: ignore[attr-defined]

    def merge_others(self, amount: int) -> None:
        ledger, anchor, merged = self.commits[-1]
        self.commits.append((ledger, anchor - np.float32([amount, 1]), merged))

    def fork(self, depth: int) -> None:
        self.commits = self.commits[: max(1, len(self.commits) - depth)]


def encode_coarsely(hand_over: HandOver) -> None:
    """A codec that keeps multiples of four, so that error feedback has something to carry."""
    exact = hand_over.exact
    hand_over.decoded = 4 * np.round(exact / 4)  # type: ignore[attr-defined]
    hand_over.encoded_error = exact - hand_over.decoded  # type: ignore[attr-defined]


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["step", "step", "hand over", "merged", "merged", "left out", "reorganised"]), st.integers(0, 5)
    ),
    max_size=60,
)


SHARES = st.sampled_from([0.0, 0.3, 0.5, 1.0])


@settings(max_examples=1500, deadline=None)
@given(events=EVENTS, max_reorg=st.integers(4, 16))
def test_tokens_and_work_are_conserved_over_any_history(events: list[tuple[str, int]], max_reorg: int) -> None:
    books, chain, outstanding = account(max_staleness=1000, max_reorg=max_reorg), Chain(), []
    parameters, all_work, step = ZERO, np.zeros(2), 0
    for event, number in events:
        if event == "step":
            step += 1
            change = np.float32([step % 7 + 1, number])
            parameters, all_work = parameters - change, all_work + change
            books.count_step(step, tokens=10 + number)
            continue
        if event == "hand over":
            hand_over = books.hand_over(parameters)
            if hand_over is not None:
                encode_coarsely(hand_over)
                outstanding.append(hand_over)
            continue
        if event == "reorganised":
            chain.fork(1 + number % 4)
        else:
            admissible = [
                one for one in outstanding if one.after_step == chain.commits[-1][0] and one.last_step > one.after_step
            ]
            if event == "merged" and admissible:
                chain.merge(admissible[number % len(admissible)])
            else:
                chain.merge_others(number)
        ledger, anchor, merged = chain.commits[-1]
        parameters = books.adopt(parameters, anchor, len(chain.commits) - 1, ledger).parameters

        tally = books.tally()
        assert tally.trained == tally.merged + tally.pending + sum(tally.dropped.values())
        assert tally.pending >= 0
        if not tally.dropped:
            assert tally.merged == sum(one.tokens for one in merged)
            unmerged = anchor - parameters
            residual = ZERO if books.residual is None else books.residual
            np.testing.assert_allclose(
                unmerged + residual, all_work - sum((one.decoded for one in merged), np.zeros(2)), atol=1e-3
            )


@settings(max_examples=500, deadline=None)
@given(events=EVENTS, keep=SHARES, keep_late=SHARES, max_staleness=st.integers(1, 3))
def test_tokens_are_conserved_when_work_is_dropped(
    events: list[tuple[str, int]], keep: float, keep_late: float, max_staleness: int
) -> None:
    books, chain, outstanding = account(keep=keep, keep_late=keep_late, max_staleness=max_staleness), Chain(), []
    parameters, step = ZERO, 0
    for event, number in events:
        if event == "step":
            step += 1
            parameters = parameters - np.float32([1, number])
            books.count_step(step, tokens=10 + number)
        elif event == "hand over" and (hand_over := books.hand_over(parameters)) is not None:
            encode_coarsely(hand_over)
            outstanding.append(hand_over)
        else:
            fresh = [
                one
                for one in outstanding
                if one.after_step == chain.commits[-1][0]
                and len(chain.commits) - 1 - one.oldest_version <= max_staleness
            ]
            if event == "merged" and fresh:
                chain.merge(fresh[-1])
            else:
                chain.merge_others(number)
            ledger, anchor, merged = chain.commits[-1]
            parameters = books.adopt(parameters, anchor, len(chain.commits) - 1, ledger).parameters
            assert books.tally().merged == sum(one.tokens for one in merged)
        tally = books.tally()
        assert tally.trained == tally.merged + tally.pending + sum(tally.dropped.values())
        assert tally.pending >= 0 and all(tokens > 0 for tokens in tally.dropped.values())
        assert books.pending_steps >= 0 and (tally.pending > 0) == (books.pending_steps > 0)


def test_a_merged_hand_over_without_further_steps_leaves_exactly_the_anchor() -> None:
    books = account()
    books.count_step(1, tokens=8)
    parameters = np.float32([0.1, -0.3])
    hand_over = books.hand_over(parameters)
    assert hand_over is not None and (hand_over.after_step, hand_over.last_step, hand_over.tokens) == (0, 1, 8)
    anchor = np.float32([5.0, 6.0])
    adoption = books.adopt(parameters, anchor, version=1, merged_step=1)
    np.testing.assert_array_equal(adoption.parameters, anchor)
    assert adoption.merged_tokens == 8 and books.pending_steps == 0


def test_being_left_out_moves_the_parameters_by_what_the_others_did() -> None:
    books = account()
    books.count_step(1, tokens=8)
    assert books.hand_over(np.float32([1.0, 2.0])) is not None
    adoption = books.adopt(np.float32([1.0, 2.0]), np.float32([10.0, 10.0]), version=1, merged_step=0)
    np.testing.assert_array_equal(adoption.parameters, np.float32([11.0, 12.0]))
    assert books.tally().pending == 8


def test_overwrite_takes_the_anchor_and_counts_what_it_drops() -> None:
    books = account(keep=0.0)
    books.count_step(1, tokens=8)
    assert books.hand_over(np.float32([1.0, 1.0])) is not None
    books.count_step(2, tokens=8)
    adoption = books.adopt(np.float32([2.0, 2.0]), np.float32([9.0, 9.0]), version=1, merged_step=1)
    np.testing.assert_array_equal(adoption.parameters, np.float32([9.0, 9.0]))
    assert adoption.merged_tokens == 8 and adoption.dropped == {"overwritten": 8}


def test_a_mix_keeps_a_share_of_the_work_since_the_hand_over() -> None:
    books = account(keep=0.5)
    for step in range(1, 5):
        books.count_step(step, tokens=8)
    assert books.hand_over(np.float32([-1.0, -1.0])) is not None
    for step in range(5, 9):
        books.count_step(step, tokens=8)
    adoption = books.adopt(np.float32([-3.0, -3.0]), np.float32([9.0, 9.0]), version=1, merged_step=4)
    np.testing.assert_array_equal(adoption.parameters, np.float32([8.0, 8.0]))  # half of the 2 since the hand-over
    assert adoption.merged_tokens == 32 and adoption.dropped == {"mixed": 16}
    assert books.tally().pending == 16 and books.pending_steps == 2


def test_late_work_is_damped_only_once_it_has_missed_a_round() -> None:
    books, parameters = account(keep_late=0.5), np.float32([-4.0, -4.0])
    for step in range(1, 9):
        books.count_step(step, tokens=8)
    parameters = books.adopt(parameters, ZERO, version=1, merged_step=0).parameters
    np.testing.assert_array_equal(parameters, np.float32([-4.0, -4.0]))
    adoption = books.adopt(parameters, ZERO, version=2, merged_step=0)
    np.testing.assert_array_equal(adoption.parameters, np.float32([-2.0, -2.0]))
    assert adoption.dropped == {"late": 32} and books.pending_steps == 4


def test_a_hand_over_that_was_damped_and_then_merged_after_all_counts_in_full() -> None:
    books = account(keep_late=0.5)
    for step in range(1, 9):
        books.count_step(step, tokens=8)
    hand_over = books.hand_over(np.float32([-4.0, -4.0]))
    assert hand_over is not None
    parameters = books.adopt(np.float32([-4.0, -4.0]), ZERO, version=1, merged_step=0).parameters
    parameters = books.adopt(parameters, ZERO, version=2, merged_step=0).parameters
    adoption = books.adopt(parameters, np.float32([-4.0, -4.0]), version=3, merged_step=hand_over.last_step)
    np.testing.assert_array_equal(adoption.parameters, np.float32([-4.0, -4.0]))  # the anchor: nothing is pending
    assert books.tally().merged == 64 and books.tally().dropped == {} and books.tally().pending == 0


def test_work_on_a_base_that_is_too_old_is_dropped_with_that_reason() -> None:
    books = account(max_staleness=2)
    books.count_step(1, tokens=8)
    parameters = np.float32([1.0, 1.0])
    for version in (1, 2, 3):
        adoption = books.adopt(parameters, np.float32([version, version]), version, merged_step=0)
        parameters = adoption.parameters
    assert adoption.dropped == {"stale": 8}
    np.testing.assert_array_equal(parameters, np.float32([3.0, 3.0]))


def test_work_on_a_longer_branch_that_lost_is_not_from_the_future() -> None:
    books, parameters = account(), np.float32([1.0, 1.0])
    for version in range(1, 6):
        parameters = books.adopt(parameters, ZERO, version, merged_step=0).parameters
    books.count_step(1, tokens=8)
    books.count_step(2, tokens=8)
    assert books.hand_over(parameters) is not None
    parameters = books.adopt(parameters, np.float32([2.0, 2.0]), version=3, merged_step=0).parameters
    hand_over = books.hand_over(parameters)
    assert hand_over is not None and hand_over.oldest_version == 3 and hand_over.tokens == 16


def test_what_an_earlier_life_of_this_peer_handed_over_changes_nothing_here() -> None:
    books = account()
    books.count_step(1_000_001, tokens=8)
    adoption = books.adopt(np.float32([1.0, 1.0]), np.float32([4.0, 4.0]), version=1, merged_step=37)
    np.testing.assert_array_equal(adoption.parameters, np.float32([5.0, 5.0]))
    hand_over = books.hand_over(adoption.parameters)
    assert hand_over is not None and hand_over.after_step == 37 and books.tally().merged == 0


def test_the_residual_changes_only_at_inclusion() -> None:
    books = account()
    books.count_step(1, tokens=8)
    hand_over = books.hand_over(np.float32([1.0, 1.0]))
    assert hand_over is not None
    hand_over.encoded_error = np.float32([0.25, 0.25])
    books.adopt(np.float32([1.0, 1.0]), np.float32([1.0, 1.0]), version=1, merged_step=0)
    assert books.residual is None
    books.adopt(np.float32([2.0, 2.0]), np.float32([3.0, 3.0]), version=2, merged_step=1)
    np.testing.assert_array_equal(books.residual, np.float32([0.25, 0.25]))


def test_the_books_stay_small_when_nothing_is_ever_merged() -> None:
    books, parameters = account(max_staleness=3, max_reorg=2), ZERO
    for step in range(1, 200):
        parameters = parameters - np.float32([1, 1])
        books.count_step(step, tokens=1)
        books.hand_over(parameters)
        parameters = books.adopt(parameters, np.float32([step, step]), version=step, merged_step=0).parameters
    assert len(books._history) <= 8
