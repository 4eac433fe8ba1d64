"""Frames: every length and number is checked before anything else happens."""

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.wire.frames import (
    HEADS,
    MAX_HEAD_BYTES,
    MAX_PIECE_BYTES,
    PREFIX_BYTES,
    Data,
    Kind,
    Open,
    Prefix,
    encode_frame,
    parse_head,
    parse_prefix,
)


def prefix(kind: int, head_bytes: int, piece_bytes: int, zero: int = 0) -> bytes:
    return struct.pack(">BBHI", kind, zero, head_bytes, piece_bytes)


def test_a_frame_survives_the_wire():
    opened = Open(stream=1, method_name="chain.head", body_bytes=5, max_reply_bytes=0, message=b"\x80")
    frame = encode_frame(opened)
    parsed = parse_prefix(frame[:PREFIX_BYTES])
    assert parsed == Prefix(Kind.OPEN, len(frame) - PREFIX_BYTES, 0)
    assert parse_head(parsed.kind, frame[PREFIX_BYTES:]) == opened


def test_a_piece_follows_its_head():
    frame = encode_frame(Data(stream=7), MAX_PIECE_BYTES)
    assert parse_prefix(frame[:PREFIX_BYTES]).piece_bytes == MAX_PIECE_BYTES


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (prefix(0, 1, 0), "kind 0"),
        (prefix(99, 1, 0), "kind 99"),
        (prefix(Kind.PING, 1, 0, zero=1), "kind 9.1"),
        (prefix(Kind.PING, 0, 0), "without a head"),
        (prefix(Kind.PING, 1, 1), "PING frame with a body"),
        (prefix(Kind.DATA, 1, 0), "DATA frame with a body of 0"),
        (prefix(Kind.DATA, 1, MAX_PIECE_BYTES + 1), f"the limit is {MAX_PIECE_BYTES}"),
        (prefix(Kind.DATA, 1, 0xFFFFFFFF), "a piece of 4294967295 bytes"),
        (b"GET / HT", "unknown"),
    ],
)
def test_what_the_protocol_does_not_allow_is_named(data, reason):  # BUG-X04
    with pytest.raises(ValueError, match=reason):
        parse_prefix(data)


def test_a_head_that_is_too_large_is_never_sent():
    with pytest.raises(ValueError, match="above the protocol's limit"):
        encode_frame(Open(stream=1, method_name="m", body_bytes=0, max_reply_bytes=0, message=bytes(MAX_HEAD_BYTES)))


@given(st.binary(min_size=PREFIX_BYTES, max_size=PREFIX_BYTES))
def test_any_eight_bytes_are_a_bounded_prefix_or_a_value_error(data):
    try:
        parsed = parse_prefix(data)
    except ValueError:
        return
    assert 0 < parsed.head_bytes <= MAX_HEAD_BYTES
    assert 0 <= parsed.piece_bytes <= MAX_PIECE_BYTES


@given(st.sampled_from(Kind), st.binary(max_size=200))
def test_any_head_is_checked_or_a_value_error(kind, data):
    with suppress(ValueError):
        assert isinstance(parse_head(kind, data), HEADS[kind])
