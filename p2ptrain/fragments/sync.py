"""Chains between peers: serving what we hold, spreading heads, and the first sync of a newcomer.

A head spreads by gossip of changes: its leader tells the members of its round, and who adopts it tells a few others who
are not known to have it, who ask for what they lack. The more have told a peer, the more know already, and the fewer it
tells. What gossip misses is found by comparing heads with a random peer now and then; if a leader dies in the middle of
telling, its members tell each other. Everything that is served is named by digest or is our adopted head, so a donor
needs no session with whom it serves.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Container, Iterable, Sequence
from typing import TypeVar

from p2ptrain.config import RunConfig
from p2ptrain.errors import NetworkError, Refused, RemoteProtocolError, StateSyncError
from p2ptrain.events import Events
from p2ptrain.fragments.archive import MAX_UPDATES, Archive
from p2ptrain.fragments.chain import ChainError, Commit
from p2ptrain.fragments.donor import Donors
from p2ptrain.fragments.follower import Adopted, Follower
from p2ptrain.fragments.layout import Fragment, Layout
from p2ptrain.fragments.messages import (
    MAX_INLINE_COMMIT_BYTES,
    Announce,
    Commits,
    Done,
    ExchangeHeads,
    GetCommits,
    GetSnapshot,
    GetUpdate,
    Head,
    Heads,
    Snapshot,
)
from p2ptrain.fragments.pure import Pure
from p2ptrain.fragments.state import FragmentState
from p2ptrain.ids import Digest, PeerId, short
from p2ptrain.net.transport import Transport
from p2ptrain.runtime import Runtime
from p2ptrain.tasks import TaskOwner

GOSSIP_FANOUT = 6  # peers told of a change: with 6, gossip reaches all of 1,000 in about four hops
LEAST_FANOUT = 2  # told by who has heard of it from many
FEW_COMMIT_BYTES = 4 * 1024  # of a commit that goes along with gossip; most announcements are not the first
MAX_HEARD_OF = 8  # heads of a fragment of which is remembered who has them
HEADS_INTERVAL = 5.0  # seconds between two comparisons of heads with a random peer
MAX_HEADS_INTERVAL = 30.0  # the same while rounds are rare: a twentieth of the time between two commits
LEADER_WINDOW = 10.0  # seconds after a commit in which its leader may still be telling its members
HEADS_TIMEOUT = 5.0
MAX_COMMITS_SERVED = 1024
MAX_CONCURRENT_SNAPSHOTS = 4  # more at a time would starve the donor's own rounds
ENOUGH_ASKED = 8  # peers that a newcomer asks where the run stands, while there are so many
ENOUGH_ANSWERS = 3  # with which it does not wait for those that are slow
FIRST_ANSWERS_WINDOW = 1.5  # seconds
SYNC_ATTEMPTS = 5  # rounds of asking everybody before a newcomer gives up

Body = bytes | memoryview
Answer = TypeVar("Answer")


class ChainSync:
    """Every fragment's follower on one peer, and what it serves to the others."""

    def __init__(
        self,
        *,
        config: RunConfig,
        layout: Layout,
        transport: Transport,
        runtime: Runtime,
        events: Events,
        pure: Pure,
        others: Callable[[], Sequence[PeerId]],
    ) -> None:
        self.followers: list[Follower] = []
        self._config, self._layout, self._transport, self._runtime = config, layout, transport, runtime
        self._events, self._pure, self._others = events, pure, others
        self._donors = Donors(transport, runtime, others, pure)
        self._tasks = TaskOwner(events)
        self._num_snapshots = 0
        self._heard_of: OrderedDict[Digest, set[PeerId]] = OrderedDict()  # heads, and who has said that it has them
        self._adopted_at: dict[int, float] = {}  # by fragment

    def begin(self, start: Sequence[tuple[Commit, FragmentState]]) -> None:
        """Start from these heads (genesis, a saved state, or what `fetch_heads` returned): serve and follow."""
        for fragment, (commit, state) in zip(self._layout.fragments, start, strict=True):
            follower = Follower(
                fragment=fragment, config=self._config, archive=Archive(commit, state), donors=self._donors,
                runtime=self._runtime, events=self._events, pure=self._pure,
            )  # fmt: skip
            follower.on_adopted(self._spread)
            self.followers.append(follower)
            self._tasks.spawn(f"follow fragment {fragment.index}", follower.run())
        self._transport.handle_at_once(ExchangeHeads, self._serve_heads)
        self._transport.handle_at_once(Announce, self._hear_announcement)
        self._transport.on_disconnected(self._finish_telling)
        self._transport.handle(GetCommits, self._serve_commits)
        self._transport.handle(GetUpdate, self._serve_update)
        self._transport.handle(GetSnapshot, self._serve_snapshot)
        self._tasks.spawn("compare heads", self._compare_heads())

    async def close(self) -> None:
        await self._tasks.close()

    def heads(self) -> tuple[Head, ...]:
        """Return our adopted heads, as others hear of them."""
        return tuple(
            Head(fragment=index, digest=follower.archive.head.digest, total_work=follower.archive.head.total_work)
            for index, follower in enumerate(self.followers)
        )

    # A newcomer's first sync

    async def fetch_heads(
        self, strangers: Callable[[], Sequence[PeerId]] = lambda: ()
    ) -> list[tuple[Commit, FragmentState]]:
        """Return the heaviest head of each fragment that the peers we know have, and its state; StateSyncError if none.

        While we are connected with few, some `strangers` are asked, too: peers that we have only heard of.
        """
        reasons = "no peer could say where the run stands"
        for attempt in range(SYNC_ATTEMPTS):
            heads: dict[int, list[tuple[Head, PeerId]]] = {fragment.index: [] for fragment in self._layout.fragments}
            for peer, answer in await self._ask_many(strangers()):
                for head in answer:
                    if head.fragment in heads:
                        heads[head.fragment].append((head, peer))
            try:
                if all(heads.values()):
                    starts = (self._fetch_start(fragment, heads[fragment.index]) for fragment in self._layout.fragments)
                    return list(await asyncio.gather(*starts))
            except StateSyncError as error:
                reasons = str(error)
            await asyncio.sleep(0.5 * (attempt + 1))
        raise StateSyncError(reasons)

    async def _ask_many(self, strangers: Sequence[PeerId]) -> list[tuple[PeerId, tuple[Head, ...]]]:
        """Return what peers say of their heads: all who are connected, some others, not waiting long for the last ones."""
        connected, answers = list(self._others()), []
        unknown = [peer for peer in strangers if peer not in connected]
        wanted = min(len(unknown), max(0, ENOUGH_ASKED - len(connected)))
        asked = [*connected, *self._runtime.entropy.random.sample(unknown, wanted)]

        async def ask(peer: PeerId) -> None:
            answer = await self._ask_heads(peer, ())
            if answer:
                answers.append((peer, answer))

        asking = [self._tasks.spawn(f"ask {short(peer)} where the run stands", ask(peer)) for peer in asked]
        if asking:
            await asyncio.wait(asking, timeout=FIRST_ANSWERS_WINDOW)
        if len(answers) < ENOUGH_ANSWERS and any(not task.done() for task in asking):
            await asyncio.wait(asking, timeout=HEADS_TIMEOUT)
        for task in asking:
            task.cancel()
        return sorted(answers)

    async def _fetch_start(self, fragment: Fragment, heads: list[tuple[Head, PeerId]]) -> tuple[Commit, FragmentState]:
        """Return the heaviest head that half of the peers reach, or the next lighter one: no single peer decides."""
        heaviest_first = sorted(heads, key=lambda item: (-item[0].total_work, item[0].digest, item[1]))
        believed = heaviest_first[len(heaviest_first) // 2 :]
        reasons: list[str] = []
        for head_digest in dict.fromkeys(head.digest for head, _ in believed):
            holders = [peer for head, peer in believed if head.digest == head_digest]
            try:
                return await self._donors.snapshot(fragment, self._config.outer, holders, wanted=Digest(head_digest))
            except StateSyncError as error:
                reasons.append(str(error))
        raise StateSyncError("; ".join(reasons))

    # Spreading heads

    def _spread(self, adopted: Adopted) -> None:
        """Pass a head on to a few who are not known to have it: neither who told us nor whom its leader tells."""
        commit = adopted.commit
        self._adopted_at[commit.fragment] = self._runtime.clock.monotonic()
        tellers = self._heard_of.get(commit.digest, set())
        fanout = max(LEAST_FANOUT, GOSSIP_FANOUT + 1 - len(tellers))
        self._tell_some(commit, {*tellers, *commit.contributors, commit.leader}, fanout)

    def _tell_some(self, commit: Commit, knowing: Container[PeerId], fanout: int) -> None:
        others = [peer for peer in self._transport.connected() if peer not in knowing]
        chosen = self._runtime.entropy.random.sample(others, min(fanout, len(others)))
        self.announce(commit, chosen, max_commit_bytes=FEW_COMMIT_BYTES)

    def _finish_telling(self, peer: PeerId) -> None:
        """A connection is lost. If it was that of a leader who may not have told all its members, we tell some of them."""
        now = self._runtime.clock.monotonic()
        for follower in self.followers:
            head = follower.archive.head
            adopted_at = self._adopted_at.get(head.fragment, -LEADER_WINDOW)
            if head.leader == peer and now - adopted_at < LEADER_WINDOW and self._transport.peer_id != peer:
                self._tell_some(head, self._heard_of.get(head.digest, set()), GOSSIP_FANOUT)

    def announce(
        self, commit: Commit, peers: Iterable[PeerId], *, max_commit_bytes: int = MAX_INLINE_COMMIT_BYTES
    ) -> None:
        """Tell peers of a head that we have and serve; a commit that is not too large goes along."""
        if self._tasks.is_closed:  # connections end after the chains when a peer leaves, and that is no news to pass on
            return
        data = commit.to_bytes()
        head = Head(fragment=commit.fragment, digest=commit.digest, total_work=commit.total_work)
        message = Announce(head=head, commit=data if len(data) <= max_commit_bytes else b"")
        for peer in dict.fromkeys(peers):
            if peer != self._transport.peer_id:
                self._tasks.spawn(f"announce to {peer[-6:]}", self._tell(peer, message))

    async def _tell(self, peer: PeerId, message: Announce) -> None:
        await _quietly(self._transport.call(peer, message, Done, timeout=HEADS_TIMEOUT))

    def _hear_announcement(self, sender: PeerId, message: Announce) -> Done:
        commit = None
        if message.commit and self._is_wanted(message.head):
            try:
                commit = self._pure.parse_commit(message.commit)
            except ChainError as error:
                raise Refused("malformed", str(error)) from None
            if commit.digest != message.head.digest or commit.total_work != message.head.total_work:
                raise Refused("malformed", "the commit is not that of the head")
        self.hear_of(message.head, sender, commit)
        return Done()

    def _is_wanted(self, head: Head) -> bool:
        """Return whether we would follow this head, and have not got its commit yet."""
        if head.fragment >= len(self.followers):
            return False
        return self.followers[head.fragment].lacks(Digest(head.digest), head.total_work)

    def hear_of(self, head: Head, source: PeerId, commit: Commit | None = None) -> None:
        """Note a head that a peer says it has."""
        if head.fragment < len(self.followers):
            tellers = self._heard_of.setdefault(Digest(head.digest), set())
            tellers.add(source)
            self._heard_of.move_to_end(Digest(head.digest))
            if len(self._heard_of) > MAX_HEARD_OF * len(self.followers):
                self._heard_of.popitem(last=False)
            self.followers[head.fragment].offer(Digest(head.digest), head.total_work, source, commit)

    @property
    def _heads_interval(self) -> float:
        """How often heads are compared (s): a twentieth of the time between commits, as far as that is known."""
        times = []
        for follower in self.followers:
            head = follower.archive.head
            parent = follower.archive.commit(head.parent)
            times.append(0.0 if parent is None else head.committed_at - parent.committed_at)
        return min(max(HEADS_INTERVAL, min(times) / 20), MAX_HEADS_INTERVAL)

    async def _compare_heads(self) -> None:
        while True:
            await asyncio.sleep(self._heads_interval * self._runtime.entropy.random.uniform(0.5, 1.5))
            connected = self._transport.connected()
            if connected:
                peer = self._runtime.entropy.random.choice(connected)
                for head in await self._ask_heads(peer, self.heads()):
                    self.hear_of(head, peer)

    async def _ask_heads(self, peer: PeerId, own: tuple[Head, ...]) -> tuple[Head, ...]:
        reply = await _quietly(self._transport.call(peer, ExchangeHeads(heads=own), Heads, timeout=HEADS_TIMEOUT))
        return reply.message.heads if reply else ()

    # Serving

    def _serve_heads(self, sender: PeerId, request: ExchangeHeads) -> Heads:
        for head in request.heads:
            self.hear_of(head, sender)
        return Heads(heads=self.heads())

    def _archive(self, fragment: int) -> Archive:
        if fragment >= len(self.followers):
            raise Refused("unknown-fragment", f"this run has {len(self.followers)} fragments")
        return self.followers[fragment].archive

    async def _serve_commits(self, _sender: PeerId, request: GetCommits, _body: bytearray) -> tuple[Commits, Body]:
        known = set(request.known)
        path: list[bytes] = []
        most = min(request.most, MAX_COMMITS_SERVED)
        for commit in self._archive(request.fragment).chain(Digest(request.digest), most):
            if commit.digest in known or commit.version == 0:
                break
            path.append(commit.to_bytes())
        if not path:
            raise Refused("unknown-commit", "that commit is not held here")
        path.reverse()
        return Commits(sizes=tuple(len(data) for data in path)), b"".join(path)

    async def _serve_update(self, sender: PeerId, request: GetUpdate, _body: bytearray) -> tuple[Done, Body]:
        data = self._archive(request.fragment).update(Digest(request.digest))
        if data is None and request.fetch:
            data = await self._update_from_others(request, sender)
        if data is None:
            raise Refused("unknown-update", "that update is not held here")
        return Done(), data

    async def _update_from_others(self, request: GetUpdate, sender: PeerId) -> bytes | None:
        """Return an update of our chain that we lack, having got there by a snapshot: those who hold it may be
        connected with us and with nobody else."""
        follower = self.followers[request.fragment]
        chain = follower.archive.chain(follower.archive.head.digest, MAX_UPDATES)
        commit = next((one for one in chain if one.update == request.digest), None)
        if commit is None:
            return None
        holders = [peer for peer in (commit.leader, *commit.contributors) if peer != sender]
        try:
            data = await follower.fetch_update(commit, holders)
        except StateSyncError:
            return None
        follower.archive.remember_update(commit.update, data)
        return data

    async def _serve_snapshot(self, _sender: PeerId, request: GetSnapshot, _body: bytearray) -> tuple[Snapshot, Body]:
        archive = self._archive(request.fragment)
        if self._num_snapshots >= MAX_CONCURRENT_SNAPSHOTS:
            raise Refused("busy", "as many snapshots as allowed are being made", retry_after=0.5)
        self._num_snapshots += 1
        try:
            commit_bytes, data = await self._runtime.compute.run(self._pure.pack_snapshot, archive.head, archive.state)
        finally:
            self._num_snapshots -= 1
        return Snapshot(commit_bytes=commit_bytes), data


async def _quietly(call: Awaitable[Answer]) -> Answer | None:
    """Return the answer of a call that may fail without harm: gossip is repeated anyway."""
    try:
        return await call
    except (NetworkError, Refused, RemoteProtocolError):
        return None
