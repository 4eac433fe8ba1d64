"""Whether others can dial this peer, found out by having them try.

A peer cannot see its own router from outside. So it asks two connected peers to dial its announced addresses on fresh
connections (dial_back.py), and up to five when these two do not agree. An address counts as reachable when two of them
reached it, or the only one that could be asked. Peers on another machine are asked before those on this one, and an
address of a local network counts only while nobody is connected from outside it: neighbours can always dial.

The answer is looked for again soon after the first answers were too few, when the own addresses change, when a role
depends on it, after an isolation, and every ten minutes. A peer that could be dialled and then cannot is asked about
again sooner: it may have been the way that failed. No answer is no evidence, and changes nothing.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from p2ptrain.discovery.addresses import Scope, scope_of
from p2ptrain.discovery.dial_back import NO_OPINION, REACHED
from p2ptrain.discovery.messages import DialBack, DialledBack
from p2ptrain.errors import NetworkError, Refused, RemoteProtocolError
from p2ptrain.events import Events
from p2ptrain.ids import PeerId
from p2ptrain.net.transport import Transport
from p2ptrain.runtime import Address, Runtime
from p2ptrain.tasks import TaskOwner

State = Literal["unknown", "reachable", "unreachable"]

ENOUGH_ANSWERS: Final = 2  # that agree: one peer alone could lie, or be the neighbour for whom the way is open
MAX_ASKED: Final = 5  # peers in one check, when they do not agree or do not answer
ASK_TIMEOUT: Final = 8.0  # seconds; dialling back takes at most four
FIRST_CHECK_WINDOW: Final = 0.5  # seconds after the first connection, so that peers that start together are all there
CHECK_INTERVAL: Final = 600.0  # seconds, give or take a quarter
LEAST_INTERVAL: Final = 5.0  # seconds between two checks, whatever happens
ROLE_INTERVAL: Final = 60.0  # seconds after which an answer is too old for a peer that others rely on
DOUBT_INTERVAL: Final = 60.0  # seconds until the next check after a bad answer; doubles up to CHECK_INTERVAL
RETRY_INTERVAL: Final = 15.0  # seconds until asking again when nobody answered; doubles up to CHECK_INTERVAL


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known: the addresses that others reached, and for each of the rest why they did not."""

    state: State = "unknown"
    addresses: tuple[Address, ...] = ()
    reasons: dict[Address, str] = field(default_factory=dict)

    @property
    def reachable(self) -> bool | None:
        """The state as a member record says it."""
        return None if self.state == "unknown" else self.state == "reachable"

    @property
    def why(self) -> str:
        """Why nobody can dial this peer, in one line; nothing if somebody can, or if that is not known."""
        if self.state != "unreachable":
            return ""
        return ", ".join(f"{address}: {reason}" for address, reason in self.reasons.items()) or "no address to dial"


