"""Taking part in the rounds of one fragment.

After adopting a head, a member registers with the leader that the head names, over a connection that it opens itself,
and hears the call there. A registration that is not answered, or a connection that is lost, goes to the next deputy;
when all fail, to others in an order that everybody draws alike. The call is answered at once; the work is snapshotted
at the next step boundary, encoded on a worker thread and streamed to the leader.

In a swarm that is larger than a round, a member comes at a moment of its own in the first tenth of the interval, so that
a leader does not meet a thousand at once; it stays away while its turn is not near (seats.py); and a leader that says
that it is full is a good leader, with whom it waits for the next head.
"""

import asyncio
from collections.abc import Callable, Sequence

from p2ptrain.averaging.merge import piece_norms
from p2ptrain.averaging.messages import Called, CallMember, Contribute, Decline, Hold, Register, Registered
from p2ptrain.averaging.seats import is_far_from_turn
from p2ptrain.config import RunConfig
from p2ptrain.errors import NetworkError, NoRoomError, Refused, RemoteProtocolError
from p2ptrain.events import Events
from p2ptrain.fragments.chain import Commit, Envelope, Signs, draw
from p2ptrain.fragments.follower import Adopted, Follower
from p2ptrain.fragments.messages import Done, Head
from p2ptrain.fragments.sync import ChainSync
from p2ptrain.ids import Digest, PeerId, digest
from p2ptrain.net.transport import Transport
from p2ptrain.runtime import Runtime
from p2ptrain.tasks import TaskOwner
from p2ptrain.training.accounts import HandOver
from p2ptrain.training.learner import Learner
from p2ptrain.wire.codecs import CODECS, CodecError

REGISTER_TIMEOUT = 3.0  # seconds without an answer after which the next deputy is asked
SPREAD_FRACTION = 0.1  # of an interval, over which a swarm larger than a round comes to its leader
TURN_INTERVALS = 2.0  # after which a member whose turn is not near comes all the same: something is wrong
LEAST_PATIENCE = 2.0  # seconds between two registrations with the same leader: each is a sign of life, and cheap
RETRY_INTERVAL = 0.25  # seconds until asking again a leader whose head differs, or after everybody failed
CONTRIBUTE_TIMEOUT = 120.0  # seconds; a transfer that does not move ends much earlier
MAX_STALLED_INTERVALS = 12.0  # a leader that answers but makes no commit for so many intervals is passed over


