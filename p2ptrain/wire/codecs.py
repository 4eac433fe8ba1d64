"""How float32 vectors become bytes.

| codec   | bytes per value | what is lost                                                                    |
| ------- | --------------- | ------------------------------------------------------------------------------- |
| `fp32`  | 4               | nothing                                                                         |
| `bf16`  | 2               | all but 8 bits of the mantissa                                                  |
| `fp16`  | 2.001           | all but 11 bits; scaled per block, since plain fp16 overflows at 65,504         |
| `int8`  | 1.016           | rounded to 255 levels of each block's largest value                             |
| `int4`  | 0.516           | rounded to 15 levels (loss-neutral for pseudo-gradients: arXiv 2604.21428, 2.6) |
| `topk2` | 0.057           | all but the largest of 32 values, and these to 4 levels (SparseLoCo's scheme)   |

Decoding is at most one exact multiply per element, so everybody who decodes the same bytes has the same values, on every
machine. Rounding is to the nearest; with a seed it is stochastic, and the mean of many encodings is the value itself. That
is for updates, which keep no residual: whoever encodes contributions keeps what was lost and adds it next time
(training/accounts.py).
"""

from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from p2ptrain.ids import digest

Vector = NDArray[np.float32]
Buffer = bytes | bytearray | memoryview

BLOCK: Final = 4096  # values per scale of fp16: 4 bytes of scale per 8 KiB; also what topk2 picks from
TOP_EXPONENT: Final = 14  # scaled values stay below 2**15, half of what fp16 can hold
INTEGER_BLOCK: Final = 256  # values per scale: an outlier coarsens at most 255 neighbours
LEAST_SCALE: Final = np.float32(2.0**-126)  # below are subnormals, which some processors flush to zero
KEEP_ONE_IN: Final = 32  # of topk2
INDEX_BITS: Final = 12  # of a place in a block


class CodecError(ValueError):
    """Bytes that no encoder made, or values that none can encode; the message is the reason."""


class Codec(Protocol):
    """A pair of pure functions between flat float32 vectors and bytes."""

    @property
    def is_exact(self) -> bool:
        """Whether decoding returns what was encoded."""

    @property
    def is_unbiased(self) -> bool:
        """Whether, with a seed, the expected decoding is the value: what an update without a residual needs."""

    def num_bytes(self, num_elements: int) -> int:
        """Return the length of every encoding of so many values."""

    def encode(self, values: ArrayLike, seed: bytes = b"") -> bytes:
        """Return the bytes of an array's values in C order; with a seed, rounded by chance that follows from it."""

    def decode(self, data: Buffer, num_elements: int) -> Vector:
        """Return the values (num_elements,); CodecError when no encoder made these bytes."""


class Fp32:
    """Four bytes per value, little-endian."""

    is_exact, is_unbiased = True, True

    def num_bytes(self, num_elements: int) -> int:
        return 4 * num_elements

    def encode(self, values: ArrayLike, seed: bytes = b"") -> bytes:
        return _flat(values).astype("<f4", copy=False).tobytes()

    def decode(self, data: Buffer, num_elements: int) -> Vector:
        _check_length(data, self.num_bytes(num_elements))
        return _finite(np.frombuffer(data, "<f4").astype(np.float32))


class Bf16:
    """The upper half of each float32, rounded to the nearest, ties to even."""

    is_exact, is_unbiased = False, True

    def num_bytes(self, num_elements: int) -> int:
        return 2 * num_elements

    def encode(self, values: ArrayLike, seed: bytes = b"") -> bytes:
        bits = _flat(values).view(np.uint32)
        if seed:
            rounding = _chance(seed).integers(0, 1 << 16, bits.size, np.uint32)
        else:
            rounding = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        halves: NDArray[np.uint16] = ((bits + rounding) >> np.uint32(16)).astype("<u2")
        if ((halves & 0x7F80) == 0x7F80).any():
            raise CodecError("a value is too large for bf16")
        return halves.tobytes()

    def decode(self, data: Buffer, num_elements: int) -> Vector:
        _check_length(data, self.num_bytes(num_elements))
        return _finite((np.frombuffer(data, "<u2").astype(np.uint32) << np.uint32(16)).view(np.float32))


