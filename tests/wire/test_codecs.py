"""Every codec on every kind of array: bounded error, exact and strict decoding."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from p2ptrain.wire.codecs import BLOCK, CODECS, INTEGER_BLOCK, CodecError

VECTORS = arrays.arrays(np.float32, st.integers(0, 40), elements=st.floats(-(2.0**100), 2.0**100, width=32))
ROUNDING = {  # relative error of a value, and absolute error in units of the vector's largest magnitude
    "fp32": (0.0, 0.0), "bf16": (2**-8, 2**-126), "fp16": (2**-11, 2**-24), "int8": (0.0, 0.5 / 127), "int4": (0.0, 0.5 / 7),
    "topk2": (0.0, 1.0),
}  # fmt: skip
BYTES_PER_VALUE = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.001, "int8": 1.016, "int4": 0.516, "topk2": 0.057}
SEED = b"a parent's digest"


def noise(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([size, seed]).standard_normal(size).astype(np.float32)


@pytest.mark.parametrize("name", list(CODECS))
@settings(max_examples=200, deadline=None)
@given(values=VECTORS)
def test_what_is_decoded_is_close(name: str, values: np.ndarray) -> None:
    codec = CODECS[name]
    data = codec.encode(values)
    decoded = codec.decode(data, values.size)
    assert len(data) == codec.num_bytes(values.size)
    assert decoded.dtype == np.float32 and decoded.shape == values.shape
    largest = float(np.abs(values).max(initial=0.0))
    relative, absolute = ROUNDING[name]
    np.testing.assert_allclose(decoded, values, rtol=relative, atol=largest * absolute * (1 + 1e-6) + 2**-126)
    if codec.is_exact:
        np.testing.assert_array_equal(decoded, values)


@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16"])
@settings(max_examples=100, deadline=None)
@given(values=VECTORS)
def test_encoding_a_float_that_was_decoded_changes_nothing(name: str, values: np.ndarray) -> None:
    decoded = CODECS[name].decode(CODECS[name].encode(values), values.size)
    np.testing.assert_array_equal(CODECS[name].decode(CODECS[name].encode(decoded), values.size), decoded)


@pytest.mark.parametrize("name", list(CODECS))
@pytest.mark.parametrize("size", [0, 1, 2, INTEGER_BLOCK + 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5])
def test_all_sizes_round_trip(name: str, size: int) -> None:  # BUG-M04
    codec, values = CODECS[name], noise(size)
    data = codec.encode(values)
    decoded = codec.decode(data, size)
    assert len(data) == codec.num_bytes(size)
    relative, absolute = ROUNDING[name]
    np.testing.assert_allclose(
        decoded, values, rtol=relative, atol=absolute * np.abs(values).max(initial=0.0) * 1.01 + 1e-9
    )


@pytest.mark.parametrize("name", list(CODECS))
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32])
def test_every_shape_and_type_is_encoded_as_its_float32_values_in_c_order(name: str, dtype: type) -> None:  # BUG-M04
    codec = CODECS[name]
    whole = (np.arange(60) - 30).astype(dtype)
    for array in (whole[7], whole[:0], whole[::2], whole.reshape(5, 12).T, whole.reshape(3, 4, 5)[:, ::-1]):
        flat = np.ascontiguousarray(array, np.float32).reshape(-1)
        assert codec.encode(array) == codec.encode(flat)
        assert codec.decode(codec.encode(array), flat.size).shape == flat.shape


@pytest.mark.parametrize("name", list(CODECS))
def test_values_that_are_no_real_numbers_are_refused(name: str) -> None:
    for array in (np.array([1j]), np.array([True]), np.array(["one"])):
        with pytest.raises(CodecError, match="only real numbers"):
            CODECS[name].encode(array)


@pytest.mark.parametrize("name", ["fp16", "bf16", "int8", "int4"])
@pytest.mark.parametrize("magnitude", [1e-30, 1e-9, 1.0, 65_504.0, 1e6, 1e30])
def test_no_magnitude_overflows_or_is_flushed(name: str, magnitude: float) -> None:  # BUG-M06
    values = np.float32([magnitude, -magnitude, magnitude / 3])
    relative, absolute = ROUNDING[name]
    decoded = CODECS[name].decode(CODECS[name].encode(values), 3)
    np.testing.assert_allclose(decoded, values, rtol=relative, atol=1.01 * absolute * magnitude)


@pytest.mark.parametrize("name", ["bf16", "int8", "int4"])
def test_the_largest_float_is_encoded_or_refused_never_infinite(name: str) -> None:
    values = np.float32([np.finfo(np.float32).max, 1.0])
    try:
        data = CODECS[name].encode(values)
    except CodecError as error:
        assert "too large" in str(error)
    else:
        assert np.isfinite(CODECS[name].decode(data, 2)).all()


@pytest.mark.parametrize("name", list(CODECS))
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_not_encoded(name: str, bad: float) -> None:
    with pytest.raises(CodecError, match="not finite"):
        CODECS[name].encode(np.float32([1.0, bad]))


@pytest.mark.parametrize(
    ("name", "place"), [("fp32", 0), ("bf16", 0), ("fp16", 0), ("int8", 0), ("int4", 0), ("topk2", 4)]
)
def test_what_is_not_finite_is_not_decoded(name: str, place: int) -> None:
    poisoned = bytearray(CODECS[name].encode(np.float32([1.0, 2.0])))
    nan = np.float32(np.nan).tobytes() if name != "bf16" else b"\xc0\x7f"
    poisoned[place : place + len(nan)] = nan
    with pytest.raises(CodecError, match="not finite"):
        CODECS[name].decode(poisoned, 2)


@pytest.mark.parametrize("name", list(CODECS))
def test_bytes_of_another_length_are_refused(name: str) -> None:
    data = CODECS[name].encode(np.ones(5, np.float32))
    for wrong in (data[:-1], data + b"\0", b""):
        with pytest.raises(CodecError, match="bytes where"):
            CODECS[name].decode(wrong, 5)


@pytest.mark.parametrize("name", list(CODECS))
def test_bytes_per_value_are_as_the_table_says(name: str) -> None:  # BUG-M05
    assert CODECS[name].num_bytes(1 << 20) / (1 << 20) == pytest.approx(BYTES_PER_VALUE[name], rel=0.01)


@pytest.mark.parametrize("name", [name for name, codec in CODECS.items() if codec.is_unbiased])
def test_with_a_seed_rounding_is_unbiased_and_repeatable(name: str) -> None:
    codec, values = CODECS[name], noise(300)
    assert codec.encode(values, SEED) == codec.encode(values, SEED)
    draws = np.array([codec.decode(codec.encode(values, f"{draw}".encode()), 300) for draw in range(400)], np.float64)
    relative, absolute = ROUNDING[name]
    step = 2 * (relative * np.abs(values) + absolute * np.abs(values).max())  # between neighbouring levels
    assert (np.abs(draws.mean(axis=0) - values) <= 5 * (step / 2) / np.sqrt(400)).all()  # 5 standard errors at most
    assert codec.is_exact or codec.encode(values, b"one seed") != codec.encode(values, b"another")


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_stochastic_rounding_moves_a_value_by_less_than_a_level(name: str) -> None:
    values = noise(INTEGER_BLOCK)
    level = np.abs(values).max() / (127 if name == "int8" else 7)
    decoded = CODECS[name].decode(CODECS[name].encode(values, SEED), values.size)
    assert np.abs(decoded - values).max() < level * 1.001


def test_an_outlier_coarsens_only_its_block() -> None:
    values = noise(2 * INTEGER_BLOCK)
    alone = CODECS["int4"].decode(CODECS["int4"].encode(values), values.size)[INTEGER_BLOCK:]
    values[0] = 1e6
    np.testing.assert_array_equal(
        CODECS["int4"].decode(CODECS["int4"].encode(values), values.size)[INTEGER_BLOCK:], alone
    )


def test_top_k_keeps_the_largest_with_their_signs() -> None:
    values = noise(2 * BLOCK + 100)
    decoded = CODECS["topk2"].decode(CODECS["topk2"].encode(values), values.size)
    for block in (slice(0, BLOCK), slice(BLOCK, 2 * BLOCK), slice(2 * BLOCK, None)):
        kept = decoded[block] != 0
        assert kept.sum() == -(-kept.size // 32)
        assert np.abs(values[block][kept]).min() >= np.abs(values[block][~kept]).max()
        np.testing.assert_array_equal(np.sign(decoded[block][kept]), np.sign(values[block][kept]))
        assert len(np.unique(np.abs(decoded[block][kept]))) <= 2


@pytest.mark.parametrize("name", ["int8", "int4", "topk2"])
def test_with_its_residual_a_lossy_codec_loses_nothing_in_the_long_run(name: str) -> None:
    codec, value, residual, total = CODECS[name], noise(BLOCK), np.zeros(BLOCK, np.float32), np.zeros(BLOCK)
    for _ in range(200):
        decoded = codec.decode(codec.encode(value + residual), BLOCK)
        residual = value + residual - decoded
        total += decoded
    assert np.linalg.norm(total / 200 - value) < (0.35 if name == "topk2" else 0.01) * np.linalg.norm(value)


@pytest.mark.parametrize("seed", range(20))
def test_top_k_refuses_bytes_that_no_encoder_makes(seed: int) -> None:
    data = bytearray(CODECS["topk2"].encode(noise(BLOCK)))
    backwards = bytearray(data)
    backwards[8:11], backwards[11:14] = data[11:14], data[8:11]
    with pytest.raises(CodecError, match="ascend"):
        CODECS["topk2"].decode(backwards, BLOCK)
    data[3] |= 0x80
    with pytest.raises(CodecError, match="negative"):
        CODECS["topk2"].decode(data, BLOCK)
    print(f"seed {seed}")
    garbage = np.random.default_rng(seed).bytes(len(data))
    with pytest.raises(CodecError):
        CODECS["topk2"].decode(garbage, BLOCK)
