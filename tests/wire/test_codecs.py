"""Every codec on every kind of vector: bounded error, exact and strict decoding."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from p2ptrain.wire.codecs import BLOCK, CODECS, CodecError

VECTORS = arrays.arrays(np.float32, st.integers(0, 40), elements=st.floats(-(2.0**100), 2.0**100, width=32))


@pytest.mark.parametrize("name", list(CODECS))
@settings(max_examples=200, deadline=None)
@given(values=VECTORS)
def test_what_is_decoded_is_close_and_encoding_it_again_changes_nothing(name: str, values: np.ndarray) -> None:
    codec = CODECS[name]
    data = codec.encode(values)
    decoded = codec.decode(data, values.size)
    assert len(data) == codec.num_bytes(values.size)
    assert decoded.dtype == np.float32 and decoded.shape == values.shape
    largest = float(np.abs(values).max(initial=0.0))
    np.testing.assert_allclose(
        decoded, values, rtol=2**-11 if name == "fp16" else 0, atol=largest * 2**-24 if name == "fp16" else 0
    )
    np.testing.assert_array_equal(codec.decode(codec.encode(decoded), values.size), decoded)


@pytest.mark.parametrize("name", list(CODECS))
@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5])
def test_all_sizes_round_trip(name: str, size: int) -> None:  # BUG-M04
    values = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    decoded = CODECS[name].decode(CODECS[name].encode(values), size)
    np.testing.assert_allclose(decoded, values, rtol=2**-10, atol=1e-7)


@pytest.mark.parametrize("magnitude", [1e-30, 1e-9, 1.0, 65_504.0, 1e6, 1e30])
def test_half_precision_neither_overflows_nor_flushes(magnitude: float) -> None:  # BUG-M06
    values = np.float32([magnitude, -magnitude, magnitude / 3])
    np.testing.assert_allclose(CODECS["fp16"].decode(CODECS["fp16"].encode(values), 3), values, rtol=2**-11)


@pytest.mark.parametrize("name", list(CODECS))
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_on_both_sides(name: str, bad: float) -> None:
    codec = CODECS[name]
    with pytest.raises(CodecError, match="not finite"):
        codec.encode(np.float32([1.0, bad]))
    poisoned = bytearray(codec.encode(np.float32([1.0, 2.0])))
    poisoned[-2:] = np.float16(np.nan).tobytes() if name == "fp16" else np.float32(np.nan).tobytes()[-2:]
    with pytest.raises(CodecError, match="not finite"):
        codec.decode(poisoned, 2)


@pytest.mark.parametrize("name", list(CODECS))
def test_bytes_of_another_length_are_refused(name: str) -> None:
    data = CODECS[name].encode(np.ones(5, np.float32))
    for wrong in (data[:-1], data + b"\0", b""):
        with pytest.raises(CodecError, match="bytes where"):
            CODECS[name].decode(wrong, 5)


def test_half_precision_costs_half_the_bytes() -> None:  # BUG-M05
    assert CODECS["fp16"].num_bytes(1_000_000) < 0.501 * CODECS["fp32"].num_bytes(1_000_000)


def test_non_contiguous_values_are_encoded_like_any_others() -> None:
    values = np.arange(20, dtype=np.float32)[::2]
    for codec in CODECS.values():
        np.testing.assert_array_equal(codec.decode(codec.encode(values), 10), values)
