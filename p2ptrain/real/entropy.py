"""The machine's chance."""

import os
import random


class SystemEntropy:
    """`bytes` from the kernel; `random` seeded from it. With a seed both repeat, for tests: never for keys."""

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.Random(os.urandom(32) if seed is None else seed)
        self._is_seeded = seed is not None

    def bytes(self, count: int) -> bytes:
        return self._random.randbytes(count) if self._is_seeded else os.urandom(count)

    @property
    def random(self) -> random.Random:
        return self._random
