"""One peer of a swarm lies for a while: what it serves is not what it says, or what it says breaks a rule.

    bytes     the updates and snapshots that it serves have a bit flipped; the commits, a signature
    replay    as a member it sends its last envelope and bytes once more
    state     it announces a commit, well formed and signed, that names another state than its update leads to
    twice     the same with a true state, but one of its envelopes is merged already
    nowhere   it announces a heavy chain that nobody has, and serves a snapshot that matches its head
    work      it claims heads of endless work that nobody has

Its own state stays honest: when it stops lying it is a peer like the others.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np

from p2ptrain.averaging.member import Member
from p2ptrain.config import RunConfig
from p2ptrain.errors import P2PTrainError, Refused
from p2ptrain.fragments.chain import ChainError, Commit, Envelope, total_work
from p2ptrain.fragments.messages import (
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
from p2ptrain.fragments.pure import pack_snapshot
from p2ptrain.fragments.state import FragmentState
from p2ptrain.ids import Digest, PeerId, digest
from p2ptrain.net.identity import Identity
from p2ptrain.peer import Peer
from p2ptrain.training.accounts import HandOver
from p2ptrain.wire.codecs import CODECS
from p2ptrain.wire.messages import Message

LIES: Final = ("bytes", "replay", "state", "twice", "nowhere", "work")
NUM_CLAIMS: Final = 5
HEAVY: Final = 2**57  # work: below the most that a chain can hold, above all that honest peers will do

Handler = Callable[[PeerId, Any, bytearray], Any]


class Liar:
    """A peer that tells one kind of lie, from `begin` to `stop`."""

    def __init__(self, peer: Peer, identity: Identity, config: RunConfig, chance: random.Random) -> None:
        self._peer, self._identity, self._config, self._chance = peer, identity, config, chance
        self._honest: dict[str, Any] = {}  # method -> what answered it before
        self._undo: list[Callable[[], None]] = []
        self._forged: dict[Digest, bytes] = {}  # updates of commits that were made up
        self._snapshots: dict[int, tuple[int, bytes]] = {}
        self._heads: dict[int, Head] = {}

    def begin(self, lie: str) -> None:
        """Begin to lie; what has to be announced goes out as if it had just been adopted."""
        fragment = self._chance.randrange(len(self._peer.chains.followers))
        lies: dict[str, Callable[[], None]] = {
            "bytes": self._alter_bytes, "replay": self._send_again, "state": lambda: self._announce_child(fragment, true_state=False),
            "twice": lambda: self._announce_child(fragment, true_state=True), "nowhere": lambda: self._come_from_nowhere(fragment),
            "work": lambda: self._claim_endless_work(fragment),
        }  # fmt: skip
        lies[lie]()

    def stop(self) -> None:
        """Be honest again."""
        methods = self._peer.transport._handlers._methods
        for name, method in self._honest.items():
            methods[name] = method
        for undo in self._undo:
            undo()

    # The lies

    def _alter_bytes(self) -> None:
        def alter(name: str) -> Handler:
            honest = self._honest_handler(name)

            async def serve(sender: PeerId, request: Any, body: bytearray) -> Any:
                answer = await honest(sender, request, body)
                if not isinstance(answer, tuple):
                    return answer
                data = bytearray(answer[1])
                start = answer[0].commit_bytes if isinstance(answer[0], Snapshot) else 0
                if len(data) > start:
                    data[self._chance.randrange(start, len(data))] ^= 1 << self._chance.randrange(8)
                return answer[0], bytes(data)

            return serve

        for request in (GetUpdate, GetSnapshot, GetCommits):
            self._answer(request, alter(request.method))

    def _send_again(self) -> None:
        for member in self._peer._rounds._members:
            self._repeat(member)

    def _repeat(self, member: Member) -> None:
        honest = member._encode
        sent: list[tuple[Envelope, bytes]] = []

        def encode(hand_over: HandOver, head: Commit) -> tuple[Envelope, bytes]:
            if not sent:
                sent.append(honest(hand_over, head))
            return sent[0]

        member._encode = encode  # type: ignore[method-assign]
        self._undo.append(lambda: setattr(member, "_encode", honest))

    def _announce_child(self, fragment: int, *, true_state: bool) -> None:
        """Announce a commit on our head that merges nothing new (`true_state`), or names a state out of thin air."""
        archive = self._peer.chains.followers[fragment].archive
        head, state, me = archive.head, archive.state, self._peer.peer_id
        if not head.envelopes:
            return
        update = np.full(state.anchor.size, 0.25, np.float32)
        codec = CODECS[self._config.codec.down]
        data = bytes(codec.encode(update))
        envelope = head.envelopes[0]  # merged by the head itself
        if not true_state:
            after = state.ledger.last_step(me)
            envelope = replace(
                envelope, base=head.digest, peer=me, after_step=after, last_step=after + 10, steps=10, tokens=10**4,
                oldest_version=head.version,
            ).signed_by(self._identity)  # fmt: skip
        committed_at = head.committed_at + 1.0
        draft = self._child(
            head, envelopes=(envelope,), update=digest("update", data), committed_at=committed_at,
            total_work=total_work(head, state.ledger, (envelope,), committed_at, self._config.limits),
        )  # fmt: skip
        after_state = state.after(draft, codec.decode(data, state.anchor.size), self._config.outer)
        named = after_state.digest if true_state else digest("state", b"out of thin air")
        forged = replace(draft, state=named).signed_by(self._identity)
        self._forged[forged.update] = data
        honest = self._honest_handler(GetUpdate.method)

        async def serve(sender: PeerId, request: GetUpdate, body: bytearray) -> Any:
            known = self._forged.get(Digest(request.digest))
            return (Done(), known) if known is not None else await honest(sender, request, body)

        self._answer(GetUpdate, serve)
        self._serve_commit(forged)
        self._peer.chains.announce(forged, self._peer.transport.connected())

    def _serve_commit(self, forged: Commit) -> None:
        honest = self._honest_handler(GetCommits.method)

        async def serve(sender: PeerId, request: GetCommits, body: bytearray) -> Any:
            if request.digest == forged.digest:
                data = forged.to_bytes()
                return Commits(sizes=(len(data),)), data
            return await honest(sender, request, body)

        self._answer(GetCommits, serve)

    def _come_from_nowhere(self, fragment: int) -> None:
        archive = self._peer.chains.followers[fragment].archive
        state = archive.state
        forged_state = FragmentState(np.full_like(state.anchor, 7.0), state.moments, state.ledger)
        forged = self._child(
            archive.head, parent=digest("commit", b"nowhere"), version=archive.head.version + 30, state=forged_state.digest,
            total_work=HEAVY,
        ).signed_by(self._identity)  # fmt: skip
        self._snapshots[fragment] = pack_snapshot(forged, forged_state)
        self._heads[fragment] = Head(fragment=fragment, digest=forged.digest, total_work=HEAVY)
        honest_snapshot = self._honest_handler(GetSnapshot.method)
        honest_heads = self._honest_handler(ExchangeHeads.method)

        async def serve(sender: PeerId, request: GetSnapshot, body: bytearray) -> Any:
            if request.fragment not in self._snapshots:
                return await honest_snapshot(sender, request, body)
            commit_bytes, data = self._snapshots[request.fragment]
            return Snapshot(commit_bytes=commit_bytes), data

        async def tell(sender: PeerId, request: ExchangeHeads, body: bytearray) -> Any:
            answer = await honest_heads(sender, request, body)
            return Heads(heads=tuple(self._heads.get(head.fragment, head) for head in answer.heads))

        self._answer(GetSnapshot, serve)
        self._answer(ExchangeHeads, tell)
        self._tell(self._heads[fragment])

    def _claim_endless_work(self, fragment: int) -> None:
        async def busy(_sender: PeerId, _request: Message, _body: bytearray) -> Any:
            raise Refused("busy", "come back in thirty years", retry_after=1e9)

        self._answer(GetSnapshot, busy)
        self._answer(GetCommits, busy)
        for number in range(NUM_CLAIMS):
            self._tell(Head(fragment=fragment, digest=digest("nothing", bytes([number])), total_work=HEAVY + number))

    # Telling and answering

    def _child(self, head: Commit, **changes: Any) -> Commit:
        me = self._peer.peer_id
        fields = {"parent": head.digest, "version": head.version + 1, "leader": me, "next": (me,), **changes}
        fields.setdefault("committed_at", head.committed_at + 1.0)
        return replace(head, **fields)

    def _tell(self, head: Head) -> None:
        for peer in self._peer.transport.connected():
            self._peer.chains._tasks.spawn("lie", self._announce(peer, Announce(head=head)))

    async def _announce(self, peer: PeerId, message: Announce) -> None:
        try:
            await self._peer.transport.call(peer, message, Done, timeout=5.0)
        except (P2PTrainError, ChainError):
            return

    def _honest_handler(self, name: str) -> Handler:
        handler: Handler = self._peer.transport._handlers._methods[name].handler
        return handler

    def _answer(self, request: type[Message], handler: Handler) -> None:
        methods = self._peer.transport._handlers._methods
        self._honest.setdefault(request.method, methods[request.method])
        methods[request.method] = replace(methods[request.method], handler=handler, at_once=None)
