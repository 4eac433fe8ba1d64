"""The measures of a swarm: utilisation, participation, goodput, double windows. Pure.

Each is what the theory of operation says, and no other thing by the same name.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from p2ptrain.simulate.chains import AdoptedCommit
from p2ptrain.simulate.lives import Life


@dataclass(frozen=True, slots=True)
class Pace:
    """What a life did between its first and its last account of itself before the stop."""

    first_at: float
    first_tokens: int
    tokens: int
    steps: int
    seconds: float


def pace_of(life: Life, stopped_at: float) -> Pace | None:
    """Return the pace of a life; None when it said less than two things about its training."""
    accounts = [event for event in life.all("progress") if event.at <= stopped_at and event.fields["inner_steps"]]
    if len(accounts) < 2 or accounts[-1].at <= accounts[0].at:
        return None
    first, last = accounts[0], accounts[-1]
    return Pace(
        first_at=first.at,
        first_tokens=first.fields["tokens"],
        tokens=last.fields["tokens"] - first.fields["tokens"],
        steps=last.fields["inner_steps"] - first.fields["inner_steps"],
        seconds=last.at - first.at,
    )


def utilisation(lives: Sequence[Life], stopped_at: float) -> float:
    """Return time stepping / time offered, over all lives that trained."""
    offered = stepping = 0.0
    for life in lives:
        pace = pace_of(life, stopped_at)
        if pace is not None:
            offered += pace.seconds
            stepping += pace.seconds * life.latest("progress", "utilisation", 0.0)
    return stepping / offered if offered else 0.0


def participation(
    rounds: Sequence[AdoptedCommit], lives: Sequence[Life], *, interval: float, largest: int | None = None
) -> float:
    """Return the mean over rounds of contributors / live trainers, of whom a leader takes at most `largest`.

    A live trainer is one that was alive at the commit, by the supervisor's own knowledge, and had made its first inner
    step at least one interval before. A contributor that is none of these (it died since, or has just begun) counts on
    both sides.
    """
    shares = [share for _, share in shares_of_rounds(rounds, lives, interval=interval, largest=largest)]
    return fmean(shares) if shares else 0.0


def shares_of_rounds(
    rounds: Sequence[AdoptedCommit], lives: Sequence[Life], *, interval: float, largest: int | None = None
) -> list[tuple[float, float]]:
    """Return the instant of each round, and what `participation` is the mean of."""
    trained = [life for life in lives if life.trained_from is not None]
    shares = []
    for commit in rounds:
        at = commit.committed_at
        trainers = {life.peer for life in trained if (life.trained_from or 0.0) <= at - interval and life.was_alive(at)}
        contributors = set(commit.tokens)
        most = len(trainers | contributors)
        shares.append((at, len(contributors) / (most if largest is None else min(most, largest))))
    return shares


def round_interval(lives: Sequence[Life], inner_steps: int, stopped_at: float) -> float:
    """Return H x the median step time of all lives (s); 0 when nobody trained long enough to tell."""
    paces = [pace for life in lives if (pace := pace_of(life, stopped_at)) is not None and pace.steps]
    return inner_steps * median(pace.seconds / pace.steps for pace in paces) if paces else 0.0


def undisturbed_tokens(peers: Mapping[str, Sequence[Life]], stopped_at: float) -> float:
    """Return how many tokens the swarm would have merged if no peer had been killed or left out, and none had waited.

    Each peer would have trained from its first inner step to the stop at its own rate, all of it merged:

        sum over peers of  tokens at first account + rate x (stop - time of first account)
        rate = tokens / seconds between the first and the last account of each life, all lives together

    A peer's rate counts only time in which a process of it was training, so neither being dead nor starting again slows
    the yardstick. A peer that never lived long enough to have a rate has the mean of the others'. Goodput is what the
    final chains have merged, divided by this: 0 for a swarm that never averages, about 1 for one without disturbance.
    """
    paces = {peer: [pace for life in lives if (pace := pace_of(life, stopped_at))] for peer, lives in peers.items()}
    rates = {
        peer: sum(one.tokens for one in own) / sum(one.seconds for one in own) for peer, own in paces.items() if own
    }
    mean_rate = fmean(rates.values()) if rates else 0.0
    total = 0.0
    for peer, lives in peers.items():
        began_at, tokens = _beginning(lives, stopped_at)
        total += tokens + rates.get(peer, mean_rate) * max(0.0, stopped_at - began_at)
    return total


def _beginning(lives: Sequence[Life], stopped_at: float) -> tuple[float, int]:
    """Return an instant at which a peer had just begun to train, and its tokens by then; the stop if it never did."""
    for life in lives:
        if life.trained_from is not None:
            pace = pace_of(life, stopped_at)
            return (pace.first_at, pace.first_tokens) if pace else (life.trained_from, 0)
    return stopped_at, 0


def num_double_windows(lives: Sequence[Life]) -> int:
    """Return how often a position of the data was drawn that a live peer had drawn before.

    What a killed peer had drawn may be drawn again by its heirs: its work is lost.
    """
    draws = sorted(
        (
            (event.at, order, event.fields.get("drawn", ()))
            for order, life in enumerate(lives)
            for event in life.all("progress")
        ),
        key=lambda draw: draw[:2],
    )
    drawn_by: dict[int, list[Life]] = defaultdict(list)
    num_double = 0
    for at, order, positions in draws:
        for position in positions:
            num_double += any(other.was_alive(at) for other in drawn_by[position])
            drawn_by[position].append(lives[order])
    return num_double
