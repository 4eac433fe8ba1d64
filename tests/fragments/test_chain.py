"""The rules of a fragment's history, with real signatures."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2ptrain.config import LimitsConfig
from p2ptrain.fragments.chain import (
    NO_PARENT,
    ChainError,
    Commit,
    Envelope,
    Ledger,
    LedgerEntry,
    check_commit,
    check_envelope,
    draw,
    genesis_commit,
    total_work,
)
from p2ptrain.ids import RunId, digest
from p2ptrain.net.identity import Identity, verify

RUN = RunId(digest("run", b"test"))
PEOPLE = sorted((Identity(bytes([number]) * 32) for number in range(1, 6)), key=lambda identity: identity.peer_id)
LIMITS = LimitsConfig(max_tokens_per_second=1000.0)
GENESIS = genesis_commit(RUN, 0, digest("state", b"genesis"), 1000.0, [PEOPLE[0].peer_id])
EMPTY = Ledger(1000.0, {})


def envelope(
    who: Identity, *, after: int = 0, last: int = 10, tokens: int = 500, base: Commit = GENESIS, oldest: int = 0
) -> Envelope:
    return Envelope(
        run_id=RUN, fragment=0, base=base.digest, peer=who.peer_id, after_step=after, last_step=last, steps=last - after,
        tokens=tokens, oldest_version=oldest, step_seconds=0.5, content=digest("content", b"x"), norms=(1.0, 2.0),
    ).signed_by(who)  # fmt: skip


def commit(
    *envelopes: Envelope,
    parent: Commit = GENESIS,
    ledger: Ledger = EMPTY,
    leader: Identity = PEOPLE[0],
    at: float = 1001.0,
) -> Commit:
    return Commit(
        run_id=RUN, fragment=0, parent=parent.digest, version=parent.version + 1, leader=leader.peer_id, update=digest("update", b"u"),
        state=digest("state", b"s"), total_work=total_work(parent, ledger, envelopes, at, LIMITS), next=(leader.peer_id,),
        committed_at=at, envelopes=envelopes,
    ).signed_by(leader)  # fmt: skip


def check(one: Commit, parent: Commit = GENESIS, ledger: Ledger = EMPTY) -> None:
    check_commit(one, parent, ledger, LIMITS, num_pieces=2, max_staleness=2, verify=verify)


def test_commits_and_envelopes_survive_the_wire_with_their_digests() -> None:
    original = commit(envelope(PEOPLE[0]), envelope(PEOPLE[1]))
    arrived = Commit.from_bytes(original.to_bytes())
    assert arrived == original and arrived.digest == original.digest and arrived.signature == original.signature
    assert arrived.envelopes[1].digest == original.envelopes[1].digest
    check(arrived)


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=400))
def test_arbitrary_bytes_are_refused_in_one_way(data: bytes) -> None:
    for kind in (Envelope, Commit):
        with pytest.raises(ChainError):
            kind.from_bytes(data)
    with pytest.raises(ChainError):
        Ledger.from_bytes(data)


@settings(max_examples=300, deadline=None)
@given(position=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_flipped_bit_is_always_noticed(position: int, bit: int) -> None:
    data = bytearray(commit(envelope(PEOPLE[0])).to_bytes())
    data[position % len(data)] ^= 1 << bit
    with pytest.raises(ChainError):
        check(Commit.from_bytes(bytes(data)))


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": 0}, {"steps": 0}, {"steps": 11}, {"after_step": -1}, {"last_step": 2**60}, {"norms": (float("nan"), 1.0)},
        {"norms": (float("inf"), 1.0)}, {"norms": (-1.0, 1.0)}, {"step_seconds": float("nan")}, {"tokens": True}, {"peer": "nobody"},
    ],
)  # fmt: skip
def test_fields_out_of_range_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ChainError, match="malformed"):
        Envelope.from_bytes(replace(envelope(PEOPLE[0]), **change).signed_by(PEOPLE[0]).to_bytes())


def test_a_chain_counts_each_step_of_a_peer_once() -> None:
    first = commit(envelope(PEOPLE[0], after=0, last=10))
    ledger = EMPTY.after(first)
    assert ledger.last_step(PEOPLE[0].peer_id) == 10
    for again in (
        envelope(PEOPLE[0], after=0, last=10),
        envelope(PEOPLE[0], after=5, last=20),
        envelope(PEOPLE[0], after=11, last=20),
    ):
        with pytest.raises(ChainError, match="has merged steps up to 10"):
            check(commit(again, parent=first, ledger=ledger, at=1002.0), first, ledger)
    check(commit(envelope(PEOPLE[0], after=10, last=20), parent=first, ledger=ledger, at=1002.0), first, ledger)


def test_one_commit_cannot_hold_a_peer_twice_or_out_of_order() -> None:
    for envelopes in ([envelope(PEOPLE[0]), envelope(PEOPLE[0])], [envelope(PEOPLE[1]), envelope(PEOPLE[0])]):
        with pytest.raises(ChainError, match="ascending order"):
            check(commit(*envelopes))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"version": 2}, "version 2 after 0"),
        ({"total_work": 10**9}, "total work"),
        ({"committed_at": 1000.0}, "not later"),
        ({"parent": digest("commit", b"other")}, "not on this parent"),
        ({"next": ()}, "no next leader"),
        ({"envelopes": ()}, "0 envelopes"),
    ],
)
def test_a_commit_that_breaks_a_rule_is_refused_with_the_reason(change: dict[str, object], reason: str) -> None:
    broken = replace(commit(envelope(PEOPLE[0])), **change).signed_by(PEOPLE[0])
    with pytest.raises(ChainError, match=reason):
        check(broken)


def test_somebody_elses_signature_is_refused_on_commits_and_on_envelopes() -> None:
    with pytest.raises(ChainError, match="not its leader's"):
        check(commit(envelope(PEOPLE[0])).signed_by(PEOPLE[1]))
    with pytest.raises(ChainError, match="not its peer's"):
        check(commit(envelope(PEOPLE[0]).signed_by(PEOPLE[1])))


def test_work_is_capped_by_the_time_since_the_peer_was_last_merged() -> None:
    greedy = envelope(PEOPLE[0], tokens=10**9)
    assert EMPTY.work(greedy, 1002.0, LIMITS) == 2000
    merged = Ledger(1000.0, {PEOPLE[0].peer_id: LedgerEntry(0, 1001.5)})
    assert merged.work(greedy, 1002.0, LIMITS) == 500
    assert merged.work(greedy, 900.0, LIMITS) == 1  # a clock that is behind does not stop the chain from growing


def test_the_heavier_chain_wins_and_ties_go_to_the_smaller_digest() -> None:
    light, heavy = commit(envelope(PEOPLE[0], tokens=10)), commit(envelope(PEOPLE[0], tokens=20))
    assert heavy.weight > light.weight
    twins = [commit(envelope(PEOPLE[0]), leader=leader) for leader in PEOPLE[:2]]
    winner = max(twins, key=lambda one: one.weight)
    assert winner.digest == min(one.digest for one in twins)


def test_stale_and_foreign_envelopes_are_refused() -> None:
    first = commit(envelope(PEOPLE[0]))
    head = replace(first, version=5)
    for bad, reason in (
        (envelope(PEOPLE[1], oldest=2), "stale"),
        (envelope(PEOPLE[1], oldest=6), "comes after"),
        (replace(envelope(PEOPLE[1], oldest=5), fragment=1).signed_by(PEOPLE[1]), "another run or fragment"),
        (replace(envelope(PEOPLE[1], oldest=5), norms=(1.0,)).signed_by(PEOPLE[1]), "1 norms for 2 pieces"),
    ):
        with pytest.raises(ChainError, match=reason):
            check_envelope(bad, head, EMPTY, num_pieces=2, max_staleness=2, verify=verify)


def test_the_ledger_survives_the_wire_whatever_order_it_grew_in() -> None:
    one, other = EMPTY.after(commit(envelope(PEOPLE[0]))), EMPTY.after(commit(envelope(PEOPLE[1])))
    both = one.after(commit(envelope(PEOPLE[1]))), other.after(commit(envelope(PEOPLE[0])))
    assert both[0].to_bytes() == both[1].to_bytes()
    assert Ledger.from_bytes(both[0].to_bytes()) == both[0]


@pytest.mark.parametrize("seconds", [601.0, 1e300])
def test_steps_that_would_freeze_a_fragment_are_not_believed(seconds: float) -> None:
    slow = replace(envelope(PEOPLE[0]), step_seconds=seconds).signed_by(PEOPLE[0])
    with pytest.raises(ChainError, match="at most 600 are believed"):
        check_envelope(slow, GENESIS, EMPTY, num_pieces=2, max_staleness=2, verify=verify)


def test_only_who_was_in_the_round_may_lead_the_next() -> None:
    stranger = replace(commit(envelope(PEOPLE[0])), next=(PEOPLE[4].peer_id,)).signed_by(PEOPLE[0])
    with pytest.raises(ChainError, match="not in its round"):
        check(stranger)


def test_a_newcomers_work_counts_from_when_the_chain_was_last_extended_not_from_the_runs_start() -> None:
    old = Ledger(1000.0, {PEOPLE[0].peer_id: LedgerEntry(10, 90_000.0)})
    assert old.work(envelope(PEOPLE[1], tokens=10**9), 90_001.0, LIMITS) == 1000


def test_genesis_follows_from_the_run_alone() -> None:
    again = genesis_commit(RUN, 0, digest("state", b"genesis"), 1000.0, [PEOPLE[0].peer_id])
    assert again.digest == GENESIS.digest and GENESIS.parent == NO_PARENT and GENESIS.weight[0] == 0


def test_leaders_are_drawn_alike_by_everybody_and_differently_for_every_head() -> None:
    peers = [identity.peer_id for identity in PEOPLE]
    assert draw(b"one", peers) == draw(b"one", reversed(peers))
    assert len({tuple(draw(bytes([key]), peers)) for key in range(20)}) > 5
