"""Judging a swarm by what its processes said and what was done to them. Pure: lives in, summary out.

Nothing is taken from one peer's word where others can tell: merged tokens are counted in the envelopes of the final
chains, who was alive is the supervisor's own knowledge, anchors are compared by digests that each peer recomputed from
its memory at the end. Instants in the summary are seconds since the first inner step of anybody.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from p2ptrain.config import RunConfig
from p2ptrain.events import Event
from p2ptrain.simulate import measures
from p2ptrain.simulate.books import Books, books_of
from p2ptrain.simulate.chains import AdoptedCommit, FinalChain, final_chains
from p2ptrain.simulate.lives import End, Life

BALANCE_TOLERANCE: Final = 1.0  # tokens per peer: means over fragments are fractions

Summary = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Observation:
    """All that is known of a simulation when it is over."""

    config: RunConfig
    num_peers: int
    """Peers that began together."""
    expected: Sequence[int]
    """The numbers of those that must be alive at the end: all, and the late joiner if one was asked for."""
    lives: Sequence[Life]
    trained_from: float
    """When anybody made the first inner step; like all instants here, wall time."""
    stopped_at: float
    """When training was stopped."""
    reports_from: float
    """Only a report that was made after this counts as final."""
    interrupted: bool = False
    num_double_windows: int | None = None
    """As somebody else has counted them; None: by what the lives say that they drew."""

    @property
    def num_fragments(self) -> int:
        return self.config.fragments.count

    @cached_property
    def reports(self) -> dict[int, Event]:
        """The final report of each live peer, by its number."""
        lasts = {life.number: life.last("report") for life in self.lives if not life.was_lost}
        return {
            number: report
            for number, report in sorted(lasts.items())
            if report is not None and report.at >= self.reports_from
        }

    @cached_property
    def chains(self) -> list[FinalChain]:
        return final_chains(self.lives, self.reports.values(), self.num_fragments)

    @property
    def rounds(self) -> list[AdoptedCommit]:
        return [commit for chain in self.chains for commit in chain.commits]

    @cached_property
    def interval(self) -> float:
        """H x the median step time of all lives (s)."""
        return measures.round_interval(self.lives, self.config.rounds.inner_steps, self.stopped_at)

    @cached_property
    def peers(self) -> dict[str, list[Life]]:
        """The lives of each peer that got as far as having an identity, in the order of their first start."""
        numbers = {life.number: life.peer for life in self.lives if life.peer}
        return {
            peer: [life for life in self.lives if life.number == number] for number, peer in sorted(numbers.items())
        }

    @property
    def last_fault_at(self) -> float:
        """When the last process was killed; the start of training if none was."""
        killed_at = [life.ended_at for life in self.lives if life.end is End.KILLED and life.ended_at is not None]
        return max([self.trained_from, *killed_at])


def judge(seen: Observation) -> Summary:
    """Return the summary of a simulation, in plain JSON values."""
    books = {peer: books_of(peer, lives, seen.chains) for peer, lives in seen.peers.items()}
    disagreements = find_disagreements(seen)
    undisturbed = measures.undisturbed_tokens(seen.peers, seen.stopped_at)
    merged = sum(one.merged for one in books.values())
    return {
        "run_id": next((str(life.latest("started", "run", "")) for life in seen.lives if life.peer), ""),
        "run_name": seen.config.name,
        "num_peers": seen.num_peers,
        "seconds": round(seen.stopped_at - seen.trained_from, 1),
        "interrupted": seen.interrupted,
        **_tokens(books),
        "utilisation": round(measures.utilisation(seen.lives, seen.stopped_at), 4),
        "participation": round(_participation(seen), 4),
        "participation_of_limit": round(_participation(seen, seen.config.limits.max_members), 4),
        "goodput": round(merged / undisturbed, 4) if undisturbed else 0.0,
        **_rounds(seen),
        **_losses(seen),
        "anchors_agree": not disagreements,
        "num_reports": len(seen.reports),
        "anchors_compared": sum(len(report.fields["heads"]) for report in seen.reports.values()),
        "disagreements": disagreements,
        "num_double_windows": _num_double_windows(seen),
        "num_crashed": sum(life.end is End.CRASHED for life in seen.lives),
        "num_unclean_exits": sum(life.end is End.LEFT and life.exit_code not in (0, None) for life in seen.lives),
        **_bytes(seen),
        "peers": [_peer(seen, peer, lives, books[peer]) for peer, lives in seen.peers.items()],
    }


def find_disagreements(seen: Observation) -> list[str]:
    """Return a sentence for each reason why the swarm has not ended as one; none if it has.

    It has if every peer that must be alive reported at the end, all have the same head of every fragment and the same
    digest of the anchor bytes recomputed from memory, and every fragment has a commit with at least two contributors
    after the last fault (after the start of training if there was none; not asked of a swarm of one).
    """
    if seen.interrupted:
        return ["the simulation was interrupted before the swarm could settle"]
    reasons = [f"peer {number} was not there at the end" for number in seen.expected if number not in seen.reports]
    for fragment, chain in enumerate(seen.chains):
        for what in ("commit", "anchor"):
            values = {number: _of_fragment(report, fragment, what) for number, report in seen.reports.items()}
            if len(set(values.values())) > 1 or None in values.values():
                found = ", ".join(f"peer {number} has {str(value)[:8]}" for number, value in values.items())
                reasons.append(
                    f"fragment {fragment}: not everybody has the same {'head' if what == 'commit' else what}: {found}"
                )
        together = [
            commit for commit in chain.commits if len(commit.tokens) >= 2 and commit.committed_at > seen.last_fault_at
        ]
        if len(seen.expected) > 1 and not together:
            reasons.append(f"fragment {fragment}: no commit of two or more contributors after the last fault")
    return reasons


def _of_fragment(report: Event, fragment: int, what: str) -> str | None:
    return next((str(head[what]) for head in report.fields["heads"] if head["fragment"] == fragment), None)


def _tokens(books: dict[str, Books]) -> Summary:
    """Return where the swarm's tokens went; `tokens_balance` is what no account explains."""
    dropped: Counter[str] = Counter()
    for one in books.values():
        dropped.update({reason: round(tokens) for reason, tokens in one.dropped.items()})
    unexplained = [one.unexplained for one in books.values() if abs(one.unexplained) > BALANCE_TOLERANCE]
    return {
        "tokens_trained": round(sum(one.trained for one in books.values())),
        "tokens_merged": round(sum(one.merged for one in books.values())),
        "tokens_pending": round(sum(one.pending for one in books.values())),
        "tokens_dropped": {reason: tokens for reason, tokens in sorted(dropped.items()) if tokens},
        "tokens_balance": round(sum(unexplained)),
        "tokens_conserved": not unexplained,
    }


