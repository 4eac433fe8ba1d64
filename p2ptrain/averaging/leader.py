"""Leading a round of one fragment: collect, freeze, merge, commit.

Members register over connections that they opened, and are called when the round is due. At the close the list is
frozen: all of a contribution counts, or none of it. The commit is signed only when one other member holds the update
too (or the leader is alone), so that a commit never names bytes that died with its leader. If the leader dies before,
nothing has happened: everybody's work is still pending, and the deputy's round covers it.

When a round opens and closes is decided in round.py; here the decisions are carried out.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import fmean, median_low

import numpy as np
from numpy.typing import NDArray

from p2ptrain.averaging.merge import Contribution, Merge, merge, norms_match
from p2ptrain.averaging.messages import Called, CallMember, Contribute, Decline, Hold, Register, Registered
from p2ptrain.averaging.round import Abort, Call, Close, Rank, Round, RoundTimes, Wait, grace_window
from p2ptrain.config import RunConfig
from p2ptrain.errors import NetworkError, Refused, RemoteProtocolError
from p2ptrain.events import Events
from p2ptrain.fragments.chain import (
    NO_PARENT,
    ChainError,
    Commit,
    Envelope,
    Ledger,
    Signs,
    check_envelope,
    draw,
    total_work,
)
from p2ptrain.fragments.follower import Adopted, Follower
from p2ptrain.fragments.messages import Done, Head
from p2ptrain.fragments.pure import Pure
from p2ptrain.fragments.state import FragmentState
from p2ptrain.fragments.sync import ChainSync
from p2ptrain.ids import Digest, PeerId, digest, public_key_of, short
from p2ptrain.net.transport import Transport
from p2ptrain.runtime import Runtime
from p2ptrain.tasks import TaskOwner
from p2ptrain.wire.codecs import CODECS, CodecError

Vector = NDArray[np.float32]

CALL_TIMEOUT = 5.0  # seconds for a member to say whether it joins; its connection usually tells earlier
HOLD_TIMEOUT = 15.0  # seconds for one member to take the update; a stalled transfer ends earlier
LEAST_COLLECT_TIMEOUT = 5.0  # seconds; a round of tiny steps must survive a member that is busy starting up
TIMER_SLACK = 1e-6  # seconds; an event loop may run a timer that much before its time
LEAST_RETRY_INTERVAL = 0.25  # seconds after a failed attempt; else a quarter of an interval, five steps of twenty
MAX_NORM = 1e4  # of one tensor's pseudo-gradient; ours are below 100
FIRST_STEP_SECONDS = 0.1  # until a member has said how long its steps are
FIRST_STEP_PATIENCE = 5.0  # seconds until members are called again when none of them has made a step yet
LATENESS_MEMORY = 64  # arrivals from which the grace window is learnt: about the last ten rounds of a small swarm


@dataclass(frozen=True, slots=True)
class _Received:
    """A valid contribution, waiting for the close."""

    envelope: Envelope
    values: Vector


class Leader:
    """Leads the rounds of one fragment whenever members register here. `run` is its task."""

    def __init__(
        self, *, follower: Follower, sync: ChainSync, config: RunConfig, transport: Transport, runtime: Runtime, events: Events,
        signer: Signs, pure: Pure, tasks: TaskOwner, can_lead: Callable[[PeerId], bool], num_live: Callable[[], int],
        merge: Merge = merge,
    ) -> None:  # fmt: skip
        self._merge_rule = merge
        self._follower, self._sync, self._config = follower, sync, config
        self._transport, self._runtime, self._events = transport, runtime, events
        self._signer, self._pure, self._tasks = signer, pure, tasks
        self._can_lead, self._num_live = can_lead, num_live
        self._fragment = follower.fragment
        self._head_at = runtime.clock.monotonic()
        self._round: Round | None = None
        self._received: dict[PeerId, _Received] = {}
        self._step_seconds: dict[PeerId, float] = {}
        self._lateness: deque[float] = deque(maxlen=LATENESS_MEMORY)
        self._wake = asyncio.Event()
        self._in_a_hurry = False
        follower.on_adopted(self._begin_again)

    @property
    def _head(self) -> Commit:
        return self._follower.archive.head

    async def run(self) -> None:
        """Carry out the round's decisions, for ever."""
        while True:
            self._wake.clear()
            deadline = await self._advance()
            timeout = None if deadline is None else max(0.0, deadline - self._runtime.clock.monotonic())
            try:
                async with asyncio.timeout(timeout):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def hurry(self) -> None:
        """Call members at once from now on, without waiting for intervals: the run is being drained."""
        self._in_a_hurry = True
        if self._round is not None:
            self._round.in_a_hurry = True
        self._wake.set()

    def lost(self, peer: PeerId) -> None:
        """A peer's connection is gone: the round does not wait for it."""
        if self._round is not None:
            self._round.leave(peer, "connection lost")
            self._wake.set()

    # What members say

    def register(self, peer: PeerId, request: Register) -> Registered:
        head = self._head
        own = Head(fragment=self._fragment.index, digest=head.digest, total_work=head.total_work)
        if request.head.digest != head.digest:
            self._sync.hear_of(request.head, peer)
            return Registered(accepted=False, head=own, reason="we have adopted different heads")
        self._step_seconds[peer] = request.step_seconds
        if self._round is None:
            self._round = self._new_round()
        else:
            self._round.times = self._times()  # they follow from what members say of their steps, too
        if not self._round.register(peer, self._runtime.clock.monotonic(), request.step_seconds, self._rank(peer)):
            return Registered(accepted=False, head=own, reason="all seats are taken", is_full=True)
        self._wake.set()
        return Registered(accepted=True, head=own, reason="")

    def _rank(self, peer: PeerId) -> Rank:
        entry = self._follower.archive.state.ledger.entries.get(peer)
        return entry.merged_at if entry else 0.0, digest("seat", self._head.digest, public_key_of(peer))

    def holds(self, peer: PeerId) -> bool:
        """Return whether a member waits here for its call."""
        return self._round is not None and peer in self._round.registered

    def decline(self, peer: PeerId, request: Decline) -> None:
        if self._round is not None and request.head == self._head.digest:
            self._round.decline(peer, request.reason)
            self._wake.set()

    def admit(self, peer: PeerId, request: Contribute, body_bytes: int) -> None:
        """Refuse a contribution before its bytes travel."""
        if self._round is None or request.head != self._head.digest:
            raise Refused("stale", "the head has moved on")
        if not self._round.accepts(peer):
            raise Refused("closed", "this round does not wait for you")
        expected = CODECS[self._config.codec.up].num_bytes(self._fragment.num_elements)
        if body_bytes != expected:
            raise Refused("malformed", f"{body_bytes} bytes where the codec has {expected}")

    async def contribute(self, peer: PeerId, request: Contribute, body: bytearray) -> Done:
        """Check a complete contribution; it counts from here on if the round is still open."""
        this_round, head = self._round, self._head
        ledger = self._follower.archive.state.ledger
        try:
            received = await self._runtime.compute.run(self._checked, peer, request, body, head, ledger)
        except (ChainError, CodecError) as error:
            reason = str(error)
            self._events.emit("contribution-refused", fragment=self._fragment.index, peer=peer, reason=reason)
            if this_round is not None:
                this_round.decline(peer, reason)
                self._wake.set()
            raise Refused("invalid", reason) from None
        now = self._runtime.clock.monotonic()
        if this_round is not None and this_round.called_at:
            self._lateness.append(now - this_round.called_at)
        if this_round is None or this_round is not self._round or not this_round.accepts(peer):
            raise Refused("closed", "the round closed while the contribution arrived")
        self._received[peer] = received
        this_round.arrive(peer, now)
        self._wake.set()
        return Done()

    def _checked(self, peer: PeerId, request: Contribute, body: bytearray, head: Commit, ledger: Ledger) -> _Received:
        """Return a contribution that this round may merge (on a worker thread); ChainError or CodecError with the reason."""
        envelope = self._pure.parse_envelope(request.envelope)
        if envelope.peer != peer:
            raise ChainError("the envelope is another peer's")
        if envelope.content != digest("content", body):
            raise ChainError("the bytes do not match the envelope's digest")
        check_envelope(
            envelope, head, ledger, num_pieces=len(self._fragment.pieces),
            max_staleness=self._config.rounds.max_staleness, verify=self._pure.verify,
        )  # fmt: skip
        values = CODECS[self._config.codec.up].decode(body, self._fragment.num_elements)
        if max(envelope.norms, default=0.0) > MAX_NORM:
            raise ChainError(f"a norm of {max(envelope.norms):.3g}; at most {MAX_NORM:g} is sane")
        if not norms_match(envelope.norms, values, self._fragment):
            raise ChainError("the norms in the envelope are not those of the bytes")
        return _Received(envelope, values)

    # What the round decides

    def _times(self) -> RoundTimes:
        """Return the durations of a round on this head: they follow from how long inner steps take."""
        rounds = self._config.rounds
        step_seconds = median_low(self._steps() or [FIRST_STEP_SECONDS])
        interval = max(rounds.inner_steps * step_seconds, rounds.least_interval)
        return RoundTimes(
            interval=interval, lonely_window=rounds.lonely_intervals * interval,
            grace_window=grace_window(self._lateness, step_seconds=step_seconds, longest=rounds.grace_fraction * interval),
            collect_timeout=max(interval, LEAST_COLLECT_TIMEOUT),
        )  # fmt: skip

    def _steps(self) -> list[float]:
        """Return how long inner steps take, by the head and by what members said (s); empty before anybody made one."""
        steps = [*(envelope.step_seconds for envelope in self._head.envelopes), *self._step_seconds.values()]
        return [seconds for seconds in steps if seconds > 0.0]

    def _new_round(self) -> Round:
        return Round(
            opened_at=self._head_at, times=self._times(), parent_contributors=len(self._head.envelopes),
            least_quorum=self._config.rounds.quorum, max_members=self._config.limits.max_members, in_a_hurry=self._in_a_hurry,
        )  # fmt: skip

    def _begin_again(self, _adopted: Adopted) -> None:
        """The head moved: this round is over, whoever won it."""
        self._head_at = self._runtime.clock.monotonic()
        self._round = None
        self._received, self._step_seconds = {}, {}
        self._wake.set()

    async def _advance(self) -> float | None:
        """Carry out what is decided now; return when to look again (None: after the next event)."""
        while self._round is not None:
            now = self._runtime.clock.monotonic() + TIMER_SLACK
            decision = self._round.decide(now)
            if isinstance(decision, Wait):
                return decision.until
            if isinstance(decision, Call):
                self._call(self._round, decision)
            elif isinstance(decision, Close):
                await self._close(self._round, decision)
            else:
                self._abort(self._round, decision)
        return None

    def _call(self, this_round: Round, decision: Call) -> None:
        this_round.call(decision, self._runtime.clock.monotonic())
        head = self._head
        self._events.emit(
            "round-called",
            fragment=head.fragment,
            version=head.version + 1,
            members=list(decision.members),
            reason=decision.reason,
        )
        for peer in decision.members:
            self._tasks.spawn(f"call {short(peer)} into a round", self._call_member(this_round, head, peer))

    async def _call_member(self, this_round: Round, head: Commit, peer: PeerId) -> None:
        request = CallMember(fragment=head.fragment, head=head.digest)
        try:
            reply = await self._transport.call(peer, request, Called, timeout=CALL_TIMEOUT)
            if reply.message.joins:
                return
            this_round.decline(peer, reply.message.reason)
        except (NetworkError, Refused, RemoteProtocolError) as error:
            this_round.leave(peer, str(error))
        self._wake.set()

    def _abort(self, this_round: Round, decision: Abort) -> None:
        """Try again a little later, with the members that are still registered."""
        version = self._head.version + 1
        self._events.emit("round-aborted", fragment=self._fragment.index, version=version, reason=decision.reason)
        self._received = {}
        again = self._new_round()
        retry_after = max(LEAST_RETRY_INTERVAL, this_round.times.interval / 4) if self._steps() else FIRST_STEP_PATIENCE
        again.not_before = self._runtime.clock.monotonic() + retry_after
        again.carry_on(this_round)
        self._round = again

    async def _close(self, this_round: Round, decision: Close) -> None:
        """Freeze the list, merge, let a member hold the update, sign, adopt, announce."""
        this_round.close()
        head, parent_state = self._head, self._follower.archive.state
        frozen = [self._received[peer] for peer in decision.members]
        try:
            data, draft, state = await self._runtime.compute.run(self._merge, frozen, head, parent_state)
        except CodecError as error:
            self._abort(this_round, Abort(f"the merged update cannot be encoded: {error}"))
            return
        self._follower.archive.remember_update(draft.update, data)
        held = await self._let_hold(draft, data, decision.members)
        if this_round is not self._round:
            self._events.emit(
                "round-aborted", fragment=head.fragment, version=draft.version, reason="another commit came first"
            )
            return
        if not held:
            self._abort(this_round, Abort("no other member confirmed that it holds the update"))
            return
        commit = await self._runtime.compute.run(draft.signed_by, self._signer)
        if not self._follower.adopt(commit, state):
            self._events.emit(
                "round-aborted", fragment=head.fragment, version=draft.version, reason="another commit came first"
            )
            return
        self._sync.announce(commit, [*decision.members, *this_round.registered, *this_round.absent])
        self._report(commit, this_round, decision)

    def _report(self, commit: Commit, this_round: Round, decision: Close) -> None:
        self._events.emit(
            "round-committed", fragment=commit.fragment, version=commit.version, commit=commit.digest.hex(), leader=commit.leader,
            contributors=list(commit.contributors), tokens=sum(envelope.tokens for envelope in commit.envelopes),
            live=self._num_live(), total_work=commit.total_work, reason=decision.reason, absent=dict(this_round.absent),
            seconds=round(self._runtime.clock.monotonic() - this_round.called_at, 4),
            staleness=round(fmean(commit.version - 1 - envelope.oldest_version for envelope in commit.envelopes), 3),
        )  # fmt: skip

    def _merge(
        self, frozen: list[_Received], head: Commit, parent_state: FragmentState
    ) -> tuple[bytes, Commit, FragmentState]:
        """Return the update's bytes, the unsigned commit and the state after it (on a worker thread)."""
        contributions = [Contribution(one.envelope.tokens, one.envelope.steps, one.values) for one in frozen]
        rule, limits = self._config.rounds.merge, self._config.limits
        codec = CODECS[self._config.codec.down]
        merged = self._merge_rule(contributions, self._fragment, rule=rule, max_weight_ratio=limits.max_weight_ratio)
        data = codec.encode(merged, seed=head.digest)
        envelopes = tuple(one.envelope for one in frozen)
        committed_at = max(self._runtime.clock.wall(), head.committed_at + 1e-3)
        update = digest("update", data)
        draft = Commit(
            run_id=head.run_id, fragment=head.fragment, parent=head.digest, version=head.version + 1,
            leader=self._transport.peer_id, update=update, state=NO_PARENT,
            total_work=total_work(head, parent_state.ledger, envelopes, committed_at, limits),
            next=self._next_leaders(head, update, envelopes), committed_at=committed_at, envelopes=envelopes,
        )  # fmt: skip
        state = parent_state.after(draft, codec.decode(data, self._fragment.num_elements), self._config.outer)
        return data, replace(draft, state=state.digest), state

    def _next_leaders(self, head: Commit, update: Digest, envelopes: tuple[Envelope, ...]) -> tuple[PeerId, ...]:
        """Draw the next leader and its deputies among those who have just shown that they are there and can be dialled.

        While nobody in the round is known to be reachable, it is whoever we dialled ourselves, and then this peer. One
        that leads without training comes last: it has no work to lose, and stays where it can be found.
        """
        own, contributors = self._transport.peer_id, [envelope.peer for envelope in envelopes]
        reachable = [peer for peer in contributors if self._can_lead(peer)]
        drawn = draw(head.digest + update, reachable or filter(self._transport.has_dialled, contributors)) or [own]
        if own not in contributors and self._can_lead(own):
            drawn.append(own)
        return tuple(dict.fromkeys(drawn))[: 1 + self._config.rounds.num_deputies]

    async def _let_hold(self, draft: Commit, data: bytes, members: tuple[PeerId, ...]) -> bool:
        """Give the update to one other member; return whether one has it, or nobody else is in the round."""
        own = self._transport.peer_id
        others = [peer for peer in (*draft.next, *members) if peer != own and peer in members]
        for peer in dict.fromkeys(others):
            request = Hold(fragment=draft.fragment, digest=draft.update)
            try:
                await self._transport.call(peer, request, Done, timeout=HOLD_TIMEOUT, body=data, bulk=True)
                return True
            except (NetworkError, Refused, RemoteProtocolError) as error:
                self._events.emit("hold-failed", fragment=draft.fragment, peer=peer, reason=str(error))
        return not others
