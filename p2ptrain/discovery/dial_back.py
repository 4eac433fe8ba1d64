"""Dialling a peer back, because it asks whether it can be dialled.

Whoever can make others dial has a weapon, so what is asked for is bounded. Only addresses are dialled that the asker's
own signed record announces. An address of this machine or of a local network is dialled only if the asker's connection
comes from there: nobody is sent to knock at the inside of somebody else's network. A host that the connection does not
come from, which may be a victim's, is dialled at most once a minute, whoever asks. Each asker may ask a few times in a
row and then four times a minute, and all together once a second. The dial ends with the handshake, so what arrives at
a victim is less than what the asker had to send.
"""

import asyncio
from collections.abc import Hashable
from typing import Final

from p2ptrain.discovery.addresses import Scope, scope_of
from p2ptrain.discovery.messages import DialBack, DialledBack
from p2ptrain.discovery.records import MemberRecord
from p2ptrain.errors import IncompatibleError, LinkError, NetworkError, P2PTrainError, Refused
from p2ptrain.ids import PeerId
from p2ptrain.net.connector import SelfDialError, WrongPeerError
from p2ptrain.net.transport import Transport
from p2ptrain.runtime import Address, Clock, Runtime

REACHED: Final = "reached"
NO_OPINION: Final = "not dialled again so soon"
DIAL_TIMEOUT: Final = 4.0  # seconds: two tries of TCP's first packet, and a handshake over a slow link
MAX_AT_ONCE: Final = 8  # asks answered at a time, each with a dial per address
PER_ASKER: Final = (4, 15.0)  # asks in a row, and the seconds after which there is one more
ALTOGETHER: Final = (32, 1.0)
PER_FOREIGN_HOST: Final = (1, 60.0)  # dials of a host that the asker's connection does not come from
MAX_REMEMBERED: Final = 1024  # askers, and foreign hosts; the longest unheard of are forgotten
KNOWN_REASONS: Final = ("refused", "timed out", "no route", "unknown host", "reset by the other end")


class Allowance:
    """How often something may still happen, by key: some times in a row, then once per interval."""

    def __init__(self, clock: Clock, times: int, interval: float) -> None:
        self._clock, self._times, self._interval = clock, times, interval
        self._full_at: dict[Hashable, float] = {}  # when each key may happen `times` times in a row again

    def wait(self, key: Hashable) -> float:
        """Return the seconds until it may happen once more."""
        missing = self._full_at.get(key, 0.0) - self._clock.monotonic()
        return max(0.0, missing - (self._times - 1) * self._interval)

    def take(self, key: Hashable) -> None:
        """Note that it happens."""
        full_at = max(self._full_at.pop(key, 0.0), self._clock.monotonic())
        self._full_at[key] = full_at + self._interval
        if len(self._full_at) > MAX_REMEMBERED:
            del self._full_at[next(iter(self._full_at))]


class DialBacks:
    """Answers peers that ask to be dialled back."""

    def __init__(self, *, runtime: Runtime, transport: Transport) -> None:
        self._runtime, self._transport = runtime, transport
        self._per_asker = Allowance(runtime.clock, *PER_ASKER)
        self._altogether = Allowance(runtime.clock, *ALTOGETHER)
        self._per_foreign_host = Allowance(runtime.clock, *PER_FOREIGN_HOST)
        self._num_running = 0
        transport.handle(DialBack, self._answer)

    async def _answer(self, sender: PeerId, request: DialBack, body: bytearray) -> DialledBack:
        seen_at = self._transport.remote_of(sender)
        if seen_at is None:
            raise Refused("not-connected", "only who is connected is dialled back")
        self._take_leave(sender)
        addresses = self._announced(sender, request)
        self._num_running += 1
        try:
            outcomes = await asyncio.gather(*(self._dial(sender, address, seen_at) for address in addresses))
        finally:
            self._num_running -= 1
        return DialledBack(outcomes=tuple(outcomes))

    def _take_leave(self, sender: PeerId) -> None:
        """Note that a peer asks, or refuse it because it or all together ask too often."""
        wait = max(self._per_asker.wait(sender), self._altogether.wait("all"))
        if wait > 0.0:
            raise Refused("too-often", "this peer has been dialling back a lot lately", retry_after=wait)
        if self._num_running >= MAX_AT_ONCE:
            raise Refused("busy", "this peer is dialling others back just now", retry_after=DIAL_TIMEOUT)
        self._per_asker.take(sender)
        self._altogether.take("all")

    def _announced(self, sender: PeerId, request: DialBack) -> list[Address]:
        """Return the addresses in a request if the sender's own record announces them all."""
        try:
            record = MemberRecord.from_bytes(
                request.record, run_id=self._transport.run_id, now=self._runtime.clock.wall()
            )
        except ValueError as error:
            raise Refused("malformed", f"the record: {error}") from None
        addresses = [Address(host, port) for host, port in dict.fromkeys(request.addresses)]
        if record.peer != sender or not set(addresses) <= set(record.addresses) or record.gone:
            raise Refused("not-yours", "only addresses that the asker's own record announces are dialled")
        return addresses

    async def _dial(self, sender: PeerId, address: Address, seen_at: Address) -> str:
        """Dial one address, if that may be, and say how it went."""
        refusal = self._refusal(address.host, seen_at.host)
        if refusal:
            return refusal
        try:
            async with asyncio.timeout(DIAL_TIMEOUT):
                await self._transport.probe(address, sender)
        except TimeoutError:
            return "timed out"
        except P2PTrainError as error:
            return _in_a_few_words(error)
        return REACHED

    def _refusal(self, host: str, seen_at: str) -> str:
        """Return why a host is not dialled for an asker whose connection comes from `seen_at`; nothing if it is."""
        if host == seen_at or scope_of(seen_at) is Scope.MACHINE:  # what runs on this machine can dial by itself
            return ""
        if scope_of(host) < scope_of(seen_at):
            return "means nothing outside of its own network"
        if self._per_foreign_host.wait(host) > 0.0:
            return NO_OPINION
        self._per_foreign_host.take(host)
        return ""


def _in_a_few_words(error: P2PTrainError) -> str:
    match error:
        case WrongPeerError() | SelfDialError():
            return "another peer is there"
        case LinkError():
            return "another run is there"
        case IncompatibleError():
            return "no p2ptrain is there"
        case NetworkError(reason=reason) if reason in KNOWN_REASONS:
            return reason
        case _:
            return "the connection failed"
