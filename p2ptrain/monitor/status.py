"""The status of a swarm: asked of every peer that can be reached, never of a master.

Whoever asks is no member: it dials, asks and hangs up, so that nobody counts it as a peer. It begins with the peers of
a join link and goes on with those that they name, until there are no new ones. The answer has a join link with peers
that answered just now, since links grow old.

    alive          trainers that answered
    in the round   contributors to the latest commit of a fragment, of the fragment that has most
    merged         contributors to the latest commit of every fragment: of the fragment that has fewest
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from p2ptrain.errors import IncompatibleError, LinkError, P2PTrainError, UnreachableError
from p2ptrain.events import Events
from p2ptrain.ids import PeerId, RunId, format_run_id, parse_peer_id, short
from p2ptrain.link import JoinLink, LinkPeer
from p2ptrain.monitor.snapshot import HeadStatus, PeerStatus
from p2ptrain.monitor.wording import amount, level, printable
from p2ptrain.net.identity import Identity
from p2ptrain.net.transport import Transport
from p2ptrain.runtime import Runtime
from p2ptrain.wire.messages import Message

ASK_TIMEOUT: Final = 5.0  # seconds for one peer to be dialled and to answer; on the internet it takes less than one
MAX_ASKED: Final = 128  # peers, as many as a partial view has
MAX_WAVES: Final = 4  # of peers named by peers; the first already name everybody in a swarm below MAX_ASKED


class GetStatus(Message):
    """What are you doing, and whom do you know?"""

    method: ClassVar[str] = "monitor.status"


@dataclass(frozen=True, slots=True, kw_only=True)
class SwarmStatus:
    """What the peers that answered say, put together."""

    run_id: RunId
    peers: tuple[PeerStatus, ...]
    """Those that answered, by ascending peer id."""
    link: JoinLink
    """Names peers that answered just now."""
    unreachable: dict[PeerId, str]
    """Those that were named and did not answer, and why."""

    @property
    def trainers(self) -> list[PeerStatus]:
        return [peer for peer in self.peers if peer.role == "trainer"]

    @property
    def heads(self) -> list[HeadStatus]:
        """The heaviest head of each fragment that anybody has."""
        heaviest: dict[int, HeadStatus] = {}
        for head in (head for peer in self.peers for head in peer.heads):
            known = heaviest.get(head.fragment)
            if known is None or (head.total_work, known.digest) > (
                known.total_work,
                head.digest,
            ):  # ties: smaller digest
                heaviest[head.fragment] = head
        return [heaviest[fragment] for fragment in sorted(heaviest)]

    @property
    def num_in_the_round(self) -> int:
        return max((head.contributors for head in self.heads), default=0)

    @property
    def num_merged(self) -> int:
        return min((head.contributors for head in self.heads), default=0)

    @property
    def validation_loss(self) -> float:
        """Of the newest anchors that anybody has validated; NaN when nobody has."""
        validated = [peer for peer in self.peers if math.isfinite(peer.validation_loss)]
        newest = max(validated, key=lambda peer: peer.validation_version, default=None)
        return math.nan if newest is None else newest.validation_loss

    def staleness(self, peer: PeerStatus) -> int:
        """Return how many commits a peer is behind the head, in the fragment where it is most."""
        versions = {head.fragment: head.version for head in self.heads}
        return max((versions[head.fragment] - head.version for head in peer.heads), default=0)


def serve_status(transport: Transport, snapshot: Callable[[], PeerStatus]) -> None:
    """Answer whoever asks how this peer is doing."""

    async def answer(_sender: PeerId, _request: GetStatus, _body: bytearray) -> PeerStatus:
        return snapshot()

    transport.handle(GetStatus, answer)


async def collect_from_link(runtime: Runtime, identity: Identity, link: JoinLink) -> SwarmStatus:
    """Ask the peers of a link, and all that they know; UnreachableError when none of the link's peers answers."""
    transport = Transport(runtime=runtime, identity=identity, run_id=link.run_id, events=Events(runtime.clock))
    try:
        return await collect(transport, link.peers)
    finally:
        await transport.close()


async def collect(transport: Transport, peers: Sequence[LinkPeer]) -> SwarmStatus:
    """Ask these peers, and all that they know."""
    answers: dict[LinkPeer, PeerStatus] = {}
    failures: dict[LinkPeer, P2PTrainError] = {}
    wave = list(dict.fromkeys(peers))
    for _ in range(MAX_WAVES):
        replies = await asyncio.gather(*(_ask(transport, contact) for contact in wave))
        for contact, reply in zip(wave, replies, strict=True):
            if isinstance(reply, PeerStatus):
                answers[contact] = reply
            else:
                failures[contact] = reply
        wave = _named_and_not_asked(answers, failures)
        if not wave:
            break
    if not answers:
        raise _nobody_answered(failures)
    return _put_together(transport.run_id, answers, failures)


async def _ask(transport: Transport, contact: LinkPeer) -> PeerStatus | P2PTrainError:
    try:
        async with asyncio.timeout(ASK_TIMEOUT):
            await transport.dial(contact.address, expected=contact.peer)
            reply = await transport.call(contact.peer, GetStatus(), PeerStatus, timeout=ASK_TIMEOUT)
    except TimeoutError:
        return UnreachableError("timed out")
    except P2PTrainError as error:
        return error
    if reply.message.peer != contact.peer:
        return UnreachableError("answers for another peer")
    return reply.message