class Fp16:
    """Two bytes per value and one float32 power of two per block."""

    is_exact, is_unbiased = False, False

    def num_bytes(self, num_elements: int) -> int:
        return 4 * _num_blocks(num_elements, BLOCK) + 2 * num_elements

    def encode(self, values: ArrayLike, seed: bytes = b"") -> bytes:
        """Return the bytes; the seed is not used: rounding to the nearest is finer than any update needs."""
        flat = _flat(values)
        blocks = _in_blocks(flat, BLOCK)
        largest = np.abs(blocks).max(axis=1, initial=0.0)
        _, exponents = np.frexp(largest)
        scales = np.ldexp(np.float32(1), np.maximum(exponents - TOP_EXPONENT, -126)).astype(np.float32)
        halves = (blocks / scales[:, None]).astype("<f2").reshape(-1)[: flat.size]
        encoded: bytes = scales.astype("<f4").tobytes() + halves.tobytes()
        return encoded

    def decode(self, data: Buffer, num_elements: int) -> Vector:
        _check_length(data, self.num_bytes(num_elements))
        num_blocks = _num_blocks(num_elements, BLOCK)
        scales = np.frombuffer(data, "<f4", num_blocks)
        halves = np.frombuffer(data, "<f2", num_elements, 4 * num_blocks).astype(np.float32)
        return _finite(_scaled(halves, scales, BLOCK))


