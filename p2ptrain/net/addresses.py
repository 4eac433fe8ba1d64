"""Where peers can be dialled: a few addresses for each, the newest first."""

from collections.abc import Sequence
from typing import Final

from p2ptrain.ids import PeerId
from p2ptrain.runtime import Address

MAX_ADDRESSES: Final = 8  # per peer, as in a member record
MAX_PEERS: Final = 4096  # far more than a partial view of 128 needs; the least recently learnt are forgotten


class AddressBook:
    """Addresses from records that were verified, and from dials that proved the peer."""

    def __init__(self) -> None:
        self._addresses: dict[PeerId, list[Address]] = {}

    def learn(self, peer: PeerId, addresses: Sequence[Address]) -> None:
        """Put addresses before those that are known."""
        newest = list(dict.fromkeys([*addresses, *self._addresses.pop(peer, [])]))
        self._addresses[peer] = newest[:MAX_ADDRESSES]
        if len(self._addresses) > MAX_PEERS:
            del self._addresses[next(iter(self._addresses))]

    def forget(self, peer: PeerId) -> None:
        """Drop what is known of a peer: it says itself that nobody can dial it."""
        self._addresses.pop(peer, None)

    def of(self, peer: PeerId) -> list[Address]:
        return list(self._addresses.get(peer, []))
