"""How float32 vectors become bytes.

`fp32` is exact. `fp16` halves the bytes: each block of 4,096 values is scaled by a power of two so that its largest
value fits (plain fp16 overflows at 65,504 and flushes 1e-9 to zero), then rounded. Decoding is one exact multiply per
element, so everybody who decodes the same bytes has the same values, on every machine.
"""

from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]

BLOCK: Final = 4096  # values per scale: 4 bytes of scale per 8 KiB, and one outlier spoils at most 4,096 neighbours
TOP_EXPONENT: Final = 14  # scaled values stay below 2**15, half of what fp16 can hold


class CodecError(ValueError):
    """Bytes that no encoder made, or values that none can encode; the message is the reason."""


class Codec(Protocol):
    """A pair of pure functions on flat float32 vectors."""

    def num_bytes(self, num_elements: int) -> int: ...
    def encode(self, values: Vector) -> bytes: ...
    def decode(self, data: bytes | bytearray | memoryview, num_elements: int) -> Vector: ...


class Fp32:
    """Four bytes per value, little-endian."""

    def num_bytes(self, num_elements: int) -> int:
        return 4 * num_elements

    def encode(self, values: Vector) -> bytes:
        return _finite(values).astype("<f4", copy=False).tobytes()

    def decode(self, data: bytes | bytearray | memoryview, num_elements: int) -> Vector:
        _check_length(data, self.num_bytes(num_elements))
        return _finite(np.frombuffer(data, "<f4").astype(np.float32))


class Fp16:
    """Two bytes per value and one float32 power of two per block."""

    def num_bytes(self, num_elements: int) -> int:
        return 4 * _num_blocks(num_elements) + 2 * num_elements

    def encode(self, values: Vector) -> bytes:
        flat = _finite(values).reshape(-1)
        blocks = _in_blocks(flat)
        largest = np.abs(blocks).max(axis=1, initial=0.0)
        _, exponents = np.frexp(largest)
        # Not below 2**-126: a subnormal scale would be flushed to zero on some processors.
        scales = np.ldexp(np.float32(1), np.maximum(exponents - TOP_EXPONENT, -126)).astype(np.float32)
        halves = (blocks / scales[:, None]).astype("<f2").reshape(-1)[: flat.size]
        encoded: bytes = scales.astype("<f4").tobytes() + halves.tobytes()
        return encoded

    def decode(self, data: bytes | bytearray | memoryview, num_elements: int) -> Vector:
        _check_length(data, self.num_bytes(num_elements))
        num_blocks = _num_blocks(num_elements)
        scales = np.frombuffer(data, "<f4", num_blocks)
        halves = np.frombuffer(data, "<f2", num_elements, 4 * num_blocks).astype(np.float32)
        blocks = _in_blocks(halves)
        np.multiply(blocks, scales[:, None], out=blocks)
        return _finite(np.ascontiguousarray(blocks.reshape(-1)[:num_elements]))


CODECS: Final[dict[str, Codec]] = {"fp32": Fp32(), "fp16": Fp16()}


def _num_blocks(num_elements: int) -> int:
    return -(-num_elements // BLOCK)


def _in_blocks(flat: Vector) -> Vector:
    """Return the values as rows of one block each, the last one filled up with zeros."""
    padded = np.zeros(_num_blocks(flat.size) * BLOCK, np.float32)
    padded[: flat.size] = flat
    return padded.reshape(-1, BLOCK)


def _finite(values: Vector) -> Vector:
    if not np.isfinite(values).all():
        raise CodecError("a value is not finite")
    return values


def _check_length(data: bytes | bytearray | memoryview, expected: int) -> None:
    if len(data) != expected:
        raise CodecError(f"{len(data)} bytes where {expected} are needed")
