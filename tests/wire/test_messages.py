"""Messages: what is accepted, and that nothing else gets through or out as another error."""

from contextlib import suppress
from typing import ClassVar

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.wire.messages import Message, unpack


class Inner(Message):
    name: str
    digest: bytes


class Sample(Message):
    method: ClassVar[str] = "test.sample"
    count: int
    ratio: float = 0.5
    parts: tuple[Inner, ...] = ()
    pairs: tuple[tuple[int, str], ...] = ()
    note: str | None = None


def encoded(**fields: object) -> bytes:
    return msgpack.packb(fields)


def test_a_message_survives_the_wire():
    sample = Sample(count=3, parts=(Inner(name="a", digest=b"\x00" * 32),), pairs=((1, "one"),))
    assert Sample.decode(sample.encode()) == sample
    assert Sample.decode(memoryview(sample.encode())) == sample


def test_a_newer_peer_may_say_more():
    assert Sample.decode(encoded(count=1, colour="blue")) == Sample(count=1)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"count": "3"},
        {"count": 3.0},
        {"count": float("nan")},
        {"count": True},
        {"count": 1, "ratio": float("nan")},
        {"count": 1, "ratio": float("inf")},
        {"count": 1, "ratio": "0.5"},
        {"count": 1, "parts": [{"name": b"a", "digest": b""}]},
        {"count": 1, "pairs": {"1": "one"}},
    ],
)
def test_nothing_is_coerced(fields):
    with pytest.raises(ValueError, match="Sample"):
        Sample.decode(msgpack.packb(fields))


@pytest.mark.parametrize(
    "data",
    [
        "819101c0",  # a list as a key
        "81a2c32801",  # a key that is not UTF-8
        "c1",  # never used
        "d42a00",  # an unknown extension
        "c70cff" + "7f" * 12,  # a time stamp far out
        "82a16101a16102",  # a key twice
        "810102",  # a number as a key
        "",
        "80c0",  # more than one value
        "dfffffffff",  # a map of 4 billion
        "91" * 5000,  # nested without end
    ],
)
def test_hostile_bytes_are_a_value_error(data):  # BUG-X02
    with pytest.raises(ValueError, match="not a msgpack message"):
        unpack(bytes.fromhex(data))


@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_a_value_error(data):  # BUG-X02
    try:
        assert isinstance(Sample.decode(data), Sample)
    except ValueError as error:
        assert "\n" not in str(error)


@given(st.binary(min_size=1, max_size=8), st.integers(min_value=0))
def test_any_damage_is_a_message_or_a_value_error(damage, where):  # BUG-X02
    data = bytearray(Sample(count=3, parts=(Inner(name="a", digest=b"x"),), note="n").encode())
    start = where % len(data)
    data[start : start + len(damage)] = damage
    with suppress(ValueError):
        assert isinstance(Sample.decode(data), Sample)
