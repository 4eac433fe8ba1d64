"""Bodies: pieces within credit, memory within what came."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.net.bodies import GROWTH_BYTES, WINDOW_BYTES, IncomingBody, OutgoingBody, flat


@given(st.lists(st.binary(max_size=50), max_size=6), st.integers(1, 20))
def test_pieces_put_together_are_the_body(parts, piece_bytes):
    body = OutgoingBody(flat(parts), credit_bytes=10_000)
    pieces = []
    while body.may_send:
        piece = b"".join(body.take(piece_bytes))
        assert 0 < len(piece) <= piece_bytes
        pieces.append(piece)
    assert b"".join(pieces) == b"".join(parts)


def test_an_array_is_sent_without_a_copy():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    (part,) = flat(memoryview(array))
    array[0, 0] = 7.0
    assert part.nbytes == 24
    assert np.frombuffer(part, dtype=np.float32)[0] == 7.0


def test_nothing_is_sent_without_credit():
    body = OutgoingBody(flat(b"0123456789"), credit_bytes=0)
    assert not body.may_send
    body.credit_bytes += 4
    assert b"".join(body.take(100)) == b"0123"
    assert not body.may_send


def test_credit_is_given_by_windows_and_ends_with_the_body():
    size = WINDOW_BYTES * 2 + 10
    body = IncomingBody(size)
    granted = body.grant()
    assert granted == WINDOW_BYTES
    assert body.grant() == 0
    while not body.is_complete:
        body.room(min(1024, granted - body.received_bytes)).release()
        body.received(min(1024, granted - body.received_bytes))
        granted += body.grant()
    assert granted == size


def test_a_piece_without_credit_is_refused():
    body = IncomingBody(100)
    with pytest.raises(ValueError, match="without credit"):
        body.room(1)
    body.grant()
    with pytest.raises(ValueError, match="without credit"):
        body.room(101)


def test_memory_follows_the_bytes_that_came():  # BUG-X04
    body = IncomingBody(1 << 40)
    body.grant()
    body.room(1024).release()
    assert len(body.memory) <= GROWTH_BYTES


def test_a_body_goes_into_the_callers_memory():
    memory = bytearray(4)
    body = IncomingBody(4, memoryview(memory))
    body.grant()
    body.room(4)[:] = b"abcd"
    assert memory == b"abcd"
    assert body.memory == b""