def _participation(seen: Observation, largest: int | None = None) -> float:
    """Rounds after the stop are left out: nobody trains any more, and only leftovers are merged."""
    rounds = [commit for commit in seen.rounds if commit.committed_at <= seen.stopped_at]
    return measures.participation(rounds, seen.lives, interval=seen.interval, largest=largest)


def _rounds(seen: Observation) -> Summary:
    """Attempts after the stop do not count as aborted: leaders go on asking members who have nothing left."""
    aborted = [event for life in seen.lives for event in life.all("round-aborted") if event.at <= seen.stopped_at]
    contributors = Counter(len(commit.tokens) for commit in seen.rounds)
    forks = {
        (event.fields["fragment"], *sorted((event.fields["a"], event.fields["b"])))
        for life in seen.lives
        for event in life.all("fork")
    }
    return {
        "contributors_per_round": {str(number): contributors[number] for number in sorted(contributors)},
        "rounds_committed": len(seen.rounds),
        "rounds_missing": sum(chain.num_missing for chain in seen.chains),
        "rounds_aborted": len(aborted),
        "solo_rounds": contributors[1],
        "forks": len(forks),
        "reorgs": sum(len(life.all("reorg")) for life in seen.lives),
    }


def _losses(seen: Observation) -> Summary:
    """Return the validation loss of genesis and of the final anchors; null where nobody computed it."""
    of_genesis = [
        event.fields["loss"] for life in seen.lives for event in life.all("validation") if event.fields["version"] == 0
    ]
    of_anchors = [report.fields["validation_loss"] for report in seen.reports.values()]
    return {"validation_loss_first": _first_finite(of_genesis), "validation_loss_last": _first_finite(of_anchors)}


def _first_finite(numbers: Sequence[float]) -> float | None:
    return next((round(number, 4) for number in numbers if math.isfinite(number)), None)


def _num_double_windows(seen: Observation) -> int:
    """Peers that bring their own text share no windows, so none can be double."""
    if seen.config.data.source == "path":
        return 0
    return measures.num_double_windows(seen.lives) if seen.num_double_windows is None else seen.num_double_windows


def _bytes(seen: Observation) -> Summary:
    """Return what all peers sent and received, in all their lives: by their own counters, without TCP and TLS."""
    return {name: sum(_latest(life, name) for life in seen.lives) for name in ("bytes_sent", "bytes_received")}


def _latest(life: Life, name: str) -> int:
    """Return the largest number that a life gave in its accounts of itself: counters only grow."""
    return max(int(life.latest(kind, name, 0)) for kind in ("progress", "report"))


def _peer(seen: Observation, peer: str, lives: Sequence[Life], books: Books) -> Summary:
    started = next(event for life in lives if (event := life.first("started")) is not None)
    report = seen.reports.get(lives[0].number)
    heads = report.fields["heads"] if report is not None else []
    return {
        "number": lives[0].number,
        "peer_id": peer,
        "inner_steps": sum(_latest(life, "inner_steps") for life in lives),
        "tokens": round(books.trained),
        "tokens_merged": round(books.merged),
        "rounds_joined": sum(peer in commit.tokens for commit in seen.rounds),
        "bytes_sent": sum(_latest(life, "bytes_sent") for life in lives),
        "bytes_received": sum(_latest(life, "bytes_received") for life in lives),
        "joined_at": round(started.at - seen.trained_from, 1),
        "killed_at": [round((life.ended_at or 0.0) - seen.trained_from, 1) for life in lives if life.end is End.KILLED],
        "heads": [{name: head[name] for name in ("fragment", "version", "commit")} for head in heads],
    }