class Reachability:
    """Keeps a verdict. `own` gives the own addresses and the signed record that announces them."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        transport: Transport,
        tasks: TaskOwner,
        events: Events,
        own: Callable[[], tuple[Sequence[Address], bytes]],
        on_verdict: Callable[[Verdict], None],
    ) -> None:
        self._runtime, self._transport, self._tasks, self._events = runtime, transport, tasks, events
        self._own, self._on_verdict = own, on_verdict
        self.verdict = Verdict()
        self._due_at = math.inf  # monotonic, as are the others
        self._checked_at = -math.inf
        self._judged_by: tuple[Scope, int] = (Scope.MACHINE, 0)  # how far those asked were, and how many could be
        self._num_doubts = self._num_vain = 0  # checks in a row with a bad answer, and with none
        self._hurried = asyncio.Event()

    def start(self) -> None:
        self._tasks.spawn("find out whether we can be dialled", self._check_forever())

    def connections_changed(self) -> None:
        """Look whether there are peers now that can say more than those asked before."""
        scope, candidates = self._candidates()
        num_useful = min(len(candidates), ENOUGH_ANSWERS)
        if candidates and (scope, num_useful) > self._judged_by:
            self._hurry(FIRST_CHECK_WINDOW)

    def addresses_changed(self) -> None:
        """Begin anew: nothing is known of the addresses that are announced from now on."""
        self.verdict = Verdict()
        self._num_doubts = self._num_vain = 0
        self._judged_by = (Scope.MACHINE, 0)
        self._checked_at = -math.inf
        self._hurry(0.0)

    def recheck(self) -> None:
        """Check soon: the world may have changed."""
        self._hurry(FIRST_CHECK_WINDOW)

    def role_matters(self) -> None:
        """Check soon unless the last answer is fresh: others are about to rely on dialling this peer."""
        if self._runtime.clock.monotonic() - self._checked_at > ROLE_INTERVAL:
            self._hurry(0.0)

    def _hurry(self, window: float) -> None:
        now, chance = self._runtime.clock.monotonic(), self._runtime.entropy.random
        due_at = max(now, self._checked_at + LEAST_INTERVAL)
        if due_at + window < self._due_at:
            self._due_at = due_at + chance.uniform(0.5, 1.0) * window
            self._hurried.set()

    async def _check_forever(self) -> None:
        while True:
            self._hurried.clear()
            pause = self._due_at - self._runtime.clock.monotonic()
            if pause > 0.0:
                try:
                    async with asyncio.timeout(None if pause == math.inf else pause):
                        await self._hurried.wait()
                except TimeoutError:
                    pass
                continue
            self._due_at = math.inf
            await self._check()

    async def _check(self) -> None:
        self._checked_at = self._runtime.clock.monotonic()
        addresses, record = self._own()
        scope, candidates = self._candidates()
        self._judged_by = scope, min(len(candidates), ENOUGH_ANSWERS)
        asked = self._runtime.entropy.random.sample(candidates, min(MAX_ASKED, len(candidates)))
        useful = [address for address in addresses if scope_of(address.host) >= scope]
        reasons = dict.fromkeys(addresses, "means nothing outside of its own network")
        if not useful and asked:
            self._conclude(addresses, (), reasons)
            return
        answers = await self._ask(asked, useful, record)
        if tuple(addresses) != tuple(self._own()[0]):
            return  # they have changed meanwhile, and the next check is due
        if not asked:
            return  # the first connection is a reason to check
        if not answers:
            self._num_vain += 1
            self._next_check(RETRY_INTERVAL * 2 ** min(self._num_vain - 1, 16))
            return
        self._num_vain = 0
        reached = tuple(address for address in useful if _is_reached(address, answers))
        for address in useful:
            reasons[address] = _reason(address, answers)
        self._conclude(addresses, reached, reasons)

    def _conclude(
        self, addresses: Sequence[Address], reached: tuple[Address, ...], reasons: dict[Address, str]
    ) -> None:
        before = self.verdict
        self.verdict = Verdict(
            state="reachable" if reached else "unreachable",
            addresses=reached,
            reasons={address: reasons[address] for address in addresses if address not in reached},
        )
        self._num_doubts = 0 if reached else self._num_doubts + 1
        self._next_check(CHECK_INTERVAL if reached else DOUBT_INTERVAL * 2 ** min(self._num_doubts - 1, 16))
        if (self.verdict.state, self.verdict.addresses) != (before.state, before.addresses):
            self._events.emit(
                "reachability",
                state=self.verdict.state,
                addresses=[str(address) for address in reached],
                reasons={str(address): reason for address, reason in self.verdict.reasons.items()},
            )
            self._on_verdict(self.verdict)

    def _next_check(self, seconds: float) -> None:
        pause = min(seconds, CHECK_INTERVAL) * self._runtime.entropy.random.uniform(0.75, 1.25)
        self._due_at = min(self._due_at, self._runtime.clock.monotonic() + pause)

    def _candidates(self) -> tuple[Scope, list[PeerId]]:
        """Return the connected peers that are farthest away, and how far: what they reach, others do."""
        seen = [
            (peer, where.host) for peer in self._transport.connected() if (where := self._transport.remote_of(peer))
        ]
        scope = max((scope_of(host) for _, host in seen), default=Scope.MACHINE)
        own_hosts = [address.host for address in self._own()[0]]
        farthest = [(peer, host) for peer, host in seen if scope_of(host) is scope]
        elsewhere = [peer for peer, host in farthest if host not in own_hosts]
        return scope, elsewhere or [peer for peer, _ in farthest]

    async def _ask(
        self, peers: Sequence[PeerId], addresses: Sequence[Address], record: bytes
    ) -> list[dict[Address, str]]:
        """Ask some peers, and more of them until enough agree; return what those said that answered."""
        answers: list[dict[Address, str]] = []
        waiting = list(peers)
        while waiting and not _agree(answers):
            now, waiting = waiting[:ENOUGH_ANSWERS], waiting[ENOUGH_ANSWERS:]
            replies = await asyncio.gather(*(self._ask_one(peer, addresses, record) for peer in now))
            answers += [reply for reply in replies if reply]
        return answers

    async def _ask_one(self, peer: PeerId, addresses: Sequence[Address], record: bytes) -> dict[Address, str]:
        """Return what a peer says of the addresses that it has an opinion on."""
        request = DialBack(record=record, addresses=tuple((address.host, address.port) for address in addresses))
        try:
            reply = await self._transport.call(peer, request, DialledBack, timeout=ASK_TIMEOUT)
        except (NetworkError, Refused, RemoteProtocolError):
            return {}
        outcomes = zip(addresses, reply.message.outcomes, strict=False)
        return {address: outcome for address, outcome in outcomes if outcome != NO_OPINION}


def _agree(answers: Sequence[dict[Address, str]]) -> bool:
    """Return whether enough peers have said the same of every address that any of them tried."""
    addresses = {address: None for answer in answers for address in answer}
    return bool(answers) and all(
        len({answer[address] == REACHED for answer in answers if address in answer}) == 1
        and sum(address in answer for answer in answers) >= ENOUGH_ANSWERS
        for address in addresses
    )


def _is_reached(address: Address, answers: Sequence[dict[Address, str]]) -> bool:
    outcomes = [answer[address] for answer in answers if address in answer]
    return 0 < min(ENOUGH_ANSWERS, len(outcomes)) <= outcomes.count(REACHED)


def _reason(address: Address, answers: Sequence[dict[Address, str]]) -> str:
    """Return what most of those said that did not reach an address."""
    outcomes = [answer[address] for answer in answers if answer.get(address, REACHED) != REACHED]
    return max(outcomes, key=outcomes.count, default="not dialled by enough others")
