"""Where each peer's tokens went. Pure.

    trained = merged + pending + sum of dropped

`merged` is read off the final chains, from outside; `pending` and the reasons of `dropped` are what the peer itself
says at the end. What a killed process had not got merged died with it: dropped["killed"]. Its own account ends up to a
second before its death, so what the chains have merged beyond it counts as trained too. The same is true of one that left
long before the end: dropped["left"]. Of all other peers, any difference between the two sides is `unexplained`, and stays
visible in the summary.

Tokens are means over fragments, which are merged at different times.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from p2ptrain.simulate.chains import FinalChain
from p2ptrain.simulate.lives import End, Life


@dataclass(kw_only=True)
class Books:
    """One peer's tokens, over all its lives."""

    trained: float = 0.0
    merged: float = 0.0
    pending: float = 0.0
    dropped: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # by reason

    @property
    def unexplained(self) -> float:
        return self.trained - self.merged - self.pending - sum(self.dropped.values())


def books_of(peer: str, lives: Sequence[Life], chains: Sequence[FinalChain]) -> Books:
    """Return the books of one peer, whose lives are given."""
    books = Books(merged=merged_tokens(peer, chains))
    for life in lives:
        _add_life(books, life, len(chains))
    lost = next((life.end for life in lives if _ended_early(life)), None)
    if lost is not None:
        books.trained = max(books.trained, books.trained - books.unexplained)
        books.dropped[lost.value] += books.unexplained
    return books


def merged_tokens(peer: str, chains: Sequence[FinalChain]) -> float:
    """Return how many of a peer's tokens the final chains contain (mean over fragments)."""
    return sum(commit.tokens.get(peer, 0) for chain in chains for commit in chain.commits) / max(1, len(chains))


def _add_life(books: Books, life: Life, num_fragments: int) -> None:
    tallies: list[dict[str, Any]] = [] if _ended_early(life) else life.latest("report", "tallies", [])
    for tally in tallies:
        books.trained += tally["trained"] / len(tallies)
        books.pending += tally["pending"] / len(tallies)
        _drop(books, tally["dropped"], len(tallies))
    if tallies:
        return
    books.trained += life.latest("progress", "tokens", 0)
    for event in life.all("dropped"):
        _drop(books, {event.fields["reason"]: event.fields["tokens"]}, num_fragments)
    if not _ended_early(life):
        books.pending += life.latest("progress", "pending", 0)


def _ended_early(life: Life) -> bool:
    """Whether nobody could ask it at the end where its work is."""
    return life.was_lost or (life.end is End.LEFT and life.last("report") is None)


def _drop(books: Books, tokens_by_reason: dict[str, int], num_fragments: int) -> None:
    for reason, tokens in tokens_by_reason.items():
        books.dropped[reason] += tokens / num_fragments
