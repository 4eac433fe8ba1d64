"""The state of a fragment, and the one way in which an update changes it.

The anchor is the fragment's agreed parameters; with it go the outer optimizer's momentum and the ledger. Everybody
applies the very bytes of the update, also the peer that made them, with fixed arithmetic: NumPy float32, one multiply
or add at a time in the order that stands here, nothing fused (fused forms differ between processors). So a commit's
digest determines the state, and a mismatch is found by comparing 32 bytes.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from p2ptrain.config import OuterConfig
from p2ptrain.fragments.chain import ChainError, Commit, Ledger
from p2ptrain.ids import Digest, digest

Vector = NDArray[np.float32]


@dataclass(frozen=True)
class FragmentState:
    """What a commit determines. The arrays are read-only: learner, donors and rounds share them."""

    anchor: Vector  # (num_elements,)
    momentum: Vector  # (num_elements,), or (0,) when the outer optimizer has none
    ledger: Ledger

    def __post_init__(self) -> None:
        self.anchor.setflags(write=False)
        self.momentum.setflags(write=False)

    @classmethod
    def genesis(cls, anchor: Vector, outer: OuterConfig, created_at: float) -> Self:
        return cls(anchor, np.zeros(anchor.size if outer.momentum else 0, np.float32), Ledger(created_at, {}))

    @cached_property
    def digest(self) -> Digest:
        """Digest of the whole state: equal digests, equal bytes."""
        return self.recompute_digest()

    def recompute_digest(self) -> Digest:
        """Return the digest of what is in memory now (the cached one says what was there when it was made)."""
        return digest("state", *self.to_buffers())

    def to_buffers(self) -> list[memoryview]:
        """Return anchor, momentum and ledger as bytes, without copying the arrays. This is what a snapshot holds."""
        arrays = [np.ascontiguousarray(array, "<f4") for array in (self.anchor, self.momentum)]
        return [
            *(array.data.cast("B") if array.size else memoryview(b"") for array in arrays),
            memoryview(self.ledger.to_bytes()),
        ]

    @classmethod
    def from_bytes(cls, data: bytes | bytearray, num_elements: int, outer: OuterConfig) -> Self:
        """Return the state that a snapshot holds; ChainError when it is malformed. Compare its digest before use."""
        anchor_bytes = 4 * num_elements
        momentum_bytes = anchor_bytes if outer.momentum else 0
        if len(data) < anchor_bytes + momentum_bytes:
            raise ChainError(f"a snapshot of {len(data)} bytes; more than {anchor_bytes + momentum_bytes} are needed")
        anchor = np.frombuffer(data, "<f4", num_elements)
        momentum = np.frombuffer(data, "<f4", momentum_bytes // 4, anchor_bytes)
        ledger = Ledger.from_bytes(bytes(data[anchor_bytes + momentum_bytes :]))
        return cls(anchor.astype(np.float32), momentum.astype(np.float32), ledger)

    def after(self, commit: Commit, update: Vector, outer: OuterConfig) -> "FragmentState":
        """Return the state after `commit`, whose decoded update (num_elements,) is given. The order is the format."""
        anchor, momentum = outer_step(self.anchor, self.momentum, update, outer)
        return FragmentState(anchor, momentum, self.ledger.after(commit))


def outer_step(anchor: Vector, momentum: Vector, update: Vector, outer: OuterConfig) -> tuple[Vector, Vector]:
    """Return anchor and momentum after one step of SGD on the pseudo-gradient `update`.

    Without momentum: anchor - lr * update. With momentum: m' = mu * m + update, and the step is m' (heavy ball), or
    update + mu * m' (Nesterov, as torch.optim.SGD has it).
    """
    rate, mu = np.float32(outer.learning_rate), np.float32(outer.momentum)
    direction = update
    if outer.momentum:
        momentum = np.add(np.multiply(momentum, mu), update)
        direction = np.add(np.multiply(momentum, mu), update) if outer.nesterov else momentum
    return np.subtract(anchor, np.multiply(direction, rate)), momentum