@dataclass(frozen=True)
class Integers:
    """Whole numbers of `num_bits` per value, times one float32 scale per block."""

    num_bits: int  # 4 or 8
    is_exact: bool = False
    is_unbiased: bool = True

    @property
    def top(self) -> int:
        """The largest whole number; the smallest is its negative."""
        return (1 << (self.num_bits - 1)) - 1

    def num_bytes(self, num_elements: int) -> int:
        return 4 * _num_blocks(num_elements, INTEGER_BLOCK) + -(-num_elements * self.num_bits // 8)

    def encode(self, values: ArrayLike, seed: bytes = b"") -> bytes:
        flat = _flat(values)
        blocks = _in_blocks(flat, INTEGER_BLOCK)
        scales = np.maximum(np.abs(blocks).max(axis=1, initial=0.0) / np.float32(self.top), LEAST_SCALE)
        if (scales > np.finfo(np.float32).max / (self.top + 1)).any():
            raise CodecError(f"a value is too large for int{self.num_bits}")
        steps = blocks / scales[:, None]
        whole = (
            np.floor(steps + _chance(seed).random(steps.shape, np.float32), out=steps)
            if seed
            else np.rint(steps, out=steps)
        )
        numbers = np.clip(whole, -self.top, self.top, out=whole).astype(np.int8).reshape(-1)[: flat.size]
        body: bytes = (numbers if self.num_bits == 8 else _packed_nibbles(numbers)).tobytes()
        return bytes(scales.astype("<f4").tobytes()) + body

    def decode(self, data: Buffer, num_elements: int) -> Vector:
        _check_length(data, self.num_bytes(num_elements))
        num_blocks = _num_blocks(num_elements, INTEGER_BLOCK)
        scales = np.frombuffer(data, "<f4", num_blocks)
        if self.num_bits == 8:
            numbers = np.frombuffer(data, np.int8, num_elements, 4 * num_blocks)
        else:
            numbers = _unpacked_nibbles(np.frombuffer(data, np.uint8, offset=4 * num_blocks), num_elements)
        if (numbers < -self.top).any():
            raise CodecError("a number that no encoder writes")
        return _finite(_scaled(numbers.astype(np.float32), scales, INTEGER_BLOCK))


class TopK2:
    """Of each block the largest 1/32 by magnitude: their places, and 2 bits for sign and one of two magnitudes.

    Alone it loses most of a vector; with the residual added to the next one nothing is lost, only late.
    """

    is_exact, is_unbiased = False, False

    def num_bytes(self, num_elements: int) -> int:
        whole, rest = divmod(num_elements, BLOCK)
        return whole * _topk_bytes(BLOCK) + (_topk_bytes(rest) if rest else 0)

    def encode(self, values: ArrayLike, seed: bytes = b"") -> bytes:
        """Return the bytes; the seed is not used: this codec cannot be unbiased."""
        flat = _flat(values)
        whole = flat.size // BLOCK * BLOCK
        parts = [_encode_topk(flat[:whole].reshape(-1, BLOCK)), _encode_topk(flat[whole:].reshape(1, -1))]
        return b"".join(parts)

    def decode(self, data: Buffer, num_elements: int) -> Vector:
        _check_length(data, self.num_bytes(num_elements))
        num_whole, rest = divmod(num_elements, BLOCK)
        cut = num_whole * _topk_bytes(BLOCK)
        values = np.empty(num_elements, np.float32)
        view = memoryview(data)
        if num_whole:
            values[: num_whole * BLOCK] = _decode_topk(view[:cut], num_whole, BLOCK).reshape(-1)
        if rest:
            values[num_whole * BLOCK :] = _decode_topk(view[cut:], 1, rest).reshape(-1)
        return values


CODECS: Final[dict[str, Codec]] = {
    "fp32": Fp32(), "bf16": Bf16(), "fp16": Fp16(), "int8": Integers(8), "int4": Integers(4), "topk2": TopK2(),
}  # fmt: skip


def _encode_topk(blocks: Vector) -> bytes:
    """Return blocks (num_blocks, size) of at most BLOCK values as bytes, one block after the other."""
    num_blocks, size = blocks.shape
    if not blocks.size:
        return b""
    count = _num_kept(size)
    magnitudes = np.abs(blocks)
    places = np.sort(np.argpartition(magnitudes, size - count, axis=1)[:, size - count :], axis=1)
    kept = np.take_along_axis(blocks, places, axis=1)
    size_of_kept = np.abs(kept)
    middle = size_of_kept.mean(axis=1, keepdims=True)
    is_large = size_of_kept > middle
    levels = np.stack([_mean_where(size_of_kept, ~is_large), _mean_where(size_of_kept, is_large)], axis=1)
    codes = (is_large.astype(np.uint8) << 1) | (kept < 0).astype(np.uint8)
    rows = [
        levels.astype("<f4").view(np.uint8).reshape(num_blocks, 8),
        _packed_bits(places.astype(np.uint16), INDEX_BITS),
        _packed_bits(codes.astype(np.uint16), 2),
    ]
    return bytes(np.concatenate(rows, axis=1).tobytes())


def _decode_topk(data: memoryview, num_blocks: int, size: int) -> Vector:
    count = _num_kept(size)
    rows = np.frombuffer(data, np.uint8).reshape(num_blocks, -1)
    place_bytes = -(-count * INDEX_BITS // 8)
    levels = np.ascontiguousarray(rows[:, :8]).view("<f4").astype(np.float32)
    places = _unpacked_bits(rows[:, 8 : 8 + place_bytes], INDEX_BITS, count).astype(np.int64)
    codes = _unpacked_bits(rows[:, 8 + place_bytes :], 2, count)
    if (np.diff(places, axis=1) <= 0).any() or (places >= size).any():
        raise CodecError("places that do not ascend within their block")
    if (_finite(levels) < 0).any():
        raise CodecError("a negative magnitude")
    magnitudes = np.take_along_axis(levels, (codes >> 1).astype(np.int64), axis=1)
    values = np.zeros((num_blocks, size), np.float32)
    np.put_along_axis(values, places, np.where(codes & 1, -magnitudes, magnitudes), axis=1)
    return values


def _num_kept(size: int) -> int:
    return -(-size // KEEP_ONE_IN)


def _topk_bytes(size: int) -> int:
    count = _num_kept(size)
    return 8 + -(-count * INDEX_BITS // 8) + -(-count * 2 // 8)


def _mean_where(values: Vector, chosen: NDArray[np.bool_]) -> Vector:
    """Return each row's mean over the chosen values; 0 where none is chosen."""
    means: Vector = (np.where(chosen, values, 0.0).sum(axis=1) / np.maximum(chosen.sum(axis=1), 1)).astype(np.float32)
    return means


def _packed_bits(numbers: NDArray[np.uint16], num_bits: int) -> NDArray[np.uint8]:
    """Return rows of numbers as rows of bytes, `num_bits` each, the most significant bit first."""
    shifts = np.arange(num_bits - 1, -1, -1, dtype=np.uint16)
    bits = (numbers[:, :, None] >> shifts) & np.uint16(1)
    return np.packbits(bits.astype(np.uint8).reshape(len(numbers), -1), axis=1)


def _unpacked_bits(rows: NDArray[np.uint8], num_bits: int, count: int) -> NDArray[np.uint16]:
    """Return `count` numbers of each row."""
    bits = np.unpackbits(rows, axis=1, count=count * num_bits).reshape(len(rows), count, num_bits)
    weights = np.uint16(1) << np.arange(num_bits - 1, -1, -1, dtype=np.uint16)
    numbers: NDArray[np.uint16] = (bits.astype(np.uint16) * weights).sum(axis=2, dtype=np.uint16)
    return numbers


def _packed_nibbles(numbers: NDArray[np.int8]) -> NDArray[np.uint8]:
    """Return two numbers from -8 to 7 per byte, the first in the low half; an odd one is followed by a zero."""
    nibbles = np.zeros(numbers.size + numbers.size % 2, np.uint8)
    nibbles[: numbers.size] = numbers.view(np.uint8) & 0x0F
    packed: NDArray[np.uint8] = np.bitwise_or(nibbles[::2], nibbles[1::2] << 4)
    return packed


def _unpacked_nibbles(packed: NDArray[np.uint8], count: int) -> NDArray[np.int8]:
    nibbles = np.empty(2 * packed.size, np.uint8)
    nibbles[::2], nibbles[1::2] = packed & 0x0F, packed >> 4
    numbers: NDArray[np.int8] = np.subtract((nibbles ^ 8).view(np.int8), np.int8(8))
    return numbers[:count]


def _scaled(numbers: Vector, scales: Vector, block: int) -> Vector:
    """Return the numbers, each multiplied by the scale of its block."""
    whole = numbers.size // block * block
    if whole:
        view = numbers[:whole].reshape(-1, block)
        np.multiply(view, scales[: whole // block, None], out=view)
    if whole < numbers.size:
        np.multiply(numbers[whole:], scales[-1], out=numbers[whole:])
    return numbers


def _num_blocks(num_elements: int, block: int) -> int:
    return -(-num_elements // block)


def _in_blocks(flat: Vector, block: int) -> Vector:
    """Return a copy of the values as rows of one block each, the last one filled up with zeros."""
    padded = np.zeros(_num_blocks(flat.size, block) * block, np.float32)
    padded[: flat.size] = flat
    return padded.reshape(-1, block)


def _chance(seed: bytes) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(int.from_bytes(digest("rounding", seed)[:16], "little")))


def _flat(values: ArrayLike) -> Vector:
    """Return the values of an array of any shape and real type as one contiguous float32 vector."""
    array: NDArray[Any] = np.asarray(values)
    if not (np.issubdtype(array.dtype, np.floating) or np.issubdtype(array.dtype, np.integer)):
        raise CodecError(f"values of type {array.dtype}; only real numbers can be encoded")
    with np.errstate(over="ignore"):
        return _finite(np.ascontiguousarray(array, np.float32).reshape(-1))


def _finite(values: Vector) -> Vector:
    if not np.isfinite(values).all():
        raise CodecError("a value is not finite")
    return values


def _check_length(data: Buffer, expected: int) -> None:
    if len(data) != expected:
        raise CodecError(f"{len(data)} bytes where {expected} are needed")
