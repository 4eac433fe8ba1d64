"""Which windows a peer draws, so that peers share the text without a word about it.

All peers of a run walk one sequence of **positions**: position = epoch * num_windows + index, and in every epoch the
indices are permuted anew. A position belongs to the live peer that wins a hash of (run, position, peer): rendezvous
hashing (Thaler & Ravishankar 1998). A peer walks at its own speed and draws the positions that are its own.

While views agree, no position is drawn by two live peers and none is passed over. When peers come and go: a newcomer
begins beyond every position that was drawn by then (`join`), and between two peers that were both there all along the
hash has always preferred the same one, so still no two live peers draw one position. What a departed peer leaves is not
exact: positions that its heirs have passed are lost for that epoch, and those that it drew ahead of its heirs are drawn
again. The next epoch has another permutation and other owners, so no window is lost for ever.

The permutation is a four-round Feistel network over the smallest 4^k >= num_windows, walked until it lands inside
(Black & Rogaway 2002): nothing to store, any index at once. Everything is computed for a block of positions in NumPy.
"""

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from p2ptrain.ids import PeerId, RunId, digest

BLOCK_POSITIONS: Final = 4096  # looked at in one go: 1 ms, and with 100 peers the windows of five steps
MAX_POSITION: Final = 1 << 62  # what a peer announces beyond it is no position; below it nothing overflows
FEISTEL_ROUNDS: Final = 4  # Luby & Rackoff: four make a strong pseudo-random permutation

Words = npt.NDArray[np.uint64]


class WindowCursor:
    """One peer's place in the run's sequence. `position` is all that a restart needs."""

    _owned: Words  # positions of ours from `position` to `_looked_to`, for these others
    _windows: Words  # what lies there

    def __init__(self, *, run_id: RunId, me: PeerId, num_windows: int, position: int = 0) -> None:
        self.position = position
        """Everything of ours below it has been drawn."""
        self._me = me
        self._num_windows = num_windows
        self._run_key = _key("cursor-run", run_id)
        self._forget_block()

    def join(self, live_positions: Iterable[int], margin: int) -> None:
        """Begin beyond what live peers have drawn; `margin` covers what they draw until they know of us.

        The same for a newcomer and for a restart: while a peer was away, others drew what would have been its own.
        """
        reached = [position for position in live_positions if 0 <= position <= MAX_POSITION]
        if reached:
            self.position = max(self.position, max(reached) + margin)
            self._forget_block()

    def next_windows(self, count: int, live: Collection[PeerId]) -> list[int]:
        """Return the next `count` windows that are ours while these peers are live (with or without ourselves)."""
        return self.draw(count, live)[1]

    def draw(self, count: int, live: Collection[PeerId]) -> tuple[list[int], list[int]]:
        """Return the next `count` positions that are ours, and the windows that lie there."""
        others = frozenset(live) - {self._me}
        if others != self._others:
            self._forget_block(others)
        while self._owned.size < count:
            self._look_at_next_block()
        positions, windows = self._owned[:count], self._windows[:count]
        self._owned, self._windows = self._owned[count:], self._windows[count:]
        self.position = int(positions[-1]) + 1 if count else self.position
        return positions.tolist(), windows.tolist()

    def _forget_block(self, others: frozenset[PeerId] = frozenset()) -> None:
        self._others = others
        self._looked_to = self.position
        self._owned = self._windows = np.empty(0, np.uint64)

    def _look_at_next_block(self) -> None:
        block = np.arange(self._looked_to, self._looked_to + BLOCK_POSITIONS, dtype=np.uint64)
        owned = owned_positions(block, self._me, self._others, self._run_key)
        windows = permuted_windows(owned, self._num_windows, self._run_key)
        self._owned = np.concatenate([self._owned, owned])
        self._windows = np.concatenate([self._windows, windows])
        self._looked_to += BLOCK_POSITIONS


def count_double(drawn: Mapping[PeerId, Collection[int]]) -> int:
    """Return how many of the positions that peers drew had been drawn already, by another or by themselves."""
    return sum(map(len, drawn.values())) - len(set().union(*drawn.values()))


def owned_positions(positions: Words, me: PeerId, others: Collection[PeerId], run_key: np.uint64) -> Words:
    """Return those positions at which our hash beats everybody else's.

    The rivals come in chunks that double, against the positions that we still hold: these halve each time, so a
    thousand peers cost ten times what one costs, not a thousand times.
    """
    rivals = np.array([_key("cursor-peer", peer.encode()) for peer in sorted(others)], np.uint64)
    hashes = _mix(positions + run_key)
    scores = _mix(hashes ^ _key("cursor-peer", me.encode()))
    start, size = 0, 1
    while start < len(rivals):
        best = _mix(hashes ^ rivals[start : start + size, None]).max(axis=0)  # (positions still held,)
        held = scores > best
        positions, hashes, scores = positions[held], hashes[held], scores[held]
        start, size = start + size, size * 2
    return positions


def permuted_windows(positions: Words, num_windows: int, run_key: np.uint64) -> Words:
    """Return the window at each position: its epoch's permutation of its index."""
    epochs, indices = np.divmod(positions, np.uint64(num_windows))
    epoch_keys = _mix(_mix(epochs) ^ run_key)
    windows = _feistel(indices, epoch_keys, num_windows)
    while (outside := windows >= num_windows).any():
        windows[outside] = _feistel(windows[outside], epoch_keys[outside], num_windows)
    return windows


def _feistel(values: Words, keys: Words, num_windows: int) -> Words:
    """Permute values below 4^k, the smallest such that holds num_windows; every element under a key of its own."""
    half_bits = max(1, ((num_windows - 1).bit_length() + 1) // 2)
    mask = np.uint64((1 << half_bits) - 1)
    left, right = values >> np.uint64(half_bits), values & mask
    for number in range(FEISTEL_ROUNDS):
        left, right = right, left ^ (_mix(_mix(keys + np.uint64(number)) ^ right) & mask)
    return left << np.uint64(half_bits) | right


def _mix(words: Words) -> Words:
    """Scramble 64-bit words one to one (the finaliser of SplitMix64, Steele et al. 2014)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


@lru_cache(maxsize=1 << 12)
def _key(domain: str, name: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(digest(domain, name)[:8], "little"))
