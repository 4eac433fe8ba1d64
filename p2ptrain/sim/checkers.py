"""Judging a simulated swarm from outside: what must hold whatever happens to whom.

* Same commit, same anchor: whoever adopts a commit has the same bytes, recomputed from what is in its memory.
* Adopted work never falls: (total work, -digest) of a peer's head only grows, for as long as the peer lives.
* Tokens are conserved: trained = merged + pending + dropped in every learner's books, and what the books call merged is
  what the adopted chain holds of that peer.
"""

from p2ptrain.fragments.follower import Adopted
from p2ptrain.ids import Digest
from p2ptrain.peer import Peer


class Violation(AssertionError):
    """An invariant is broken; the message has what a person needs to look further."""


class Checkers:
    """Watches every adoption of every peer that it is shown."""

    def __init__(self) -> None:
        self._states: dict[Digest, Digest] = {}
        self._weights: dict[tuple[int, int], tuple[int, int]] = {}
        self.num_adoptions = 0

    def watch(self, peer: Peer) -> None:
        """Check each adoption of a peer from now on, and what it begins with."""
        for follower in peer.chains.followers:
            follower.on_adopted(lambda adopted: self._check(peer, adopted))
            self._check(peer, Adopted(follower.archive.head, follower.archive.state, 0, None))

    def _check(self, peer: Peer, adopted: Adopted) -> None:
        commit, fragment = adopted.commit, adopted.commit.fragment
        where = f"{peer.peer_id[-6:]}, fragment {fragment}, version {adopted.commit.version}"
        self.num_adoptions += 1
        recomputed = adopted.state.recompute_digest()
        if recomputed != commit.state or self._states.setdefault(commit.digest, recomputed) != recomputed:
            raise Violation(f"{where}: the bytes in memory are not those of commit {commit.digest.hex()[:12]}")
        key = (id(peer), fragment)
        if commit.weight < self._weights.get(key, (0, -(2**256))):
            raise Violation(f"{where}: the adopted work fell from {self._weights[key][0]} to {commit.total_work}")
        self._weights[key] = commit.weight

    def check_books(self, peer: Peer) -> None:
        """Check a peer's tokens; its learner must have adopted what its chains have (a step after the last adoption)."""
        if peer.learner is None:
            return
        for index, (follower, tally) in enumerate(zip(peer.chains.followers, peer.learner.tallies(), strict=True)):
            where = f"{peer.peer_id[-6:]}, fragment {index}"
            if tally.trained != tally.merged + tally.pending + sum(tally.dropped.values()):
                raise Violation(f"{where}: tokens are not conserved: {tally}")
            chain = follower.archive.chain(follower.archive.head.digest, 1 << 16)
            in_chain = sum(
                envelope.tokens
                for commit in chain
                for envelope in commit.envelopes
                if envelope.peer == peer.peer_id and envelope.last_step > peer.first_step
            )
            if chain[-1].version == 0 and in_chain != tally.merged:
                raise Violation(
                    f"{where}: the chain holds {in_chain} tokens of this peer, its books say {tally.merged}"
                )
