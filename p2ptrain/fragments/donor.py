"""Asking others for commits, updates and snapshots, by digest, until one of them has it."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from p2ptrain.config import OuterConfig
from p2ptrain.errors import NetworkError, Refused, RemoteProtocolError, StateSyncError
from p2ptrain.fragments.chain import MAX_COMMIT_BYTES, MAX_WORK, ChainError, Commit
from p2ptrain.fragments.layout import Fragment
from p2ptrain.fragments.messages import (
    Commits,
    Done,
    ExchangeHeads,
    GetCommits,
    GetSnapshot,
    GetUpdate,
    Heads,
    Snapshot,
)
from p2ptrain.fragments.pure import Pure
from p2ptrain.fragments.state import FragmentState
from p2ptrain.ids import Digest, PeerId, digest, short
from p2ptrain.net.calls import TOO_LARGE
from p2ptrain.net.transport import SMALL_BODY_BYTES, Transport
from p2ptrain.runtime import Runtime

MAX_DONORS = 6  # asked one after the other before a fetch is given up
MAX_PASSES = 20  # over donors that are busy: with a second each, longer than a crowd of newcomers needs
MAX_RETRY_AFTER = 5.0  # seconds; whatever a donor says
HEADS_TIMEOUT = 5.0
FETCH_TIMEOUT = 60.0  # seconds for one donor; the transport gives up earlier when no byte moves
COMMITS_TIMEOUT = 20.0
MAX_LEDGER_BYTES = 16 * 1024 * 1024  # about 200,000 peers

Found = TypeVar("Found")


class Donors:
    """Fetches with fall-back: the peers who said they have it first, then anybody who is connected."""

    def __init__(
        self, transport: Transport, runtime: Runtime, others: Callable[[], Sequence[PeerId]], pure: Pure
    ) -> None:
        self._transport, self._runtime, self._others, self._pure = transport, runtime, others, pure

    def _is_signed(self, commit: Commit) -> bool:
        return self._pure.verify(commit.leader, Commit.DOMAIN, commit.payload, commit.signature)

    async def commits(
        self, fragment: int, head: Digest, known: list[Digest], holders: Iterable[PeerId], *, most: int = 1024
    ) -> list[Commit]:
        """Return (at most) the last commits that lead to `head`, oldest first; StateSyncError when nobody has them."""

        async def ask(peer: PeerId) -> list[Commit]:
            request = GetCommits(fragment=fragment, digest=head, known=tuple(known), most=most)
            call = partial(self._transport.call, peer, request, Commits, timeout=COMMITS_TIMEOUT)
            try:  # mostly it is one commit: not worth a connection for bulk
                reply = await call(max_body_bytes=SMALL_BODY_BYTES)
            except Refused as refusal:
                if refusal.code != TOO_LARGE:
                    raise
                reply = await call(bulk=True, max_body_bytes=4 * MAX_COMMIT_BYTES)
            return await self._runtime.compute.run(self._split_commits, bytes(reply.body), reply.message.sizes, head)

        return await self._first(ask, holders, "the commits")

    async def update(
        self, fragment: Fragment, commit: Commit, num_bytes: int, holders: Iterable[PeerId], *, fetch: bool = True
    ) -> bytes:
        """Return the bytes of a commit's update, checked by digest; `fetch`: donors may get it from others."""

        async def ask(peer: PeerId) -> bytes:
            request = GetUpdate(fragment=fragment.index, digest=commit.update, fetch=fetch)
            reply = await self._transport.call(
                peer, request, Done, timeout=FETCH_TIMEOUT, bulk=True, max_body_bytes=num_bytes
            )
            data = bytes(reply.body)
            if await self._runtime.compute.run(digest, "update", data) != commit.update:
                raise StateSyncError("the update's bytes do not match their digest")
            return data

        return await self._first(ask, holders, "the update")

    async def snapshot(
        self, fragment: Fragment, outer: OuterConfig, holders: Iterable[PeerId], *, wanted: Digest | None = None
    ) -> tuple[Commit, FragmentState]:
        """Return a donor's head and its state, which matches the digest in the commit; exactly `wanted` if that is given."""

        async def ask(peer: PeerId) -> tuple[Commit, FragmentState]:
            limit = MAX_COMMIT_BYTES + 2 * fragment.num_bytes + MAX_LEDGER_BYTES
            reply = await self._transport.call(
                peer,
                GetSnapshot(fragment=fragment.index),
                Snapshot,
                timeout=FETCH_TIMEOUT,
                bulk=True,
                max_body_bytes=limit,
            )
            parse = self._runtime.compute.run
            data = bytes(reply.body)
            commit, state = await parse(self._pure.parse_snapshot, data, reply.message.commit_bytes, fragment, outer)
            if commit.run_id != self._transport.run_id:
                raise StateSyncError("a snapshot of another run")
            if commit.version and not await parse(self._is_signed, commit):
                raise StateSyncError("the commit's signature is not its leader's")
            if commit.total_work > MAX_WORK:
                raise StateSyncError("more work than a chain can hold")
            if wanted is not None and commit.digest != wanted:
                raise StateSyncError("the donor's head has moved on")
            return commit, state

        return await self._first(ask, holders, "a snapshot")

    async def count_heavier(self, fragment: int, total_work: int) -> tuple[int, int]:
        """Ask some connected peers for their heads; return how many are not heavier than `total_work`, and how many are."""
        lighter = heavier = 0
        for peer in self._others()[:MAX_DONORS]:
            try:
                reply = await self._transport.call(peer, ExchangeHeads(heads=()), Heads, timeout=HEADS_TIMEOUT)
            except (NetworkError, Refused, RemoteProtocolError):
                continue
            work = max((head.total_work for head in reply.message.heads if head.fragment == fragment), default=0)
            heavier, lighter = heavier + (work > total_work), lighter + (work <= total_work)
        return lighter, heavier

    def _split_commits(self, data: bytes, sizes: Sequence[int], head: Digest) -> list[Commit]:
        """Return the commits in a body, each the parent of the next, the last being `head`."""
        if sum(sizes) != len(data) or not sizes:
            raise StateSyncError("the commits do not fill their body")
        commits: list[Commit] = []
        offset = 0
        for size in sizes:
            commits.append(self._pure.parse_commit(data[offset : offset + size]))
            offset += size
        if commits[-1].digest != head or any(
            after.parent != before.digest for before, after in itertools.pairwise(commits)
        ):
            raise StateSyncError("the commits are not a chain that leads to the head")
        return commits

    async def _first(self, ask: Callable[[PeerId], Awaitable[Found]], holders: Iterable[PeerId], what: str) -> Found:
        """Return the first good answer; StateSyncError with every donor's reason when there is none.

        Donors that say they are busy are asked again, a few times, after as long as they say.
        """
        own = self._transport.peer_id
        donors = [peer for peer in dict.fromkeys([*holders, *self._others()]) if peer != own][:MAX_DONORS]
        for _ in range(MAX_PASSES):
            reasons: list[str] = []
            busy: list[tuple[float, PeerId]] = []
            for peer in donors:
                try:
                    return await ask(peer)
                except (NetworkError, Refused, RemoteProtocolError, StateSyncError, ChainError) as error:
                    reasons.append(f"{short(peer)}: {error}")
                    if isinstance(error, Refused) and error.retry_after is not None:
                        busy.append((error.retry_after, peer))
            if not busy:
                break
            await asyncio.sleep(min(min(busy)[0], MAX_RETRY_AFTER) * self._runtime.entropy.random.uniform(0.5, 1.5))
            donors = [peer for _, peer in busy]
        raise StateSyncError(f"nobody serves {what}: {'; '.join(reasons) or 'no peer is known'}")
