"""Events and numbers in plain words."""

import math

import pytest

from p2ptrain.events import Event
from p2ptrain.monitor.wording import MAX_WORDS, amount, in_plain_words, level, printable


def words(kind: str, **fields: object) -> str | None:
    return in_plain_words(Event(kind, 0.0, 0.0, dict(fields)))


@pytest.mark.parametrize(
    ("kind", "fields", "expected"),
    [
        ("joined", {"seconds": 2.34}, "joined the swarm after 2.3 s"),
        ("stage", {"name": "synced", "seconds": 1.0}, "fetched the shared model and checked it (1.0 s)"),
        ("stage", {"name": "warmed up", "seconds": 1.0}, "warmed up (1.0 s)"),
        ("rejoined", {"num_peers": 3}, "back in touch with 3 other peers"),
        ("left", {"seconds": 0.4}, "said goodbye and left (0.4 s)"),
        (
            "reachability",
            {"state": "reachable", "addresses": ["203.0.113.7:4001"], "reasons": {}},
            "others can dial this machine at 203.0.113.7:4001",
        ),
        (
            "reachability",
            {"state": "unreachable", "addresses": [], "reasons": {"10.0.0.2:4001": "timed out"}},
            "nobody can dial this machine, so it leads no rounds and trains as well as any (10.0.0.2:4001: timed out)",
        ),
    ],
)
def test_what_changes_the_situation_gets_a_sentence(kind: str, fields: dict[str, object], expected: str) -> None:
    assert words(kind, **fields) == expected


def test_a_reorganisation_says_that_nothing_is_lost() -> None:
    told = words("reorg", fragment=2, depth=3)
    assert told is not None
    assert "3 updates were given up, your own work is kept" in told


def test_being_alone_says_that_it_keeps_trying() -> None:
    # BUG-D01
    told = words("isolated", since=12.0)
    assert told is not None
    assert "keeps trying" in told


@pytest.mark.parametrize(
    "kind", ["progress", "adopted", "left-out", "round-called", "fork", "peer-up", "something new"]
)
def test_what_happens_all_the_time_is_not_told(kind: str) -> None:
    assert words(kind) is None


@pytest.mark.parametrize(
    "kind", ["stage", "joined", "isolated", "rejoined", "reorg", "resync", "left", "task-failed", "state-mismatch"]
)
def test_a_missing_field_never_breaks_the_peer(kind: str) -> None:
    assert words(kind)


def test_text_from_others_cannot_drive_the_terminal() -> None:
    told = words("task-failed", task="x", error="\x1b[2J\x07bad\nline" + "a" * 10_000)
    assert told is not None
    assert told.isprintable()
    assert len(told) == MAX_WORDS
    assert printable("plain – text") == "plain – text"


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (950, "950"), (999.7, "1k"), (12_345, "12.3k"), (4_560_000, "4.56M"), (2.5e9, "2.5G")],
)
def test_large_counts_have_three_digits(number: float, text: str) -> None:
    assert amount(number) == text


def test_a_loss_that_is_not_there_is_a_dash() -> None:
    assert level(math.nan) == "–"
    assert level(2.5) == "2.500"
