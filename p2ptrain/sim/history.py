"""What a simulated swarm achieved, seen from outside: its commits, who was there, what of their work counts.

A commit is noted when anybody adopts it for the first time. The final chains are those that lead to the heaviest heads
of live peers; what is not on them was given up.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from p2ptrain.ids import PeerId


@dataclass(frozen=True, slots=True)
class SeenCommit:
    """A commit as somebody was the first to adopt it."""

    fragment: int
    version: int
    digest: str
    parent: str
    leader: PeerId
    tokens: dict[PeerId, int]
    seen_at: float
    live: frozenset[PeerId]
    """Trainers that were alive then, and had been training for an interval."""


@dataclass
class Presence:
    """When the processes of one peer ran (virtual seconds), and how many inner steps its machine had time for."""

    seconds: float = 0.0
    steps: float = 0.0
    since: float | None = None
    rate: float = 0.0  # inner steps per second of the machine, if nothing else were to be done

    def begin(self, now: float, rate: float) -> None:
        self.since, self.rate = now, rate

    def end(self, now: float) -> None:
        if self.since is not None:
            self.seconds += now - self.since
            self.steps += self.rate * (now - self.since)
            self.since = None


@dataclass
class History:
    """`live` says who trains at this moment."""

    live: Callable[[], frozenset[PeerId]]
    commits: dict[str, SeenCommit] = field(default_factory=dict)
    presences: dict[PeerId, Presence] = field(default_factory=dict)

    def adopted(self, fields: dict[str, Any]) -> None:
        """Note an adoption, by the fields of its event."""
        if fields["commit"] not in self.commits:
            self.commits[fields["commit"]] = SeenCommit(
                fragment=fields["fragment"], version=fields["version"], digest=fields["commit"], parent=fields["parent"],
                leader=fields["leader"], tokens=fields["tokens"], seen_at=asyncio.get_running_loop().time(), live=self.live(),
            )  # fmt: skip

    def began(self, peer: PeerId, rate: float) -> None:
        self.presences.setdefault(peer, Presence()).begin(asyncio.get_running_loop().time(), rate)

    def ended(self, peer: PeerId) -> None:
        if peer in self.presences:
            self.presences[peer].end(asyncio.get_running_loop().time())

    def chain(self, head: str) -> list[SeenCommit]:
        """Return the commits that lead to a head, newest first."""
        chain: list[SeenCommit] = []
        while head in self.commits:
            chain.append(self.commits[head])
            head = chain[-1].parent
        return chain

    def participation(self, heads: Sequence[str], *, largest: int, since: float = 0.0) -> float:
        """Return the mean over the chains' commits of contributors / live trainers, of whom a leader takes `largest`."""
        shares = [
            len(commit.tokens) / min(largest, len(commit.live | commit.tokens.keys()))
            for head in heads
            for commit in self.chain(head)
            if commit.seen_at >= since
        ]
        return fmean(shares) if shares else 0.0

    def merged_tokens(self, heads: Sequence[str]) -> dict[PeerId, float]:
        """Return how many tokens of each peer the chains hold, as a mean over the fragments."""
        merged: dict[PeerId, float] = {}
        for head in heads:
            for commit in self.chain(head):
                for peer, tokens in commit.tokens.items():
                    merged[peer] = merged.get(peer, 0.0) + tokens / len(heads)
        return merged

    def goodput(self, heads: Sequence[str], tokens_per_step: float) -> float:
        """Return tokens in the final chains / tokens that the machines could have trained while their peers ran."""
        now = asyncio.get_running_loop().time()
        steps = sum(
            one.steps + (one.rate * (now - one.since) if one.since is not None else 0.0)
            for one in self.presences.values()
        )
        offered = steps * tokens_per_step
        return sum(self.merged_tokens(heads).values()) / offered if offered else 0.0
