"""What peers say about themselves and about heads: small, signed, and short-lived.

A record is the msgpack array [fields, signature]; `fields` are the bytes of another array, and the signature covers
exactly these under a domain of the record's own kind. A record is believed because of its signature, whoever passes
it on. Cheap checks (size, types, ranges, time) come before the signature.

Newest wins: records of one peer are ordered by (issued_at, sequence), and at equal age `gone` wins. An instant further
in the future than clocks reasonably differ is refused, since it would pin a record until that instant.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgpack

from p2ptrain.errors import LocalProtocolError
from p2ptrain.ids import DIGEST_BYTES, Digest, PeerId, RunId, peer_id_from_public_key, public_key_of
from p2ptrain.link import check_dialable
from p2ptrain.net import identity
from p2ptrain.net.identity import Identity
from p2ptrain.runtime import Address
from p2ptrain.wire.messages import unpack

ROLES: Final = ("trainer", "bootstrap", "monitor")  # their index is what travels: only ever append
MAX_MEMBER_BYTES: Final = 1024
MAX_HEAD_BYTES: Final = 256  # with three holders 215 to 225, with two 34 less
MAX_ADDRESSES: Final = 8
MAX_HOLDERS: Final = 3
MAX_LIFETIME: Final = 600.0  # seconds; a peer that died without a word is listed no longer than this
MAX_CLOCK_SKEW: Final = 120.0  # seconds by which a record may come from the future: home clocks without NTP
MAX_SEQUENCE: Final = 2**32 - 1
MAX_INSTANT: Final = 1e18  # seconds; what is in the future is refused when the record is believed, not when it is read
MAX_COUNT: Final = 2**62  # of steps, windows, work: what a signed 64-bit integer holds, with room to add

Verify = Callable[[PeerId, str, bytes, bytes], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRecord:
    """A peer, where it can be dialled, and how far it is. Instants are wall time, durations seconds."""

    peer: PeerId
    run_id: RunId
    addresses: tuple[Address, ...]  # best first; empty for a peer that nobody can dial
    role: str
    issued_at: float
    sequence: int  # grows with every record that a peer signs
    lifetime: float
    gone: bool = False  # a farewell: outlives the records that it replaces
    position: int = 0  # how many windows of data the peer has drawn
    num_inner_steps: int = 0
    tokens_per_second: float = 0.0
    reachable: bool | None = None  # whether others could dial it when it last had them try; None: not known yet

    @property
    def age_key(self) -> tuple[float, int, bool]:
        """What orders the records of one peer: the greatest is the newest."""
        return self.issued_at, self.sequence, self.gone

    @property
    def expires_at(self) -> float:
        return self.issued_at + self.lifetime

    def to_bytes(self, identity: Identity) -> bytes:
        """Return the record signed by its peer, in at most MAX_MEMBER_BYTES."""
        addresses = [[address.host, address.port] for address in self.addresses]
        fields = [
            public_key_of(self.peer), self.run_id, addresses, ROLES.index(self.role), float(self.issued_at),
            self.sequence, float(self.lifetime), self.gone, self.position, self.num_inner_steps,
            float(self.tokens_per_second), self.reachable,
        ]  # fmt: skip
        return _sign(identity, "member-record", fields, MAX_MEMBER_BYTES)

    @classmethod
    def from_bytes(
        cls,
        data: bytes,
        *,
        run_id: RunId,
        now: float,
        verify: Verify = identity.verify,
        parse: "ParseMember | None" = None,
    ) -> "MemberRecord":
        """Return the record in `data` if its peer signed it for this run; ValueError says why it is refused."""
        record, body, signature = (parse or cls.parse)(data)
        if record.run_id != run_id:
            raise ValueError("the record belongs to another run")
        _issued_at(record.issued_at, now)
        if record.expires_at <= now:
            raise ValueError("the record has expired")
        if not verify(record.peer, "member-record", body, signature):
            raise ValueError("the signature is not the peer's")
        return record

    @classmethod
    def parse(cls, data: bytes) -> "tuple[MemberRecord, bytes, bytes]":
        """Return the record that `data` spells, and the signed bytes and signature to be checked; ValueError."""
        body, signature, values = _open(data, 12, MAX_MEMBER_BYTES)
        key, run, addresses, role, issued_at, sequence, lifetime, gone, position, num_inner_steps, rate, reachable = (
            values
        )
        if type(gone) is not bool:
            raise ValueError("`gone` is true or false")
        if reachable is not None and type(reachable) is not bool:
            raise ValueError("`reachable` is true, false or nil")
        record = cls(
            peer=peer_id_from_public_key(_bytes(key, 32)),
            run_id=RunId(_bytes(run, DIGEST_BYTES)),
            addresses=_addresses(addresses),
            role=ROLES[_count(role, len(ROLES) - 1)],
            issued_at=_real(issued_at, MAX_INSTANT),
            sequence=_count(sequence, MAX_SEQUENCE),
            lifetime=_real(lifetime, MAX_LIFETIME),
            gone=gone,
            position=_count(position, MAX_COUNT),
            num_inner_steps=_count(num_inner_steps, MAX_COUNT),
            tokens_per_second=_real(rate, 1e12),
            reachable=reachable,
        )
        return record, body, signature


ParseMember = Callable[[bytes], tuple[MemberRecord, bytes, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadRecord:
    """One fragment's head as its first holder sees it, and who else has the bytes. The run id is signed, not sent."""

    fragment: int
    digest: Digest
    total_work: int
    holders: tuple[PeerId, ...]  # one to three; the first signs
    issued_at: float

    @property
    def expires_at(self) -> float:
        return self.issued_at + MAX_LIFETIME

    def to_bytes(self, identity: Identity, run_id: RunId) -> bytes:
        holders = b"".join(map(public_key_of, self.holders))
        fields = [self.fragment, self.digest, self.total_work, holders, float(self.issued_at)]
        return _sign(identity, "head-record", fields, MAX_HEAD_BYTES, run_id)

    @classmethod
    def from_bytes(cls, data: bytes, *, run_id: RunId, now: float, verify: Verify = identity.verify) -> "HeadRecord":
        """Return the record in `data` if its first holder signed it for this run; ValueError says why it is refused."""
        body, signature, values = _open(data, 5, MAX_HEAD_BYTES)
        fragment, digest, total_work, holders, issued_at = values
        if type(holders) is not bytes or len(holders) not in range(32, 32 * MAX_HOLDERS + 1, 32):
            raise ValueError(f"a head has 1 to {MAX_HOLDERS} holders")
        record = cls(
            fragment=_count(fragment, 2**16 - 1),
            digest=Digest(_bytes(digest, DIGEST_BYTES)),
            total_work=_count(total_work, MAX_COUNT),
            holders=tuple(peer_id_from_public_key(holders[at : at + 32]) for at in range(0, len(holders), 32)),
            issued_at=_issued_at(issued_at, now),
        )
        if record.expires_at <= now:
            raise ValueError("the record has expired")
        if not verify(record.holders[0], "head-record", run_id + body, signature):
            raise ValueError("the signature is not the first holder's")
        return record


