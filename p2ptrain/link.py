"""Join links: everything a newcomer needs, in one string that can be copied.

    p2ptrain://RUN_ID/PEER_ID@host:port,PEER_ID@[v6]:port

A link names the run and up to five peers of it that can be dialled. It carries no secret and nothing is executed; what
the peers behind it say is checked against the run id and the peer ids.
"""

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from p2ptrain.errors import LinkError
from p2ptrain.ids import PeerId, RunId, format_run_id, parse_peer_id, parse_run_id
from p2ptrain.runtime import Address

SCHEME: Final = "p2ptrain://"
MAX_LINK_PEERS: Final = 5  # enough that one survives a night, few enough to paste into a chat
MAX_LINK_CHARACTERS: Final = 2048  # five peers with the longest host names come to about 1,650
MAX_HOST_CHARACTERS: Final = 253  # RFC 1035, as text

_HOST_LABEL: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")


@dataclass(frozen=True, slots=True)
class LinkPeer:
    """A peer and one address where it can be dialled."""

    peer: PeerId
    address: Address

    def __str__(self) -> str:
        return f"{self.peer}@{self.address}"

    @classmethod
    def parse(cls, text: str) -> "LinkPeer":
        """Return the peer that `PEER_ID@host:port` spells; LinkError says what is wrong with it."""
        peer, separator, address = text.partition("@")
        if not separator:
            raise LinkError(f"{text[:80]!r} is not PEER_ID@host:port")
        try:
            return cls(parse_peer_id(peer), check_dialable(Address.parse(address)))
        except ValueError as error:
            raise LinkError(str(error)) from None


@dataclass(frozen=True, slots=True)
class JoinLink:
    """A run and some peers that train it."""

    run_id: RunId
    peers: tuple[LinkPeer, ...]

    def __str__(self) -> str:
        return f"{SCHEME}{format_run_id(self.run_id)}/{','.join(map(str, self.peers))}"

    @classmethod
    def of(cls, run_id: RunId, peers: Iterable[LinkPeer]) -> "JoinLink":
        """Return the link with the first few of `peers`, each address once."""
        return cls(run_id, tuple(dict.fromkeys(peers))[:MAX_LINK_PEERS])

    @classmethod
    def parse(cls, text: str) -> "JoinLink":
        """Return the link that `text` spells; LinkError says in one line what is wrong with it."""
        text = text.strip()
        if len(text) > MAX_LINK_CHARACTERS:
            raise LinkError(f"a join link has at most {MAX_LINK_CHARACTERS} characters, this one has {len(text)}")
        if not text.startswith(SCHEME):
            raise LinkError(f"{text[:40]!r} is no join link: one begins with {SCHEME}")
        run_id, _, peers = text.removeprefix(SCHEME).partition("/")
        if not peers:
            raise LinkError("the join link names no peer: it ends with /PEER_ID@host:port")
        entries = peers.split(",")
        if len(entries) > MAX_LINK_PEERS:
            raise LinkError(f"a join link names at most {MAX_LINK_PEERS} peers, this one names {len(entries)}")
        return cls(parse_run_id(run_id), tuple(map(LinkPeer.parse, entries)))


def check_dialable(address: Address) -> Address:
    """Return `address` if another machine could dial it; ValueError says why it could not.

    It has a port from 1 to 65535, and its host is an IP address other than the wildcard, or a DNS name.
    """
    if type(address.port) is not int or not 1 <= address.port <= 65535:
        raise ValueError(f"{address.port!r} is no port to dial: it is a whole number from 1 to 65535")
    if not isinstance(address.host, str) or not 0 < len(address.host) <= MAX_HOST_CHARACTERS:
        raise ValueError(f"a host is text of 1 to {MAX_HOST_CHARACTERS} characters")
    try:
        number = ipaddress.ip_address(address.host)
    except ValueError:
        _check_host_name(address.host)
        return address
    if number.is_unspecified or number.is_multicast or "%" in address.host:  # "%": means something on one machine only
        raise ValueError(f"{address.host} is where a peer may listen, not where it can be dialled")
    return address


def _check_host_name(host: str) -> None:
    labels = host.removesuffix(".").split(".")
    if not all(_HOST_LABEL.fullmatch(label) for label in labels):
        raise ValueError(f"{host[:60]!r} is neither an IP address nor a host name")
    if labels[-1].isdigit():  # no top-level domain is a number, so this was meant to be an IPv4 address
        raise ValueError(f"{host[:60]!r} is not an IP address")
