"""What is seen of a swarm over time: the numbers that the plots are drawn from.

Of a simulated swarm they are taken while it runs (`LiveSeries`), of real processes from what they said (`series_of`).
Instants are seconds since the beginning.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median_low
from typing import TYPE_CHECKING, Any, Final

from p2ptrain.events import Event
from p2ptrain.simulate import measures
from p2ptrain.simulate.chains import AdoptedCommit
from p2ptrain.simulate.lives import Life

if TYPE_CHECKING:
    from p2ptrain.sim.swarm import SimSwarm

NUM_LOOKS: Final = 200  # over a whole simulation with real processes


@dataclass(frozen=True, slots=True)
class Look:
    """The swarm at one instant."""

    at: float
    num_alive: int
    num_trainers: int
    goodput: float
    """Merged so far / what could have been trained so far."""
    bytes_sent: int
    """By all, from the beginning."""
    behind: float
    """Commits that a peer has not adopted yet: mean over live peers and fragments."""


@dataclass(frozen=True, slots=True)
class RoundSeen:
    """A round that ended in a commit, as its leader says."""

    at: float
    fragment: int
    version: int
    num_contributors: int
    seconds: float  # from the call to the commit
    staleness: float
    """How many commits its contributions are behind the head on average, by their oldest base."""
    share: float
    """Contributors / live trainers, of whom a leader takes `limits.max_members`."""
    commit: str


@dataclass
class Series:
    """A swarm over time."""

    num_fragments: int
    looks: list[Look] = field(default_factory=list)
    rounds: list[RoundSeen] = field(default_factory=list)
    aborted: list[tuple[float, int]] = field(default_factory=list)
    """(at, fragment) of rounds that were given up."""

    def mean_staleness(self) -> float:
        return fmean([one.staleness for one in self.rounds]) if self.rounds else 0.0

    def begin_at(self, at: float) -> None:
        """Count time from this instant on; what was before it, while the swarm was raised, is forgotten."""
        self.looks = [replace(look, at=look.at - at) for look in self.looks if look.at >= at]
        self.rounds = [replace(one, at=one.at - at) for one in self.rounds if one.at >= at]
        self.aborted = [(when - at, fragment) for when, fragment in self.aborted if when >= at]

    def mean_behind(self) -> float:
        return fmean([look.behind for look in self.looks]) if self.looks else 0.0


class LiveSeries(Series):
    """Listens to a simulated swarm, and looks at it whenever `look` is called."""

    def __init__(self, swarm: "SimSwarm") -> None:
        super().__init__(swarm.config.fragments.count)
        self.num_messages = 0
        """Requests that were sent; every one has an answer."""
        self._swarm = swarm
        self._listen, swarm.on_event = swarm.on_event, self._event
        swarm.hooks.append(self._message)

    def look(self) -> None:
        swarm = self._swarm
        if not swarm.peers:
            return
        versions = [
            [follower.archive.head.version for follower in peer.chains.followers] for peer in swarm.peers.values()
        ]
        newest = [max(column) for column in zip(*versions, strict=True)]
        behind = fmean(new - version for row in versions for new, version in zip(newest, row, strict=True))
        sent = sum(swarm.world.network.num_sent_bytes.values())
        self.looks.append(Look(swarm.now, len(swarm.peers), len(swarm.live_trainers()), swarm.goodput(), sent, behind))

    def bytes_sent_per_machine(self) -> dict[str, int]:
        """Return mean, median and largest number of bytes that a machine put on its link."""
        sent = sorted(self._swarm.world.network.num_sent_bytes.values()) or [0]
        return {"mean": round(fmean(sent)), "median": median_low(sent), "largest": sent[-1]}

    def _message(self, host: str, direction: str, method: str) -> None:
        self.num_messages += direction == "send"

    def _event(self, host: str, event: Event) -> None:
        if event.kind == "round-committed":
            trainers = len(self._swarm.live_trainers(for_seconds=self._swarm.interval))
            largest = self._swarm.config.limits.max_members
            self.rounds.append(_round(event.fields, self._swarm.now, trainers, largest))
        elif event.kind == "round-aborted":
            self.aborted.append((self._swarm.now, event.fields["fragment"]))
        self._listen(host, event)


def series_of(
    lives: Sequence[Life], rounds: Sequence[AdoptedCommit], *, num_fragments: int, largest: int, interval: float, began_at: float,
    stopped_at: float,
) -> Series:  # fmt: skip
    """Return the same of real processes; `rounds` are those of the final chains, times as in the events."""
    series = Series(num_fragments)
    shares = dict(zip(
        [commit.commit for commit in rounds],
        measures.shares_of_rounds(rounds, lives, interval=interval, largest=largest), strict=True,
    ))  # fmt: skip
    for life in lives:
        for event in life.all("round-committed"):
            _, share = shares.get(event.fields["commit"], (0.0, 0.0))
            series.rounds.append(_round(event.fields, event.at - began_at, 0, largest, share))
        series.aborted += [(event.at - began_at, event.fields["fragment"]) for event in life.all("round-aborted")]
    series.rounds.sort(key=lambda one: one.at)
    accounts = {id(life): life.all("progress") for life in lives}
    times = {key: [event.at for event in events] for key, events in accounts.items()}
    merged_at = sorted((commit.committed_at, sum(commit.tokens.values()) / num_fragments) for commit in rounds)
    paces = [pace for life in lives if (pace := measures.pace_of(life, stopped_at)) is not None and pace.seconds]
    rate = fmean([pace.tokens / pace.seconds for pace in paces]) if paces else 0.0
    followed = _Followed(lives, num_fragments)
    offered, merged, before, turn = 0.0, 0.0, began_at, 0
    for number in range(1, NUM_LOOKS + 1):
        at = began_at + number * (stopped_at - began_at) / NUM_LOOKS
        alive = [life for life in lives if life.was_alive(at) and life.first("started") is not None]
        trainers = [life for life in alive if life.trained_from is not None and life.trained_from <= at]
        offered += rate * len(trainers) * (at - before)
        while turn < len(merged_at) and merged_at[turn][0] <= at:
            merged, turn = merged + merged_at[turn][1], turn + 1
        sent = 0
        for key, events in accounts.items():
            index = bisect_right(times[key], at) - 1
            sent += events[index].fields.get("bytes_sent", 0) if index >= 0 else 0
        goodput = merged / offered if offered else 0.0
        series.looks.append(Look(at - began_at, len(alive), len(trainers), goodput, sent, followed.behind(alive, at)))
        before = at
    return series


class _Followed:
    """Which version of each fragment each life had adopted when."""

    def __init__(self, lives: Sequence[Life], num_fragments: int) -> None:
        self._adopted: dict[tuple[int, int], tuple[list[float], list[int]]] = {}
        for life in lives:
            for fragment in range(num_fragments):
                events = [event for event in life.all("adopted") if event.fields["fragment"] == fragment]
                self._adopted[id(life), fragment] = (
                    [one.at for one in events],
                    [one.fields["version"] for one in events],
                )
        self._num_fragments = num_fragments

    def behind(self, alive: Sequence[Life], at: float) -> float:
        """Return how many commits the live ones are behind the newest on average; who has adopted nothing yet is left out."""
        gaps: list[int] = []
        for fragment in range(self._num_fragments):
            versions = []
            for life in alive:
                times, adopted = self._adopted[id(life), fragment]
                index = bisect_left(times, at) - 1
                if index >= 0:
                    versions.append(adopted[index])
            gaps += [max(versions) - version for version in versions]
        return fmean(gaps) if gaps else 0.0


def _round(fields: dict[str, Any], at: float, num_trainers: int, largest: int, share: float | None = None) -> RoundSeen:
    contributors = len(fields["contributors"])
    most = min(largest, max(num_trainers, contributors))
    return RoundSeen(
        at=at, fragment=fields["fragment"], version=fields["version"], num_contributors=contributors, seconds=fields["seconds"],
        staleness=fields.get("staleness", 0.0), share=contributors / most if share is None else share, commit=fields["commit"],
    )  # fmt: skip