def _named_and_not_asked(
    answers: dict[LinkPeer, PeerStatus], failures: dict[LinkPeer, P2PTrainError]
) -> list[LinkPeer]:
    """Return the peers to ask next: one address of each, and no more than there is room for."""
    asked = {contact.peer for contact in (*answers, *failures)}
    named: dict[PeerId, LinkPeer] = {}
    for contact in (contact for status in answers.values() for contact in _contacts(status)):
        if contact.peer not in asked:
            named.setdefault(contact.peer, contact)
    return list(named.values())[: MAX_ASKED - len(asked)]


def _contacts(status: PeerStatus) -> list[LinkPeer]:
    """Return the peers that an answer names; what is no contact is passed over."""
    contacts = []
    for text in status.members:
        try:
            contacts.append(LinkPeer.parse(text))
        except LinkError:
            continue
    return contacts


def _undialable(answers: dict[LinkPeer, PeerStatus]) -> list[PeerId]:
    """Return the peers that are said to be alive without being dialable, no more than could be asked."""
    peers: dict[PeerId, None] = {}
    for text in (text for status in answers.values() for text in status.undialable):
        try:
            peers[parse_peer_id(text)] = None
        except ValueError:
            continue
    return list(peers)[:MAX_ASKED]


def _nobody_answered(failures: dict[LinkPeer, P2PTrainError]) -> P2PTrainError:
    errors = list(failures.values())
    if all(isinstance(error, (LinkError, IncompatibleError)) for error in errors):
        return errors[0]
    lines = [f"  {contact.address}  {error}" for contact, error in failures.items()]
    return UnreachableError("\n".join(["no peer of the link answers:", *lines]))


def _put_together(
    run_id: RunId, answers: dict[LinkPeer, PeerStatus], failures: dict[LinkPeer, P2PTrainError]
) -> SwarmStatus:
    statuses = {status.peer: status for status in answers.values()}
    not_asked = dict.fromkeys(_undialable(answers), "nobody can dial it; it takes part over its own connections")
    failed = {contact.peer: str(error) for contact, error in failures.items()}
    return SwarmStatus(
        run_id=run_id,
        peers=tuple(statuses[peer] for peer in sorted(statuses)),
        link=JoinLink.of(run_id, answers),
        unreachable={peer: why for peer, why in {**not_asked, **failed}.items() if peer not in statuses},
    )


def to_json(status: SwarmStatus) -> dict[str, Any]:
    """Return the status as plain JSON values; what is not known yet is null."""
    return {
        "run_id": format_run_id(status.run_id),
        "run_name": status.peers[0].run_name,
        "link": str(status.link),
        "alive": len(status.trainers),
        "others": len(status.peers) - len(status.trainers),
        "in_the_round": status.num_in_the_round,
        "merged": status.num_merged,
        "heads": [head.model_dump() for head in status.heads],
        "tokens_per_second": sum(peer.tokens_per_second for peer in status.trainers),
        "validation_loss": _number(status.validation_loss),
        "peers": [
            {key: _number(value) for key, value in peer.model_dump().items()} | {"staleness": status.staleness(peer)}
            for peer in status.peers
        ],
        "unreachable": status.unreachable,
    }


def _number(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def render(status: SwarmStatus, console: Console) -> None:
    """Print the swarm as a table, with the counts above and a link below."""
    others = len(status.peers) - len(status.trainers)
    rate = sum(peer.tokens_per_second for peer in status.trainers)
    console.print(Text(f"{printable(status.peers[0].run_name)}  {format_run_id(status.run_id)}", style="bold"))
    console.print(
        f"{len(status.trainers)} trainers alive, {status.num_in_the_round} in the round, {status.num_merged} merged"
        + (f"; {others} others" if others else "")
        + f"; {amount(rate)} tokens/s; validation loss {level(status.validation_loss)}",
        highlight=False,
        soft_wrap=True,
    )
    console.print("heads: " + "  ".join(_head(head) for head in status.heads), highlight=False, soft_wrap=True)
    console.print(_table(status))
    for peer, reason in status.unreachable.items():
        console.print(Text(f"no answer from {short(peer)}: {printable(reason)}"), soft_wrap=True)
    console.print(Text(f"join: {status.link}"), soft_wrap=True)


def _head(head: HeadStatus) -> str:
    return f"{head.fragment}: version {head.version} ({printable(head.digest[:8])}, {head.contributors} contributors)"


def _table(status: SwarmStatus) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("peer", "doing"):
        table.add_column(name)
    for name in ("tokens/s", "loss", "steps", "tokens", "merged", "behind", "busy", "connected", "dialled"):
        table.add_column(name, justify="right")
    for peer in status.peers:
        table.add_row(
            short(peer.peer), Text(printable(peer.phase)), amount(peer.tokens_per_second),
            level(peer.loss), amount(peer.inner_steps), amount(peer.tokens), amount(peer.tokens_merged),
            str(status.staleness(peer)), f"{peer.utilisation:.0%}", str(peer.num_connections),
            {True: "yes", False: "no", None: "?"}[peer.can_be_dialled],
        )  # fmt: skip
    return table
