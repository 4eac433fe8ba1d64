"""The outer optimizers, in fixed arithmetic.

Everybody applies the very bytes of an update, also the peer that made them: NumPy float32, one multiply, add, divide or
square root at a time in the order that stands here (each is rounded correctly by the standard), nothing fused, nothing
from the C library's pow. So a commit's digest determines the state, on every processor.
"""

import numpy as np
from numpy.typing import NDArray

from p2ptrain.config import OuterConfig

Vector = NDArray[np.float32]


def num_moments(outer: OuterConfig) -> int:
    """Return how many vectors of the fragment's length the optimizer remembers."""
    if outer.optimizer == "adam":
        return 2
    return 1 if outer.momentum else 0


def outer_step(
    anchor: Vector, moments: Vector, update: Vector, outer: OuterConfig, *, step: int
) -> tuple[Vector, Vector]:
    """Return anchor (num_elements,) and moments (num_moments · num_elements,) after one step on a pseudo-gradient.

    `step` counts the outer steps of this fragment, this one included: the version of the commit.
    """
    if outer.optimizer == "adam":
        return _adam(anchor, moments, update, outer, step)
    return _sgd(anchor, moments, update, outer)


def _sgd(anchor: Vector, velocity: Vector, update: Vector, outer: OuterConfig) -> tuple[Vector, Vector]:
    """Without momentum: anchor - lr * update. With momentum: m' = mu * m + update, and the step is m' (heavy ball), or
    update + mu * m' (Nesterov, as torch.optim.SGD has it).
    """
    rate, mu = np.float32(outer.learning_rate), np.float32(outer.momentum)
    direction = update
    if outer.momentum:
        velocity = np.add(np.multiply(velocity, mu), update)
        direction = np.add(np.multiply(velocity, mu), update) if outer.nesterov else velocity
    return np.subtract(anchor, np.multiply(direction, rate)), velocity


def _adam(anchor: Vector, moments: Vector, update: Vector, outer: OuterConfig, step: int) -> tuple[Vector, Vector]:
    """Adam (arXiv 1412.6980) with bias correction; `momentum` is beta1."""
    beta1, beta2 = np.float32(outer.momentum), np.float32(outer.beta2)
    one = np.float32(1.0)
    mean, square = moments[: anchor.size], moments[anchor.size :]
    mean = np.add(np.multiply(mean, beta1), np.multiply(update, one - beta1))
    square = np.add(np.multiply(square, beta2), np.multiply(np.multiply(update, update), one - beta2))
    corrected_mean = np.divide(mean, np.float32(1.0 - _power(float(beta1), step)))
    corrected_square = np.divide(square, np.float32(1.0 - _power(float(beta2), step)))
    direction = np.divide(corrected_mean, np.add(np.sqrt(corrected_square), np.float32(outer.epsilon)))
    stepped = np.subtract(anchor, np.multiply(direction, np.float32(outer.learning_rate)))
    return stepped, np.concatenate([mean, square])


def _power(base: float, exponent: int) -> float:
    """Return base ** exponent by squaring: multiplications are the same everywhere, the C library's pow is not."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result
