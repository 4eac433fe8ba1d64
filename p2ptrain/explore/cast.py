"""Who plays which role in a simulated swarm right now, and which phase its rounds are in.

Everything is read off the peers from outside, at an instant; nothing is remembered but when each host first started.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from p2ptrain.averaging.round import Phase as RoundPhase
from p2ptrain.averaging.round import Round
from p2ptrain.explore.plan import Role
from p2ptrain.fragments.chain import Commit
from p2ptrain.ids import PeerId
from p2ptrain.sim.swarm import SimSwarm

NEWCOMER_WINDOW: Final = 60.0  # virtual seconds from its first start for which a peer counts as a newcomer

ROUND_PHASES: Final = {
    "gathering": RoundPhase.GATHERING,
    "collecting": RoundPhase.COLLECTING,
    "closing": RoundPhase.CLOSED,
}


@dataclass(frozen=True, slots=True)
class Scene:
    """Somebody's round, or a head that spreads: who has which part in it."""

    fragment: int
    leader: PeerId
    deputies: tuple[PeerId, ...]
    members: tuple[PeerId, ...]


class Cast:
    """The hosts of a swarm and their parts."""

    def __init__(self, swarm: SimSwarm) -> None:
        self._swarm = swarm
        self.born_at: dict[str, float] = {}
        self.bootstrap: str = ""

    def is_newcomer(self, host: str, now: float) -> bool:
        return host != self.bootstrap and now - self.born_at.get(host, -1e9) < NEWCOMER_WINDOW

    def scenes(self, phase: str) -> Iterator[Scene]:
        """Yield the rounds that are in a phase now, whoever leads them."""
        wanted = ROUND_PHASES[phase]
        for peer in self._swarm.peers.values():
            for fragment, leader in enumerate(peer._rounds._leaders):
                this_round: Round | None = leader._round
                if this_round is None or this_round.phase is not wanted:
                    continue
                members = this_round.registered if phase == "gathering" else this_round.arrived | this_round.registered
                head = peer.chains.followers[fragment].archive.head
                yield Scene(fragment, peer.peer_id, head.next[1:], tuple(members))

    def scene_of(self, commit: Commit) -> Scene:
        """Return the parts in a commit: who made it, and who leads after it."""
        return Scene(commit.fragment, commit.leader, commit.next[1:], commit.contributors)

    def heads(self) -> Iterator[Scene]:
        """Yield the scene of the heaviest head of each fragment: who is to lead on it."""
        peers = list(self._swarm.peers.values())
        for fragment in range(self._swarm.config.fragments.count):
            heads = [peer.chains.followers[fragment].archive.head for peer in peers]
            if heads:
                head = max(heads, key=lambda one: one.weight)
                yield Scene(fragment, head.next[0], head.next[1:], head.contributors)

    def who(self, role: Role, scene: Scene, now: float, among: Iterable[str]) -> list[str]:
        """Return the hosts that play a role in a scene, of these."""
        return [host for host in among if self._plays(host, role, scene, now)]

    def _plays(self, host: str, role: Role, scene: Scene, now: float) -> bool:
        if role == "bootstrap":
            return host == self.bootstrap
        if role == "newcomer":
            return self.is_newcomer(host, now)
        peer = self._swarm.identity(host).peer_id
        if role == "leader":
            return peer == scene.leader
        if role == "deputy":
            return peer in scene.deputies and peer != scene.leader
        is_member = peer in scene.members and peer != scene.leader
        return is_member if role == "member" else not is_member and peer != scene.leader
