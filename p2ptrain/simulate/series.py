"""What the outside of a simulated world sees over time: the numbers that the plots are drawn from."""

from collections import defaultdict
from dataclasses import dataclass
from statistics import fmean, median_low

from p2ptrain.events import Event
from p2ptrain.sim.swarm import SimSwarm


@dataclass(frozen=True, slots=True)
class Look:
    """The swarm at one instant (virtual s)."""

    at: float
    num_alive: int
    num_trainers: int
    goodput: float
    bytes_sent: int  # by all, from the beginning


@dataclass(frozen=True, slots=True)
class Round:
    """A round that ended in a commit, as its leader says."""

    at: float
    fragment: int
    version: int
    num_contributors: int
    seconds: float  # from the call to the commit
    staleness: float
    share: float
    """Contributors / live trainers, of whom a leader takes `limits.max_members`."""


class Series:
    """Listens to a swarm and looks at it whenever `look` is called."""

    def __init__(self, swarm: SimSwarm) -> None:
        self.looks: list[Look] = []
        self.rounds: list[Round] = []
        self.num_aborted: dict[str, int] = defaultdict(int)  # by reason
        self.num_messages = 0
        """Requests that were sent; every one has an answer."""
        self._swarm = swarm
        self._listen, swarm.on_event = swarm.on_event, self._event
        swarm.hooks.append(self._message)

    def look(self) -> None:
        swarm = self._swarm
        if swarm.peers:
            sent = sum(swarm.world.network.num_sent_bytes.values())
            now = swarm.now
            goodput = swarm.goodput()
            self.looks.append(Look(now, len(swarm.peers), len(swarm.live_trainers()), goodput, sent))

    def bytes_sent_per_peer(self) -> dict[str, int]:
        """Return mean, median and largest number of bytes that a machine sent."""
        sent = sorted(self._swarm.world.network.num_sent_bytes.values()) or [0]
        return {"mean": round(fmean(sent)), "median": median_low(sent), "largest": sent[-1]}

    def mean_staleness(self) -> float:
        """Return how many commits lay between the oldest base of a contribution and its round, on average."""
        return fmean([one.staleness for one in self.rounds]) if self.rounds else 0.0

    def participation(self) -> float:
        """Return the mean over rounds of contributors / as many live trainers as a leader takes."""
        return fmean([one.share for one in self.rounds]) if self.rounds else 0.0

    def _message(self, host: str, direction: str, method: str) -> None:
        self.num_messages += direction == "send"

    def _event(self, host: str, event: Event) -> None:
        if event.kind == "round-committed":
            fields = event.fields
            contributors = len(fields["contributors"])
            trainers = len(self._swarm.live_trainers(for_seconds=self._swarm.interval))
            most = min(self._swarm.config.limits.max_members, max(trainers, contributors))
            self.rounds.append(
                Round(
                    at=self._swarm.now, fragment=fields["fragment"], version=fields["version"],
                    num_contributors=contributors, seconds=fields["seconds"], staleness=fields["staleness"],
                    share=contributors / most,
                )
            )  # fmt: skip
        elif event.kind == "round-aborted":
            self.num_aborted[event.fields["reason"]] += 1
        self._listen(host, event)
