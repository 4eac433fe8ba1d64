"""Boxes that translate addresses: home routers and carriers, for TCP.

A box maps each inner (host, port) that dials out to one of its own ports. What it lets in to such a port depends on its
kind, in the words of RFC 3489:

    full-cone             anybody
    address-restricted    hosts that the inner end has dialled
    port-restricted       addresses that the inner end has dialled
    symmetric             the same, and each address dialled gets a mapping of its own, so nobody can tell its port

Boxes stand behind boxes (CGNAT): then the outer one sees the inner one's address. A mapping lives as long as a
connection or a dial uses it.
"""

from dataclasses import dataclass, field
from typing import Final, Literal

from p2ptrain.runtime import Address

NatKind = Literal["full-cone", "address-restricted", "port-restricted", "symmetric"]

FIRST_PORT: Final = 20_000
LAST_PORT: Final = 65_535


@dataclass(slots=True)
class _Mapping:
    inner: Address
    key: tuple[Address, Address | None]
    port: int
    num_users: int = 0
    dialled: dict[Address, int] = field(default_factory=dict)  # how often, by those who use it now


class SimNat:
    """One box with one outer address."""

    def __init__(
        self,
        kind: NatKind,
        outer_host: str,
        *,
        behind: "SimNat | None" = None,
        hairpin: bool = False,
        refuses: bool = False,
    ) -> None:
        """`hairpin`: inner hosts reach each other by the outer address. `refuses`: what is not let in is told so."""
        self.kind, self.outer_host, self.behind = kind, outer_host, behind
        self.hairpin, self.refuses = hairpin, refuses
        self.num_subscribers = 0  # boxes behind this one
        if behind is not None:
            behind.num_subscribers += 1
        self._by_key: dict[tuple[Address, Address | None], _Mapping] = {}
        self._by_port: dict[int, _Mapping] = {}
        self._forwards: dict[int, Address] = {}
        self._next_port = FIRST_PORT

    def forward(self, port: int, inner: Address) -> None:
        """Let everybody reach an inner address at a port of the box, as its owner or UPnP can set it."""
        self._forwards[port] = inner

    def let_in(self, port: int, source: Address) -> Address | None:
        """Return where a dial from `source` to a port goes; None when it goes nowhere."""
        if port in self._forwards:
            return self._forwards[port]
        mapping = self._by_port.get(port)
        if mapping is None:
            return None
        if self.kind == "full-cone":
            return mapping.inner
        if self.kind == "address-restricted":
            return mapping.inner if any(address.host == source.host for address in mapping.dialled) else None
        return mapping.inner if source in mapping.dialled else None

    def dial_out(self, inner: Address, remote: Address) -> tuple[Address, _Mapping]:
        """Return the outer address of a dial, and the mapping that it uses until `release`."""
        key = (inner, remote if self.kind == "symmetric" else None)
        mapping = self._by_key.get(key)
        if mapping is None:
            mapping = self._by_key[key] = _Mapping(inner, key, self._free_port(inner.port))
            self._by_port[mapping.port] = mapping
        mapping.num_users += 1
        mapping.dialled[remote] = mapping.dialled.get(remote, 0) + 1
        return Address(self.outer_host, mapping.port), mapping

    def release(self, mapping: _Mapping, remote: Address) -> None:
        mapping.num_users -= 1
        mapping.dialled[remote] -= 1
        if not mapping.dialled[remote]:
            del mapping.dialled[remote]
        if not mapping.num_users:
            del self._by_key[mapping.key], self._by_port[mapping.port]

    @property
    def num_mappings(self) -> int:
        return len(self._by_key)

    def _free_port(self, wanted: int) -> int:
        """Return the inner port itself where that is possible; a symmetric box never does."""
        if self.kind != "symmetric" and wanted not in self._by_port and wanted not in self._forwards:
            return wanted
        while True:
            self._next_port = FIRST_PORT if self._next_port >= LAST_PORT else self._next_port + 1
            if self._next_port not in self._by_port and self._next_port not in self._forwards:
                return self._next_port


class Passage:
    """A dial's way out through the boxes in front of a host: the address that the world sees, and what it holds."""

    __slots__ = ("_held", "source")

    def __init__(self, boxes: list[SimNat], inner: Address, remote: Address) -> None:
        """`boxes` from the host outwards."""
        self.source = inner
        self._held: list[tuple[SimNat, _Mapping, Address]] = []
        for box in boxes:
            self.source, mapping = box.dial_out(self.source, remote)
            self._held.append((box, mapping, remote))

    def release(self) -> None:
        """Give back the mappings."""
        held, self._held = self._held, []
        for box, mapping, remote in held:
            box.release(mapping, remote)


def boxes_before(nat: SimNat | None) -> list[SimNat]:
    """Return the boxes between a host and the world, the nearest first."""
    boxes: list[SimNat] = []
    while nat is not None:
        boxes.append(nat)
        nat = nat.behind
    return boxes
