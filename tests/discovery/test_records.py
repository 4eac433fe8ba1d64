"""Signed records: what is believed, and what is refused before or by the signature."""

import math
from dataclasses import replace
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.discovery.records import MAX_CLOCK_SKEW, MAX_LIFETIME, HeadRecord, MemberRecord
from p2ptrain.ids import Digest, PeerId, RunId, digest, public_key_of
from p2ptrain.net.identity import Identity
from p2ptrain.runtime import Address

NOW = 1_800_000_000.0
RUN_ID = RunId(digest("test", b"run"))
OTHER_RUN_ID = RunId(digest("test", b"another run"))
ALICE, BOB = Identity(b"a" * 32), Identity(b"b" * 32)
RECORD = MemberRecord(
    peer=ALICE.peer_id,
    run_id=RUN_ID,
    addresses=(Address("203.0.113.7", 4001), Address("2001:db8::1", 4001), Address("peer.example.org", 4001)),
    role="trainer",
    issued_at=NOW,
    sequence=7,
    lifetime=600.0,
    position=12_345,
    num_inner_steps=678,
    tokens_per_second=9_000.5,
    reachable=True,
)
HEAD = HeadRecord(
    fragment=3,
    digest=Digest(bytes(range(32))),
    total_work=10**12,
    holders=(ALICE.peer_id, BOB.peer_id),
    issued_at=NOW,
)


def read(data: bytes, *, run_id: RunId = RUN_ID, now: float = NOW) -> MemberRecord:
    return MemberRecord.from_bytes(data, run_id=run_id, now=now)


def signed(identity: Identity = ALICE, **changes: Any) -> bytes:
    return replace(RECORD, **changes).to_bytes(identity)


def forged(index: int, value: object) -> bytes:
    """Return Alice's record with one field replaced by anything at all, signed by Alice herself."""
    fields = list(msgpack.unpackb(msgpack.unpackb(signed())[0]))
    fields[index] = value
    body = msgpack.packb(fields)
    return bytes(msgpack.packb([body, ALICE.sign("member-record", body)]))


def test_a_record_arrives_as_it_was_signed() -> None:
    data = signed()
    assert read(data) == RECORD
    assert len(data) <= 300


@pytest.mark.parametrize("reachable", [True, False, None])
def test_a_record_says_whether_its_peer_can_be_dialled_or_that_it_does_not_know(reachable: bool | None) -> None:
    assert read(signed(reachable=reachable)).reachable is reachable


def test_a_record_says_which_of_two_is_newer() -> None:
    farewell = replace(RECORD, gone=True)
    assert (
        RECORD.age_key
        < farewell.age_key
        < replace(RECORD, sequence=8).age_key
        < replace(RECORD, issued_at=NOW + 1).age_key
    )


def test_only_the_peer_itself_can_sign_its_record() -> None:
    with pytest.raises(ValueError, match="signature"):
        read(signed(BOB))


def test_a_record_of_another_run_is_refused() -> None:
    with pytest.raises(ValueError, match="another run"):
        read(signed(), run_id=OTHER_RUN_ID)


# BUG-X08
@pytest.mark.parametrize(
    "issued_at", [2.0**63 - 1, NOW + 3600, NOW + MAX_CLOCK_SKEW + 1, 0.0, -1.0, math.nan, math.inf, "1", True]
)
def test_an_instant_far_from_now_is_refused(issued_at: object) -> None:
    with pytest.raises(ValueError):
        read(forged(4, issued_at))


# BUG-X08
@pytest.mark.parametrize("lifetime", [MAX_LIFETIME + 1, 3.2e9, math.inf, math.nan, -1.0, 0.0, 600, None])
def test_a_lifetime_beyond_the_cap_is_refused(lifetime: object) -> None:
    with pytest.raises(ValueError):
        read(forged(6, lifetime))


def test_clocks_may_differ_a_little() -> None:
    assert read(signed(), now=NOW - MAX_CLOCK_SKEW) == RECORD
    assert read(signed(), now=NOW + 599) == RECORD
    with pytest.raises(ValueError, match="expired"):
        read(signed(), now=NOW + 600)


# BUG-D09, BUG-D17
@pytest.mark.parametrize("port", [0, -1, 65536, "80", 1e9, None, True])
def test_a_contact_with_a_bad_port_is_refused(port: object) -> None:
    with pytest.raises(ValueError):
        read(forged(2, [["203.0.113.7", port]]))


# BUG-D17
@pytest.mark.parametrize("host", ["", "a" * 300, "256.1.1.1", "[::1", "name with space", b"\xff\xfe", None, 7])
def test_a_contact_with_a_bad_host_is_refused(host: object) -> None:
    with pytest.raises(ValueError):
        read(forged(2, [[host, 4001]]))


def test_more_than_eight_addresses_are_refused() -> None:
    with pytest.raises(ValueError):
        read(forged(2, [["203.0.113.7", port] for port in range(1, 10)]))


@pytest.mark.parametrize(
    ("index", "value"),
    [(3, 9), (5, -1), (5, 2**40), (7, 1), (8, 2**63), (9, 1.0), (10, math.nan), (11, 1), (11, "yes")],
)
def test_a_field_out_of_its_range_is_refused(index: int, value: object) -> None:
    with pytest.raises(ValueError):
        read(forged(index, value))


def test_the_same_record_cannot_be_spelled_in_two_ways() -> None:
    body, signature = msgpack.unpackb(signed())
    longer_array_header = b"\xdc\x00\x02" + msgpack.packb(body) + msgpack.packb(signature)
    with pytest.raises(ValueError, match="canonical"):
        read(longer_array_header)


@given(
    st.binary(max_size=1100) | st.recursive(st.none() | st.integers(-9, 9) | st.binary(), st.lists).map(msgpack.packb)
)
def test_no_bytes_break_the_parsers(data: bytes) -> None:
    for parse in (MemberRecord.from_bytes, HeadRecord.from_bytes):
        with pytest.raises(ValueError):
            parse(data, run_id=RUN_ID, now=NOW)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_flipped_bit_is_noticed(position: int, mask: int) -> None:
    data = bytearray(signed())
    data[position % len(data)] ^= mask
    with pytest.raises(ValueError):
        read(bytes(data))


def test_a_head_fits_two_hundred_bytes_with_two_holders() -> None:
    data = HEAD.to_bytes(ALICE, RUN_ID)
    assert HeadRecord.from_bytes(data, run_id=RUN_ID, now=NOW) == HEAD
    assert len(data) <= 200


def test_a_head_counts_only_for_the_run_and_the_holder_that_signed_it() -> None:
    with pytest.raises(ValueError, match="signature"):
        HeadRecord.from_bytes(HEAD.to_bytes(ALICE, RUN_ID), run_id=OTHER_RUN_ID, now=NOW)
    with pytest.raises(ValueError, match="signature"):
        HeadRecord.from_bytes(HEAD.to_bytes(BOB, RUN_ID), run_id=RUN_ID, now=NOW)


def test_the_largest_head_fits_its_bound() -> None:
    carol = PeerId(Identity(b"c" * 32).peer_id)
    largest = replace(HEAD, fragment=65535, total_work=2**62, holders=(ALICE.peer_id, BOB.peer_id, carol))
    assert len(largest.to_bytes(ALICE, RUN_ID)) <= 230
    assert public_key_of(carol) in largest.to_bytes(ALICE, RUN_ID)
