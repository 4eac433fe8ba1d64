"""Conservation of work, watched on a learner's own accounts (training/accounts.py).

Of one fragment a learner has unmerged work d and the residual e of a lossy codec. Inner steps change d. An adoption
changes d + e by what the chain merged and nothing else: less q of each hand-over that it merged, plus q of each that it
gave back. Between two adoptions nothing may touch e. Where tokens are dropped, d + e begins anew.
"""

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from p2ptrain.training.accounts import Adoption, FragmentAccount, HandOver

Vector = NDArray[np.float32]

TOLERANCE: Final = 1e-5  # relative to the largest value: some float32 roundings; an fp16 residual is ten times that


class WorkBook:
    """Stands between a learner and one of its accounts, and does the sums again."""

    def __init__(self, account: FragmentAccount) -> None:
        self._account = account
        self._residual = account.residual
        self._adopt, self._merge, self._take_back = account.adopt, account._merge, account._take_back
        self._moved: list[tuple[int, HandOver]] = []  # sign, and what an adoption merged (-1) or gave back (+1)
        self.on_leak: Callable[[str], None] = lambda what: None
        account.adopt = self._checked_adopt  # type: ignore[method-assign]
        account._merge = self._noted_merge  # type: ignore[method-assign]
        account._take_back = self._noted_take_back  # type: ignore[method-assign]

    def leak(self) -> str | None:
        """Return what is wrong between two adoptions."""
        return None if self._account.residual is self._residual else "the codec's residual changed without an adoption"

    def _checked_adopt(self, parameters: Vector, anchor: Vector, version: int, merged_step: int) -> Adoption:
        if what := self.leak():
            self.on_leak(what)
        self._moved.clear()
        expected = self._unmerged(parameters)
        adoption = self._adopt(parameters, anchor, version, merged_step)
        self._residual = self._account.residual
        if not any(adoption.dropped.values()) and all(_is_whole(one) for _, one in self._moved):
            for sign, one in self._moved:
                expected = expected + np.float32(sign) * _decoded(one)
            self._compare(expected, self._unmerged(adoption.parameters))
        return adoption

    def _noted_merge(self, hand_over: HandOver, work: Vector) -> Vector:
        self._moved.append((-1, hand_over))
        return self._merge(hand_over, work)

    def _noted_take_back(self, hand_over: HandOver, work: Vector) -> Vector:
        self._moved.append((1, hand_over))
        return self._take_back(hand_over, work)

    def _unmerged(self, parameters: Vector) -> Vector:
        work = np.subtract(self._account.anchor, parameters)
        return work if self._account.residual is None else np.add(work, self._account.residual)

    def _compare(self, expected: Vector, after: Vector) -> None:
        scale = 1.0 + float(np.max(np.abs(self._account.anchor), initial=0.0)) + float(np.max(np.abs(after), initial=0))
        error = float(np.max(np.abs(expected - after), initial=0.0))
        if not error <= TOLERANCE * scale:
            self.on_leak(f"adopting version {self._account.version} changed the unmerged work by {error:.2g}")


def _decoded(hand_over: HandOver) -> Vector:
    """Return q, what travelled of a hand-over."""
    if hand_over.encoded_error is None:
        return hand_over.exact
    return np.subtract(hand_over.exact, hand_over.encoded_error)


def _is_whole(hand_over: HandOver) -> bool:
    """Return whether nothing of a hand-over's work was given up."""
    return hand_over.work is not None and not any(hand_over.dropped.values())
