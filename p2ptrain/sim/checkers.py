"""Judging a simulated swarm from outside: what must hold whatever happens to whom.

* anchor: who adopts a commit has the bytes that it names, recomputed from what is in its memory.
* weight: (total work, -digest) of a peer's head only grows, for as long as the peer lives.
* ledger: along a chain the envelopes of a peer begin where its last one ended, so each inner step counts once; and a
  chain does not come out of nowhere: who is first to adopt a commit saw its parent adopted.
* holder: a commit is signed only when somebody besides its leader holds its bytes, or nobody else was in the round.
* tokens: trained = merged + pending + dropped, and what the books call merged is what the chain holds (accounts.py).
* work: what a learner has not merged changes by its own steps and by what a chain merged, by nothing else (work.py).
* leaks: no task, timer or connection outlives its process (leaks.py).
* bounds: memory, connections and queues stay within what the code names (bounds.py).
* convergence: after the last fault every live peer comes to one head per fragment.

A complaint ends the simulation (`SimSwarm.run` raises it), with seed, virtual time and what the peers concerned said
last. The checkers draw from a chance of their own and change nothing, so a swarm does the same with and without them.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass, field
from typing import Final

from p2ptrain.events import Event
from p2ptrain.fragments.chain import Commit
from p2ptrain.fragments.follower import Adopted, Follower
from p2ptrain.fragments.state import FragmentState
from p2ptrain.ids import Digest, PeerId, digest, short
from p2ptrain.peer import Peer
from p2ptrain.sim.bounds import excess
from p2ptrain.sim.leaks import leftovers
from p2ptrain.sim.ports import SimWorld
from p2ptrain.sim.process import SimProcess
from p2ptrain.sim.work import WorkBook

LOOK_INTERVAL: Final = 5.0  # virtual seconds between two looks at every peer
FEW_PEERS: Final = 32  # so many are looked at each time; of more, a changing part
SHARE: Final = 0.05  # of adoptions in a large swarm whose bytes are digested again without any memo
GRACE: Final = 20.0  # virtual seconds for what a dead process began to come to its end: longer than most time-outs
NUM_LAST_EVENTS: Final = 8  # of each peer concerned, in a complaint
MAX_LEDGERS: Final = 4096  # of commits, in the checkers' own books; the oldest are forgotten
TALKATIVE: Final = frozenset({"progress"})  # events that would only push the others out


class Violation(AssertionError):
    """An invariant is broken; the message has what a person needs to look further."""

    def __init__(self, rule: str, what: str, *, seed: int | None = None, at: float = 0.0, story: str = "") -> None:
        self.rule, self.what, self.seed, self.at = rule, what, seed, at
        super().__init__(f"seed {seed}, {at:.3f} s, {rule}: {what}{story}")


@dataclass(eq=False)
class Life:
    """One process of one peer, from its start to a while after its end."""

    host: str
    peer: Peer
    process: SimProcess | None
    began_at: float
    books: list[WorkBook]
    weights: dict[int, tuple[int, int]] = field(default_factory=dict)
    events: deque[str] = field(default_factory=lambda: deque(maxlen=NUM_LAST_EVENTS))
    ended_at: float | None = None
    lies: bool = False
    """Its own books are not judged: it was told to lie."""

    @property
    def name(self) -> str:
        return f"{short(self.peer.peer_id)} on {self.host}" if self.host else short(self.peer.peer_id)


class Checkers:
    """Watches every adoption of every peer that it is shown, and looks at all of them now and then."""

    def __init__(self, world: SimWorld | None = None) -> None:
        self._world = world
        self._chance = random.Random(digest("checkers", str(world.seed if world else 0).encode()))
        self._lives: list[Life] = []  # live ones, and dead ones for a while
        self._by_peer: dict[PeerId, list[Life]] = {}
        self._steps: dict[Digest, dict[PeerId, int]] = {}  # commit -> what it has merged of whom, by our own count
        self._states: dict[Digest, Digest] = {}
        self._looking: asyncio.Task[None] | None = None
        self._turn = 0
        self.num_adoptions = 0
        self.violation: Violation | None = None
        self.on_violation: Callable[[], None] = lambda: None
        """Called once, at the first complaint: ends the story."""

    # Watching

    def watch(self, peer: Peer, host: str = "") -> None:
        """Check each adoption of a peer from now on, and what it begins with."""
        process = self._world.process(host) if self._world is not None and host else None
        books = [WorkBook(account) for account in peer.learner.accounts] if peer.learner is not None else []
        life = Life(host, peer, process, self._now, books)
        self._lives.append(life)
        self._by_peer.setdefault(peer.peer_id, []).append(life)
        peer.events.subscribe(lambda event: self._hear(life, event))
        for follower in peer.chains.followers:
            follower.on_adopted(lambda adopted: self._check_adoption(life, adopted))
            self._check_adoption(life, Adopted(follower.archive.head, follower.archive.state, 0, None), first=True)
        for book in books:
            book.on_leak = lambda what: self._complain("work", what, [life])
        if self._looking is None and self._world is not None:
            self._looking = asyncio.create_task(self._look_now_and_then(), context=Context())

    def tell_lies(self, host: str) -> None:
        """Note that the process on a host lies from now on: its own books may say what they like."""
        for life in self._lives:
            if life.host == host and life.ended_at is None:
                life.lies = True

    def _hear(self, life: Life, event: Event) -> None:
        if event.kind not in TALKATIVE:
            fields = " ".join(f"{key}={str(value)[:40]}" for key, value in event.fields.items())
            life.events.append(f"{self._now:.3f} s {event.kind} {fields}")
        if event.kind == "left" and life.ended_at is None:
            life.ended_at = self._now

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def complain(self, rule: str, what: str, hosts: Iterable[str] = ()) -> None:
        """End the simulation: a rule that somebody else watches is broken on these hosts."""
        concerned = set(hosts)
        self._complain(rule, what, [life for life in self._lives if life.host in concerned])

    def _complain(self, rule: str, what: str, lives: Sequence[Life]) -> None:
        story = "".join(
            f"\n  {life.name} said last:" + "".join(f"\n    {line}" for line in life.events) for life in lives
        )
        seed = self._world.seed if self._world is not None else None
        violation = Violation(rule, what, seed=seed, at=self._now, story=story)
        if self.violation is None:
            self.violation = violation
            self.on_violation()
        raise violation

    # At every adoption

    def _check_adoption(self, life: Life, adopted: Adopted, *, first: bool = False) -> None:
        commit = adopted.commit
        where = f"{life.name}, fragment {commit.fragment}, version {commit.version}"
        self.num_adoptions += 1
        self._check_state(life, commit, adopted.state, where, thorough=len(self._lives) <= FEW_PEERS)
        self._check_weight(life, commit, where)
        self._check_ledger(life, commit, adopted.state, where)
        if commit.leader == life.peer.peer_id and adopted.source is None and not first:
            self._check_holder(life, commit, where)

    def _check_state(self, life: Life, commit: Commit, state: FragmentState, where: str, *, thorough: bool) -> None:
        """Compare the bytes in memory with what the commit names, digested anew (`thorough`) or as the peer did."""
        thorough = thorough or self._chance.random() < SHARE
        found = digest("state", *state.to_buffers()) if thorough else state.digest
        if found != commit.state or self._states.setdefault(commit.digest, found) != found:
            self._complain(
                "anchor", f"{where}: the bytes in memory are not those of commit {commit.digest.hex()[:12]}", [life]
            )

    def _check_weight(self, life: Life, commit: Commit, where: str) -> None:
        before = life.weights.get(commit.fragment, (-1, 0))
        if commit.weight < before:
            self._complain("weight", f"{where}: the adopted work fell from {before[0]} to {commit.total_work}", [life])
        life.weights[commit.fragment] = commit.weight

    def _check_ledger(self, life: Life, commit: Commit, state: FragmentState, where: str) -> None:
        if commit.digest in self._steps:
            return
        steps: dict[PeerId, int] = {}
        if commit.version:
            parent = self._steps.get(commit.parent)
            if parent is None:
                self._complain("ledger", f"{where}: nobody ever adopted this commit's parent", [life])
                return
            steps = dict(parent)
        for envelope in commit.envelopes:
            merged = steps.get(envelope.peer, 0)
            if envelope.after_step != merged or envelope.last_step <= merged:
                what = f"steps {envelope.after_step + 1} to {envelope.last_step} of {short(envelope.peer)} were merged"
                self._complain("ledger", f"{where}: {what} after step {merged}", [life])
            steps[envelope.peer] = envelope.last_step
        if {peer: entry.last_step for peer, entry in state.ledger.entries.items()} != steps:
            self._complain("ledger", f"{where}: the ledger is not what the chain's envelopes add up to", [life])
        self._steps[commit.digest] = steps
        if len(self._steps) > MAX_LEDGERS:
            del self._steps[next(iter(self._steps))]

    def _check_holder(self, life: Life, commit: Commit, where: str) -> None:
        others = [peer for peer in commit.contributors if peer != commit.leader]
        holders = [
            other for peer in others for other in self._by_peer.get(peer, ()) if _holds(other.peer, commit)
        ]  # a holder that died a moment ago counts: nobody can know that
        if others and not holders:
            self._complain("holder", f"{where}: signed while only its leader held the update", [life])

    # Now and then

    async def _look_now_and_then(self) -> None:
        while self.violation is None:
            await asyncio.sleep(LOOK_INTERVAL)
            with suppress(Violation):  # it is noted, and ends the story
                self.check_now()

    def check_now(self) -> None:
        """Look at the peers (at a part of them, in a large swarm), and at what dead ones left behind."""
        now, alive = self._now, []
        for life in self._lives:
            if life.ended_at is None and life.process is not None and not life.process.alive:
                life.ended_at = now
            if life.ended_at is None:
                alive.append(life)
        stride = max(1, len(alive) // FEW_PEERS)
        self._turn += 1
        for life in alive[self._turn % stride :: stride]:
            self._check_life(life)
        if alive:
            self._check_memory(self._chance.choice(alive))
        self._check_leaks([life for life in self._lives if life.ended_at is not None and now > life.ended_at + GRACE])

    def _check_life(self, life: Life) -> None:
        if life.peer.learner is not None and not life.lies:
            for index, tally in enumerate(life.peer.learner.tallies()):
                if tally.trained != tally.merged + tally.pending + sum(tally.dropped.values()):
                    self._complain(
                        "tokens", f"{life.name}, fragment {index}: tokens are not conserved: {tally}", [life]
                    )
            for index, book in enumerate(life.books):
                if what := book.leak():
                    self._complain("work", f"{life.name}, fragment {index}: {what}", [life])
        if what := excess(life.peer):
            self._complain("bounds", f"{life.name}: {what}", [life])

    def _check_memory(self, life: Life) -> None:
        for follower in life.peer.chains.followers:
            head = follower.archive.head
            where = f"{life.name}, fragment {head.fragment}, version {head.version}"
            self._check_state(life, head, follower.archive.state, where, thorough=True)

    def _check_leaks(self, dead: Sequence[Life]) -> None:
        processes = {life.process: life for life in dead if life.process is not None}
        assert self._world is not None or not processes
        if processes and self._world is not None:
            for process, what in leftovers(self._world.network, processes):
                life = processes[process]
                since = f"{self._now - (life.ended_at or 0.0):.1f} s after its end"
                self._complain("leaks", f"{life.name}: {what} {since}", [life])
        for life in dead:
            self._lives.remove(life)
            self._by_peer[life.peer.peer_id].remove(life)

    # At settled moments

    def check_books(self, peer: Peer) -> None:
        """Check a peer's tokens; its learner must have adopted what its chains have (a step after the last adoption)."""
        life = next((one for one in self._by_peer.get(peer.peer_id, ()) if one.peer is peer), None)
        if peer.learner is None or (life is not None and life.lies):
            return
        for index, (follower, tally) in enumerate(zip(peer.chains.followers, peer.learner.tallies(), strict=True)):
            where, concerned = f"{short(peer.peer_id)}, fragment {index}", [life] if life else []
            if tally.trained != tally.merged + tally.pending + sum(tally.dropped.values()):
                self._complain("tokens", f"{where}: tokens are not conserved: {tally}", concerned)
            in_chain = _tokens_in_chain(follower, peer)
            if in_chain is not None and in_chain != tally.merged:
                what = f"the chain holds {in_chain} tokens of this peer, its books say {tally.merged}"
                self._complain("tokens", f"{where}: {what}", concerned)

    def check_convergence(self, peers: Sequence[Peer], within: float) -> None:
        """Complain unless all these peers have one head per fragment; `within` is how long they had (s)."""
        for index in range(len(peers[0].chains.followers) if peers else 0):
            heads: dict[Digest, list[Peer]] = {}
            for peer in peers:
                heads.setdefault(peer.chains.followers[index].archive.head.digest, []).append(peer)
            if len(heads) > 1:
                sides = ", ".join(
                    f"{len(side)} on version {side[0].chains.followers[index].archive.head.version} "
                    f"{head.hex()[:8]} ({', '.join(short(peer.peer_id) for peer in side[:4])})"
                    for head, side in heads.items()
                )
                fewest = min(heads.values(), key=len)
                concerned = [life for peer in fewest[:3] for life in self._by_peer[peer.peer_id] if life.peer is peer]
                self._complain(
                    "convergence", f"fragment {index}, {within:g} s after the last fault: {sides}", concerned
                )


def _holds(peer: Peer, commit: Commit) -> bool:
    return peer.chains.followers[commit.fragment].archive.update(commit.update) is not None


def _tokens_in_chain(follower: Follower, peer: Peer) -> int | None:
    """Return what the adopted chain merged of a peer's present life; None when it is not held from the beginning."""
    chain = follower.archive.chain(follower.archive.head.digest, 1 << 16)
    if chain[-1].version:
        return None
    return sum(
        envelope.tokens
        for commit in chain
        for envelope in commit.envelopes
        if envelope.peer == peer.peer_id and envelope.last_step > peer.first_step
    )
