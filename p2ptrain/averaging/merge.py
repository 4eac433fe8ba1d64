"""Merging the pseudo-gradients of a round into one update. Pure.

Pseudo-gradients of different peers are nearly orthogonal, so the plain mean of n of them is about √n shorter than each,
and the outer step would shrink and swell with participation. Radial-directional averaging (RDA, Decoupled DiLoCo,
arXiv 2604.21428) averages length and direction apart, per tensor: u = Σ w·Δ/‖Δ‖ / Σ w, scaled to R = Σ w·‖Δ‖ / Σ w.
Embeddings and small tensors take the plain weighted mean. One contributor is merged as it is, bit for bit.

| rule            | per tensor                                         | withstands                          | sums? |
| --------------- | -------------------------------------------------- | ----------------------------------- | ----- |
| `rda`           | mean direction, mean length                        | directions: one vote per weight     | yes   |
| `rda-median`    | mean direction, weighted median length             | and absurd lengths                  | yes   |
| `mean`          | weighted mean                                      | nothing                             | yes   |
| `trimmed-mean`  | per element, mean without the largest and smallest | a fifth of hostile peers            | no    |
| `median`        | per element, median                                | almost half                         | no    |
| `centered-clip` | mean of what is clipped to the median length       | absurd lengths (arXiv 2012.10333)   | no    |

The last three count heads, not work: a weight is what a hostile peer would claim. "Sums" says that partial sums of
groups can be added up, so that a rule works on two levels.

The sum runs in ascending peer id over a frozen list. Only the leader merges, everybody applies its bytes, so this
arithmetic needs to be good, not fixed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from p2ptrain.fragments.layout import Fragment

Vector = NDArray[np.float32]

TRIMMED_SHARE = 0.2  # on each side: fewer hostile peers than that cannot move an element out of the honest range
NORM_TOLERANCE = 1e-3  # relative; a lossy codec changes a norm by less (fp16: 2**-11 per element)


@dataclass(frozen=True, slots=True)
class Contribution:
    """A decoded pseudo-gradient and what decides its weight."""

    tokens: int
    steps: int
    values: Vector  # (num_elements,)


class Merge(Protocol):
    """How a leader makes one update of a round's contributions: `merge` below, or another pure function."""

    def __call__(
        self, contributions: Sequence[Contribution], fragment: Fragment, /, *, rule: str, max_weight_ratio: float
    ) -> Vector: ...


def weights(contributions: Sequence[Contribution], max_ratio: float) -> list[float]:
    """Return tokens²/steps of each (amount of work times size of batch), none above `max_ratio` times the median."""
    raw = [one.tokens * (one.tokens / one.steps) for one in contributions]
    cap = max_ratio * median(raw)
    return [min(weight, cap) for weight in raw]


def merge(contributions: Sequence[Contribution], fragment: Fragment, *, rule: str, max_weight_ratio: float) -> Vector:
    """Return the update (num_elements,) of a round by a rule of the table above; ValueError for an empty round."""
    if not contributions:
        raise ValueError("a round without contributions has no update")
    if len(contributions) == 1:
        return contributions[0].values
    shares = weights(contributions, max_weight_ratio)
    total = sum(shares)
    shares = [share / total for share in shares]
    update = np.empty(fragment.num_elements, np.float32)
    for piece in fragment.pieces:
        parts = [one.values[piece.place] for one in contributions]
        by_direction = rule not in ("rda", "rda-median") or piece.tensor.merges_by_direction
        update[piece.place] = RULES[rule](parts, shares) if by_direction else weighted_mean(parts, shares)
    return update


def weighted_mean(parts: Sequence[Vector], shares: Sequence[float]) -> Vector:
    """Return Σ share·part; the shares add up to 1."""
    total = np.zeros_like(parts[0])
    for part, share in zip(parts, shares, strict=True):
        total += np.float32(share) * part
    return total


def radial_directional_mean(parts: Sequence[Vector], shares: Sequence[float], *, robust: bool = False) -> Vector:
    """Return the mean direction with the mean length (`robust`: the median length); the shares add up to 1.

    Where directions cancel, the mean direction is short and scaling it up to full length would amplify noise, so the
    amplification is at most 2·√n, n being the effective number of contributors (it is √n for orthogonal ones).
    """
    norms = [norm(part) for part in parts]
    direction = weighted_mean(
        parts, [share / length if length else 0.0 for share, length in zip(shares, norms, strict=True)]
    )
    mean_length = sum(share * length for share, length in zip(shares, norms, strict=True))
    radius = weighted_median(norms, shares) if robust else mean_length
    effective = 1.0 / sum(share * share for share in shares)
    amplification = min(1.0 / max(norm(direction), 1e-30), 2.0 * effective**0.5)
    return np.float32(radius * amplification) * direction


def trimmed_mean(parts: Sequence[Vector], shares: Sequence[float]) -> Vector:
    """Return the mean of each element without its largest and smallest values, a fifth of them on each side.

    Every part counts alike, whatever its share. Of three or four parts one is left out on each side.
    """
    count = len(parts)
    cut = max(int(count * TRIMMED_SHARE), int(count >= 3))
    ordered = np.sort(np.stack(parts), axis=0)
    mean: Vector = np.mean(ordered[cut : count - cut], axis=0, dtype=np.float32)
    return mean


def coordinate_median(parts: Sequence[Vector], shares: Sequence[float]) -> Vector:
    """Return the median of each element; every part counts alike, whatever its share."""
    middle: Vector = np.median(np.stack(parts), axis=0).astype(np.float32)
    return middle


def centered_clip(parts: Sequence[Vector], shares: Sequence[float]) -> Vector:
    """Return the mean of the parts, each scaled down to the median length if it is longer: one iteration, from zero.

    Every part counts alike, whatever its share.
    """
    norms = [norm(part) for part in parts]
    radius = median(norms)
    return weighted_mean(parts, [min(1.0, radius / length if length else 1.0) / len(parts) for length in norms])


def weighted_median(values: Sequence[float], shares: Sequence[float]) -> float:
    """Return the value below which half of the shares lie, interpolated between neighbours."""
    order = np.argsort(values, kind="stable")
    ordered, masses = np.asarray(values, np.float64)[order], np.asarray(shares, np.float64)[order]
    return float(np.interp(0.5, (np.cumsum(masses) - masses / 2) / masses.sum(), ordered))


def robust_radial_directional_mean(parts: Sequence[Vector], shares: Sequence[float]) -> Vector:
    """Return the mean direction with the weighted median length."""
    return radial_directional_mean(parts, shares, robust=True)


RULES: dict[str, Callable[[Sequence[Vector], Sequence[float]], Vector]] = {
    "rda": radial_directional_mean,
    "rda-median": robust_radial_directional_mean,
    "mean": weighted_mean,
    "trimmed-mean": trimmed_mean,
    "median": coordinate_median,
    "centered-clip": centered_clip,
}


def norm(values: Vector) -> float:
    """Return the Euclidean norm, summed in float64."""
    return float(np.sqrt(np.sum(np.square(values, dtype=np.float64))))


def piece_norms(values: Vector, fragment: Fragment) -> tuple[float, ...]:
    """Return the norm of each piece of a fragment's vector, in layout order."""
    return tuple(norm(values[piece.place]) for piece in fragment.pieces)


def norms_match(claimed: Sequence[float], values: Vector, fragment: Fragment) -> bool:
    """Return whether an envelope's norms are those of the values that came with it."""
    return all(
        abs(one - true) <= NORM_TOLERANCE * true
        for one, true in zip(claimed, piece_norms(values, fragment), strict=True)
    )