def _sign(identity: Identity, domain: str, fields: list[Any], max_bytes: int, context: bytes = b"") -> bytes:
    body: bytes = msgpack.packb(fields)
    data: bytes = msgpack.packb([body, identity.sign(domain, context + body)])
    if len(data) > max_bytes:
        raise LocalProtocolError(f"a {domain} has at most {max_bytes} bytes, this one {len(data)}")
    return data


def _open(data: bytes, num_fields: int, max_bytes: int) -> tuple[bytes, bytes, tuple[Any, ...]]:
    if len(data) > max_bytes:
        raise ValueError(f"a record has at most {max_bytes} bytes, not {len(data)}")
    body, signature = _array(data, 2)
    if type(body) is not bytes:
        raise ValueError("the signed fields are bytes")
    return body, _bytes(signature, 64), _array(body, num_fields)


def _array(data: bytes, length: int) -> tuple[Any, ...]:
    """Return the array of `length` values in `data`, which must be spelled as this build would spell it."""
    values = unpack(data)
    if type(values) is not tuple or len(values) != length:
        raise ValueError(f"expected an array of {length} values")
    if msgpack.packb(values) != data:
        raise ValueError("not in canonical form")
    return values


def _bytes(value: object, length: int) -> bytes:
    if type(value) is not bytes or len(value) != length:
        raise ValueError(f"expected {length} bytes")
    return value


def _count(value: object, limit: int) -> int:
    if type(value) is not int or not 0 <= value <= limit:
        raise ValueError(f"{value!r:.40} is not a whole number from 0 to {limit}")
    return value


def _real(value: object, limit: float) -> float:
    if type(value) is not float or not math.isfinite(value) or not 0 <= value <= limit:
        raise ValueError(f"{value!r:.40} is not a real number from 0 to {limit:g}")
    return value


def _issued_at(value: object, now: float) -> float:
    return _real(value, now + MAX_CLOCK_SKEW)


def _addresses(value: object) -> tuple[Address, ...]:
    if type(value) is not tuple or len(value) > MAX_ADDRESSES:
        raise ValueError(f"addresses are an array of at most {MAX_ADDRESSES}")
    if not all(type(entry) is tuple and len(entry) == 2 for entry in value):
        raise ValueError("an address is a host and a port")
    return tuple(check_dialable(Address(host, port)) for host, port in value)