class Member:
    """One peer's part in one fragment's rounds; it stays registered with whoever leads on the head it has."""

    def __init__(
        self, *, follower: Follower, sync: ChainSync, learner: Learner, config: RunConfig, transport: Transport, runtime: Runtime,
        events: Events, signer: Signs, tasks: TaskOwner, others: Callable[[], Sequence[PeerId]], can_lead: Callable[[PeerId], bool],
    ) -> None:  # fmt: skip
        self._follower, self._sync, self._learner, self._config = follower, sync, learner, config
        self._transport, self._runtime, self._events = transport, runtime, events
        self._signer, self._tasks, self._others, self._can_lead = signer, tasks, others, can_lead
        self._fragment = follower.fragment
        self._leader: PeerId | None = None
        self._leader_lost = asyncio.Event()
        self._has_seat = False  # with the leader, as far as it has said
        self._seeking: asyncio.Task[None] | None = None
        self._contributing = False
        self._sent: tuple[Digest, int] | None = None  # head and last step of the contribution that is under way
        follower.on_adopted(self._follow)

    def start(self) -> None:
        """Register with the leader of the head that we have."""
        self._seek(self._follower.archive.head)

    def holds(self, peer: PeerId) -> bool:
        """Return whether we wait for this peer's call."""
        return self._has_seat and peer == self._leader

    def lost(self, peer: PeerId) -> None:
        """A peer's connection is gone; if it is our leader, turn to the deputy at once."""
        if peer == self._leader:
            self._leader_lost.set()

    def _follow(self, adopted: Adopted) -> None:
        self._report_whether_included(adopted.commit)
        self._seek(adopted.commit)

    def _seek(self, head: Commit) -> None:
        if self._seeking is not None:
            self._seeking.cancel()
        self._leader, self._has_seat = None, False
        self._seeking = self._tasks.spawn(f"register for fragment {self._fragment.index}", self._stay_registered(head))

    def _report_whether_included(self, commit: Commit) -> None:
        sent, self._sent = self._sent, None
        if sent is not None and sent[0] == commit.parent and self._transport.peer_id not in commit.contributors:
            reason = (
                "the round closed without us"
                if commit.leader != self._transport.peer_id
                else "our own work came too late"
            )
            self._events.emit("left-out", fragment=commit.fragment, version=commit.version, reason=reason)

    # Finding the leader

    async def _stay_registered(self, head: Commit) -> None:
        """Be registered with one leader after the other until the head moves (which cancels this task)."""
        await self._take_turns(head)
        while True:
            for candidate in self._candidates(head):
                await self._stay_with(candidate, head)
            await asyncio.sleep(RETRY_INTERVAL)

    async def _take_turns(self, head: Commit) -> None:
        """Where not all can have a seat, let those go first who have waited for longer, and come one by one."""
        interval, num_seats = self._interval, self._config.limits.max_members
        if len(self._others()) < num_seats or self._learner.is_paused:
            return
        archive = self._follower.archive
        if is_far_from_turn(
            self._transport.peer_id, head, archive.ledger(head.parent), archive.state.ledger, num_seats=num_seats
        ):
            await asyncio.sleep(TURN_INTERVALS * interval)
        else:
            await asyncio.sleep(self._runtime.entropy.random.uniform(0.0, SPREAD_FRACTION * interval))

    @property
    def _interval(self) -> float:
        """How long a round takes at least, by our own steps (s); 0 before the first step."""
        return self._config.rounds.inner_steps * self._learner.progress.step_seconds

    def _candidates(self, head: Commit) -> list[PeerId]:
        """Return leader and deputies by the head, then everybody else that we know, in an order drawn from the head.

        Of these, who can be dialled comes first: it is where those meet who cannot reach each other.
        """
        others = draw(head.digest, [*self._others(), self._transport.peer_id])
        return list(dict.fromkeys([*head.next, *sorted(others, key=lambda peer: not self._can_lead(peer))]))

    async def _stay_with(self, candidate: PeerId, head: Commit) -> None:
        """Stay registered with a candidate; return when it is lost, does not answer, or never makes a commit."""
        self._leader, self._leader_lost, self._has_seat = candidate, asyncio.Event(), False
        clock = self._runtime.clock
        began_at, refused_since = clock.monotonic(), None
        while True:
            interval = self._interval
            now, least = clock.monotonic(), 4 * LEAST_PATIENCE
            if interval and now >= began_at + max(MAX_STALLED_INTERVALS * interval, least):
                return  # before our first step (interval 0) no leader is late with a commit
            if refused_since is not None and now >= refused_since + max(interval, least):
                return  # its head is not ours, and we would have followed it by now if we could
            answer = await self._register(candidate, head)
            if answer is None:
                return
            self._has_seat = answer.accepted
            is_settled = answer.accepted or answer.is_full
            refused_since = None if is_settled else refused_since or now
            pause = max(LEAST_PATIENCE, 2 * interval) if is_settled else RETRY_INTERVAL
            try:
                async with asyncio.timeout(pause):
                    await self._leader_lost.wait()
                return
            except TimeoutError:
                continue

    async def _register(self, candidate: PeerId, head: Commit) -> Registered | None:
        """Return whether the candidate took us in; None when it does not answer."""
        own = Head(fragment=head.fragment, digest=head.digest, total_work=head.total_work)
        request = Register(head=own, step_seconds=self._learner.progress.step_seconds)
        try:
            reply = await self._transport.call(candidate, request, Registered, timeout=REGISTER_TIMEOUT)
        except NoRoomError as error:
            return Registered(accepted=False, head=own, reason=str(error)[:300], is_full=True)
        except (NetworkError, Refused, RemoteProtocolError) as error:
            self._events.emit("leader-unavailable", fragment=head.fragment, leader=candidate, reason=str(error))
            return None
        if not reply.message.accepted:
            self._sync.hear_of(reply.message.head, candidate)
        return reply.message

    # Contributing

    def call(self, leader: PeerId, request: CallMember) -> Called:
        """Answer a leader's call, and contribute if there is enough to contribute."""
        if request.head != self._follower.archive.head.digest:
            return Called(joins=False, reason="we have adopted another head")
        if leader != self._leader or self._contributing:
            return Called(joins=False, reason="we are in another round")
        steps = self._learner.pending_steps(self._fragment.index)
        least = 1 if self._learner.is_paused else max(1, self._config.rounds.inner_steps // 10)
        if steps < least:
            return Called(joins=False, reason=f"{steps} inner steps since the last merge; {least} are needed")
        self._tasks.spawn(
            f"contribute to fragment {self._fragment.index}", self._contribute(leader, self._follower.archive.head)
        )
        return Called(joins=True)

    async def _contribute(self, leader: PeerId, head: Commit) -> None:
        self._contributing = True
        try:
            await self._send_work(leader, head)
        finally:
            self._contributing = False

    async def _send_work(self, leader: PeerId, head: Commit) -> None:
        hand_over = await self._hand_over()
        if hand_over is None or hand_over.after_step != self._follower.archive.state.ledger.last_step(
            self._transport.peer_id
        ):
            await self._decline(leader, head, "no work that this chain has not merged")
            return
        try:
            envelope, data = await self._runtime.compute.run(self._encode, hand_over, head)
        except CodecError as error:
            self._events.emit(
                "left-out", fragment=head.fragment, version=head.version + 1, reason=f"cannot encode: {error}"
            )
            await self._decline(leader, head, "the work cannot be encoded")
            return
        self._sent = head.digest, hand_over.last_step
        request = Contribute(fragment=head.fragment, head=head.digest, envelope=envelope.to_bytes())
        try:
            await self._transport.call(leader, request, Done, timeout=CONTRIBUTE_TIMEOUT, body=data, bulk=True)
        except (NetworkError, Refused, RemoteProtocolError) as error:
            self._sent = None
            self._events.emit("left-out", fragment=head.fragment, version=head.version + 1, reason=str(error))

    async def _hand_over(self) -> HandOver | None:
        """Ask the learner for its unmerged work as of its next step boundary."""
        answer: asyncio.Future[HandOver | None] = asyncio.Future()
        self._learner.request_hand_over(
            self._fragment.index, lambda one: None if answer.done() else answer.set_result(one)
        )
        return await answer

    def _encode(self, hand_over: HandOver, head: Commit) -> tuple[Envelope, bytes]:
        """Return the signed envelope and the encoded work (on a worker thread)."""
        codec = CODECS[self._config.codec.up]
        exact = hand_over.exact
        data = codec.encode(exact)
        values = codec.decode(data, self._fragment.num_elements)
        hand_over.encoded_error = exact - values
        envelope = Envelope(
            run_id=head.run_id, fragment=head.fragment, base=head.digest, peer=self._transport.peer_id,
            after_step=hand_over.after_step, last_step=hand_over.last_step, steps=hand_over.steps, tokens=hand_over.tokens,
            oldest_version=hand_over.oldest_version, step_seconds=self._learner.progress.step_seconds,
            content=digest("content", data), norms=piece_norms(values, self._fragment),
        )  # fmt: skip
        return envelope.signed_by(self._signer), data

    async def _decline(self, leader: PeerId, head: Commit, reason: str) -> None:
        request = Decline(fragment=head.fragment, head=head.digest, reason=reason)
        try:
            await self._transport.call(leader, request, Done, timeout=REGISTER_TIMEOUT)
        except (NetworkError, Refused, RemoteProtocolError) as error:
            self._events.emit("leader-unavailable", fragment=head.fragment, leader=leader, reason=str(error))

    def hold(self, leader: PeerId, request: Hold, body: bytearray) -> Done:
        """Keep an update for our leader, and serve it from now on."""
        if leader != self._leader:
            raise Refused("not-our-leader", "we hold updates for the leader that we registered with")
        data = bytes(body)
        if digest("update", data) != request.digest:
            raise Refused("malformed", "the update's bytes do not match their digest")
        self._follower.archive.remember_update(Digest(request.digest), data)
        return Done()
