"""The chains that the swarm ended on, put together from what all peers adopted. Pure.

Peers adopt commits of forks as well; only what can be reached from the final head through parents counts. The final
head of a fragment is the heaviest that a live peer reports: the one that all report, if they agree.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from p2ptrain.events import Event
from p2ptrain.simulate.lives import Life


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptedCommit:
    """A commit as its adopters describe it."""

    fragment: int
    version: int
    commit: str  # hex
    parent: str  # hex
    committed_at: float
    tokens: dict[str, int]
    """Tokens in the envelope of each contributor."""


@dataclass(frozen=True, slots=True)
class FinalChain:
    """One fragment's commits from version 1 to the final head."""

    fragment: int
    commits: tuple[AdoptedCommit, ...]
    num_missing: int
    """Commits of which nobody alive or dead has left a trace; their tokens are unknown."""


def final_chains(lives: Sequence[Life], reports: Iterable[Event], num_fragments: int) -> list[FinalChain]:
    """Return the final chain of each fragment, oldest commit first."""
    known = {commit.commit: commit for life in lives for commit in map(_commit, life.all("adopted"))}
    heads = [head for report in reports for head in report.fields["heads"]]
    chains = []
    for fragment in range(num_fragments):
        candidates = [head for head in heads if head["fragment"] == fragment]
        if not candidates:
            chains.append(FinalChain(fragment, (), 0))
            continue
        final = min(candidates, key=lambda head: (-head["total_work"], head["commit"]))
        chains.append(_follow(fragment, final["commit"], final["version"], known))
    return chains


def _follow(fragment: int, head: str, version: int, known: dict[str, AdoptedCommit]) -> FinalChain:
    commits: list[AdoptedCommit] = []
    while head in known:
        commits.append(known[head])
        head = known[head].parent
    return FinalChain(fragment, tuple(reversed(commits)), version - len(commits))


def _commit(event: Event) -> AdoptedCommit:
    fields = event.fields
    return AdoptedCommit(
        fragment=fields["fragment"], version=fields["version"], commit=fields["commit"], parent=fields["parent"],
        committed_at=fields["committed_at"], tokens=fields["tokens"],
    )  # fmt: skip
