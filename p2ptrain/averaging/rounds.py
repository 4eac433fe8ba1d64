"""Every fragment's leader and member on one peer, and the calls that reach them."""

from collections.abc import Callable, Sequence

from p2ptrain.averaging.leader import Leader
from p2ptrain.averaging.member import Member
from p2ptrain.averaging.merge import Merge, merge
from p2ptrain.averaging.messages import Called, CallMember, Contribute, Decline, Hold, Register, Registered
from p2ptrain.config import RunConfig
from p2ptrain.errors import Refused
from p2ptrain.events import Events
from p2ptrain.fragments.chain import Signs
from p2ptrain.fragments.messages import Done
from p2ptrain.fragments.pure import Pure
from p2ptrain.fragments.sync import ChainSync
from p2ptrain.ids import PeerId
from p2ptrain.net.transport import Transport
from p2ptrain.runtime import Runtime
from p2ptrain.tasks import TaskOwner
from p2ptrain.training.learner import Learner
from p2ptrain.wire.codecs import CODECS


class Rounds:
    """Leads when asked to, and takes part when there is a learner."""

    def __init__(
        self, *, sync: ChainSync, config: RunConfig, transport: Transport, runtime: Runtime, events: Events, signer: Signs, pure: Pure,
        others: Callable[[], Sequence[PeerId]], can_lead: Callable[[PeerId], bool], num_live: Callable[[], int],
        merge: Merge = merge,
    ) -> None:  # fmt: skip
        self._sync, self._config, self._transport = sync, config, transport
        self._runtime, self._events, self._signer = runtime, events, signer
        self._others, self._can_lead = others, can_lead
        self._tasks = TaskOwner(events)
        self._members: list[Member] = []
        self._leaders = [
            Leader(
                follower=follower, sync=sync, config=config, transport=transport, runtime=runtime, events=events, signer=signer,
                pure=pure, tasks=self._tasks, can_lead=can_lead, num_live=num_live, merge=merge,
            )
            for follower in sync.followers
        ]  # fmt: skip

    def start(self, learner: Learner | None) -> None:
        """Begin to lead, and to take part with this learner (None: a peer that only helps others to meet)."""
        self._handle_calls()
        for index, leader in enumerate(self._leaders):
            self._tasks.spawn(f"lead fragment {index}", leader.run())
        if learner is not None:
            self._members = [
                Member(
                    follower=follower, sync=self._sync, learner=learner, config=self._config, transport=self._transport,
                    runtime=self._runtime, events=self._events, signer=self._signer, tasks=self._tasks, others=self._others,
                    can_lead=self._can_lead,
                )
                for follower in self._sync.followers
            ]  # fmt: skip
            for member in self._members:
                member.start()
        self._transport.on_disconnected(self._lost)
        self._transport.hold(self._holds)

    def hurry(self) -> None:
        """Do not wait for intervals any more: what is pending should be merged now."""
        for leader in self._leaders:
            leader.hurry()

    async def close(self) -> None:
        await self._tasks.close()

    def _holds(self, peer: PeerId) -> bool:
        """Return whether a round waits on the connection with a peer."""
        return any(leader.holds(peer) for leader in self._leaders) or any(one.holds(peer) for one in self._members)

    def _lost(self, peer: PeerId) -> None:
        for leader in self._leaders:
            leader.lost(peer)
        for member in self._members:
            member.lost(peer)

    def _handle_calls(self) -> None:
        largest = max(
            CODECS[self._config.codec.up].num_bytes(follower.fragment.num_elements) for follower in self._sync.followers
        )
        largest_update = max(
            CODECS[self._config.codec.down].num_bytes(follower.fragment.num_elements)
            for follower in self._sync.followers
        )
        self._transport.handle_at_once(Register, self._register)
        self._transport.handle_at_once(CallMember, self._call)
        self._transport.handle_at_once(Decline, self._decline)
        self._transport.handle(Contribute, self._contribute, admit=self._admit, max_body_bytes=largest)
        self._transport.handle(Hold, self._hold, max_body_bytes=largest_update)

    def _leader(self, fragment: int) -> Leader:
        if fragment >= len(self._leaders):
            raise Refused("unknown-fragment", f"this run has {len(self._leaders)} fragments")
        return self._leaders[fragment]

    def _register(self, sender: PeerId, request: Register) -> Registered:
        return self._leader(request.head.fragment).register(sender, request)

    def _call(self, sender: PeerId, request: CallMember) -> Called:
        if request.fragment >= len(self._members):
            return Called(joins=False, reason="this peer does not train that fragment")
        return self._members[request.fragment].call(sender, request)

    def _decline(self, sender: PeerId, request: Decline) -> Done:
        self._leader(request.fragment).decline(sender, request)
        return Done()

    def _admit(self, sender: PeerId, request: Contribute, body_bytes: int) -> None:
        self._leader(request.fragment).admit(sender, request, body_bytes)

    async def _contribute(self, sender: PeerId, request: Contribute, body: bytearray) -> Done:
        return await self._leader(request.fragment).contribute(sender, request, body)

    async def _hold(self, sender: PeerId, request: Hold, body: bytearray) -> Done:
        if request.fragment >= len(self._members):
            raise Refused("unknown-fragment", "this peer does not train that fragment")
        return self._members[request.fragment].hold(sender, request, body)
