"""Getting in touch with the addresses that a peer was given, and staying in touch.

Every address has a loop of its own, so all are tried at once and none waits for another. A bootstrap address is dialled
whenever its peer is not connected, for as long as this peer runs: two halves of a swarm that started from the same
list find each other even when neither is alone. A remembered peer is dialled only while this peer is alone. Retries
back off exponentially with full jitter, so that a bootstrap peer that returns is not met by everybody in step.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from p2ptrain.errors import IdentityInUseError, IncompatibleError, LinkError, NetworkError, P2PTrainError
from p2ptrain.ids import PeerId
from p2ptrain.link import LinkPeer
from p2ptrain.net.connector import SelfDialError
from p2ptrain.net.transport import Transport
from p2ptrain.runtime import Runtime
from p2ptrain.tasks import TaskOwner

DIAL_TIMEOUT: Final = 5.0  # seconds; a handshake over a slow mobile link takes two
MIN_BACKOFF: Final = 0.5  # seconds, the bound of the first random delay; doubles with every attempt
MAX_REMEMBERED: Final = 128  # addresses besides the bootstrap ones: as many as a view has, or the file on disk
CROWD: Final = 16  # connections with which a peer is not lost without its bootstrap addresses
CROWD_BACKOFF: Final = 600.0  # seconds for a peer in a crowd: a thousand peers try three times a second
MAX_BACKOFF: Final = 30.0  # seconds; also how long a connection has to last to count as a success


@dataclass(slots=True, eq=False)
class Contact:
    """An address, whether it should be dialled now, and how the last attempt went."""

    where: LinkPeer
    is_bootstrap: bool
    needed: asyncio.Event = field(default_factory=asyncio.Event)
    is_myself: bool = False
    num_attempts: int = 0
    reached_at: float | None = None  # monotonic
    failure: P2PTrainError | None = None
    elapsed: float = 0.0  # seconds that the last attempt took
    loop: asyncio.Task[None] | None = None

    def __str__(self) -> str:
        return f"{self.where.address}  {self.failure or 'no answer yet'}  {self.elapsed:.1f} s"


class Contacts:
    """Dials addresses until their peers are connected. `on_reached` gets the peer, `on_missed` that a dial failed."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        transport: Transport,
        tasks: TaskOwner,
        bootstrap: Sequence[LinkPeer],
        on_reached: Callable[[PeerId], Awaitable[None]],
        on_missed: Callable[[], None],
    ) -> None:
        self._runtime, self._transport, self._tasks = runtime, transport, tasks
        self._on_reached, self._on_missed = on_reached, on_missed
        self._is_in_a_crowd = False
        self._contacts = [
            Contact(where, is_bootstrap=True, is_myself=where.peer == transport.peer_id)
            for where in dict.fromkeys(bootstrap)
        ]

    @property
    def has_bootstrap(self) -> bool:
        """Whether there is a bootstrap address that is not this peer's own."""
        return any(self._bootstrap())

    def start(self, known_peers: Sequence[LinkPeer]) -> None:
        """Start a loop for each bootstrap address and each remembered peer."""
        for contact in self._contacts:
            self._begin(contact)
        self.remember(known_peers)

    def remember(self, peers: Iterable[LinkPeer]) -> None:
        """Dial these, too, while this peer is alone. When there are too many, those that failed most are forgotten."""
        known = {contact.where for contact in self._contacts}
        for where in dict.fromkeys(peers):
            if where not in known and where.peer != self._transport.peer_id:
                contact = Contact(where, is_bootstrap=False)
                self._contacts.append(contact)
                self._begin(contact)
        remembered = sorted((one for one in self._contacts if not one.is_bootstrap), key=lambda one: one.num_attempts)
        for contact in remembered[MAX_REMEMBERED:]:
            self._contacts.remove(contact)
            if contact.loop is not None:
                contact.loop.cancel()

    def _begin(self, contact: Contact) -> None:
        if not contact.is_myself:
            name = f"keep in touch with {contact.where.address}"
            contact.loop = self._tasks.spawn(name, self._keep_in_touch(contact))

    def refresh(self, connected: Collection[PeerId], *, alone: bool, live: Container[PeerId] = ()) -> None:
        """Say with whom we are connected, whether we are alone, and who is alive: it decides which addresses are dialled.

        Who has many connections need not be connected with a bootstrap peer that others hear of, and looks seldom for
        one that nobody hears of.
        """
        self._is_in_a_crowd = len(connected) >= CROWD
        for contact in self._contacts:
            peer = contact.where.peer
            is_known = self._is_in_a_crowd and peer in live
            if peer not in connected and (alone or (contact.is_bootstrap and not is_known)):
                contact.needed.set()
            else:
                contact.needed.clear()

    def identity_in_use(self) -> IdentityInUseError | None:
        """Return what an address said if it knows another live process with our identity."""
        failures = (contact.failure for contact in self._contacts)
        return next((failure for failure in failures if isinstance(failure, IdentityInUseError)), None)

    def hopeless(self) -> P2PTrainError | None:
        """Return an error that no retry will cure: every bootstrap address trains another run, or speaks otherwise."""
        failures = [contact.failure for contact in self._bootstrap()]
        all_final = all(isinstance(failure, LinkError | IncompatibleError) for failure in failures)
        return failures[0] if failures and all_final else None

    def report(self) -> str:
        """Return one line per bootstrap address: the address, why it is not connected, how long the attempt took."""
        return "\n".join(map(str, self._bootstrap()))

    def _bootstrap(self) -> list[Contact]:
        return [contact for contact in self._contacts if contact.is_bootstrap and not contact.is_myself]

    async def _keep_in_touch(self, contact: Contact) -> None:
        while not contact.is_myself:
            await contact.needed.wait()
            if contact.reached_at is not None and self._seconds_since(contact.reached_at) > MAX_BACKOFF:
                contact.num_attempts, contact.reached_at = 1, None
            await asyncio.sleep(self._delay(contact.num_attempts))
            if contact.needed.is_set():
                await self._dial(contact)

    async def _dial(self, contact: Contact) -> None:
        contact.num_attempts += 1
        started_at = self._runtime.clock.monotonic()
        try:
            async with asyncio.timeout(DIAL_TIMEOUT):
                peer = await self._transport.dial(contact.where.address, expected=contact.where.peer)
        except TimeoutError:
            contact.failure = NetworkError("timed out")
        except P2PTrainError as error:
            contact.failure = error
            contact.is_myself = isinstance(error, SelfDialError)
        else:
            contact.failure = None
            contact.reached_at = self._runtime.clock.monotonic()
            await self._on_reached(peer)
            return
        contact.elapsed = self._seconds_since(started_at)
        self._on_missed()

    def _delay(self, num_attempts: int) -> float:
        if num_attempts == 0:
            return 0.0
        bound = min(CROWD_BACKOFF if self._is_in_a_crowd else MAX_BACKOFF, MIN_BACKOFF * 2 ** min(num_attempts - 1, 16))
        return self._runtime.entropy.random.uniform(0.0, bound)

    def _seconds_since(self, instant: float) -> float:
        return self._runtime.clock.monotonic() - instant
