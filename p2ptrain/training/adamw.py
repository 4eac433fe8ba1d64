"""The inner optimizer: AdamW with clipping (Loshchilov & Hutter 2019, arXiv:1711.05101), on one flat vector.

All parameters of a model are views of one vector, so a step is a few passes over it and the state is two more vectors
and a counter. It is torch.optim.AdamW to rounding (tests/training/test_adamw.py), without that module's
import of the compiler (1.5 CPU-seconds and 75 MB per peer at the first step).
"""

from typing import NamedTuple

import msgpack
import numpy as np
import numpy.typing as npt
import torch

from p2ptrain.config import InnerConfig
from p2ptrain.training.flat_parameters import FlatParameters

EPSILON = 1e-8
STATE_FORMAT = "adamw-1"

Moment = npt.NDArray[np.float32]


class Region(NamedTuple):
    """Values and gradients of the parameters that one optimizer moves; the first `num_decayed` decay."""

    values: torch.Tensor  # (num_parameters,) float32
    gradients: torch.Tensor
    num_decayed: int


class AdamW:
    """Two moments per parameter. Matrices decay; norm gains and biases do not."""

    def __init__(self, parameters: FlatParameters | Region, config: InnerConfig) -> None:
        self._values, self._gradients = parameters.values, parameters.gradients  # (num_parameters,) float32
        self._decayed = parameters.values[: parameters.num_decayed]
        self._config = config
        self._num_steps = 0
        self._first_moment = torch.zeros_like(parameters.values)
        self._second_moment = torch.zeros_like(parameters.values)

    def step(self, learning_rate: float) -> None:
        """Move the values against the gradients, unless these are not finite: the moments would keep that for ever."""
        config, gradients = self._config, self._gradients
        norm = float(gradients.norm())
        if not np.isfinite(norm):
            return
        if norm > config.clip:
            gradients.mul_(config.clip / norm)
        self._num_steps += 1
        self._first_moment.lerp_(gradients, 1.0 - config.beta1)
        self._second_moment.mul_(config.beta2).addcmul_(gradients, gradients, value=1.0 - config.beta2)
        self._decayed.mul_(1.0 - learning_rate * config.weight_decay)
        first_bias = 1.0 - config.beta1**self._num_steps
        second_bias = 1.0 - config.beta2**self._num_steps
        scale = (self._second_moment / second_bias).sqrt_().add_(EPSILON)
        self._values.addcdiv_(self._first_moment, scale, value=-learning_rate / first_bias)

    def state_bytes(self) -> bytes:
        """Return the moments and the counter as msgpack with little-endian float32."""
        moments = [moment.cpu().numpy().astype("<f4").tobytes() for moment in (self._first_moment, self._second_moment)]
        packed: bytes = msgpack.packb([STATE_FORMAT, self._num_steps, *moments])
        return packed

    def load_state_bytes(self, data: bytes) -> None:
        """Restore what `state_bytes` returned; ValueError, and nothing changed, when it is anything else."""
        num_steps, first, second = _parsed_state(data, self._values.numel())
        self._num_steps = num_steps
        self._first_moment.copy_(torch.from_numpy(first))
        self._second_moment.copy_(torch.from_numpy(second))


def _parsed_state(data: bytes, num_parameters: int) -> tuple[int, Moment, Moment]:
    try:
        fields = msgpack.unpackb(data)
    except (ValueError, msgpack.UnpackException):
        raise ValueError("the optimizer state is not msgpack") from None
    if not isinstance(fields, list) or len(fields) != 4 or fields[0] != STATE_FORMAT:
        raise ValueError(f"the optimizer state is not of the format {STATE_FORMAT}")
    _, num_steps, *moments = fields
    if type(num_steps) is not int or num_steps < 0:
        raise ValueError("the optimizer state counts no steps")
    if any(type(moment) is not bytes or len(moment) != 4 * num_parameters for moment in moments):
        raise ValueError(f"the optimizer state is not that of a model with {num_parameters:,} parameters")
    first, second = (np.frombuffer(moment, "<f4").astype(np.float32) for moment in moments)
    if not (np.isfinite(first).all() and np.isfinite(second).all() and (second >= 0).all()):
        raise ValueError("the optimizer state has moments that are impossible")
    return num_steps, first, second
