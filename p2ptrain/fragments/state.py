"""The state of a fragment, and the one way in which an update changes it.

The anchor is the fragment's agreed parameters; with it go the outer optimizer's moments and the ledger. Everybody
applies the very bytes of the update, also the peer that made them, with the fixed arithmetic of outer.py. So a commit's
digest determines the state, and a mismatch is found by comparing 32 bytes.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from p2ptrain.config import OuterConfig
from p2ptrain.fragments.chain import ChainError, Commit, Ledger
from p2ptrain.fragments.outer import num_moments, outer_step
from p2ptrain.ids import Digest, digest

Vector = NDArray[np.float32]


@dataclass(frozen=True)
class FragmentState:
    """What a commit determines. The arrays are read-only: learner, donors and rounds share them."""

    anchor: Vector  # (num_elements,)
    moments: Vector  # of the outer optimizer: (num_moments · num_elements,)
    ledger: Ledger

    def __post_init__(self) -> None:
        self.anchor.setflags(write=False)
        self.moments.setflags(write=False)

    @classmethod
    def genesis(cls, anchor: Vector, outer: OuterConfig, created_at: float) -> Self:
        return cls(anchor, np.zeros(num_moments(outer) * anchor.size, np.float32), Ledger(created_at, {}))

    @cached_property
    def digest(self) -> Digest:
        """Digest of the whole state: equal digests, equal bytes."""
        return self.recompute_digest()

    def recompute_digest(self) -> Digest:
        """Return the digest of what is in memory now (the cached one says what was there when it was made)."""
        return digest("state", *self.to_buffers())

    def to_buffers(self) -> list[memoryview]:
        """Return anchor, moments and ledger as bytes, without copying the arrays. This is what a snapshot holds."""
        arrays = [np.ascontiguousarray(array, "<f4") for array in (self.anchor, self.moments)]
        return [
            *(array.data.cast("B") if array.size else memoryview(b"") for array in arrays),
            memoryview(self.ledger.to_bytes()),
        ]

    @classmethod
    def from_bytes(cls, data: bytes | bytearray, num_elements: int, outer: OuterConfig) -> Self:
        """Return the state that a snapshot holds; ChainError when it is malformed. Compare its digest before use."""
        anchor_bytes = 4 * num_elements
        moments_bytes = num_moments(outer) * anchor_bytes
        if len(data) < anchor_bytes + moments_bytes:
            raise ChainError(f"a snapshot of {len(data)} bytes; more than {anchor_bytes + moments_bytes} are needed")
        anchor = np.frombuffer(data, "<f4", num_elements)
        moments = np.frombuffer(data, "<f4", moments_bytes // 4, anchor_bytes)
        ledger = Ledger.from_bytes(bytes(data[anchor_bytes + moments_bytes :]))
        return cls(anchor.astype(np.float32), moments.astype(np.float32), ledger)

    def after(self, commit: Commit, update: Vector, outer: OuterConfig) -> "FragmentState":
        """Return the state after `commit`, whose decoded update (num_elements,) is given. The order is the format."""
        anchor, moments = outer_step(self.anchor, self.moments, update, outer, step=commit.version)
        return FragmentState(anchor, moments, self.ledger.after(commit))
