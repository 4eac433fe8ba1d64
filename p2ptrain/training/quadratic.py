"""A noisy quadratic with a known optimum: real tensors, no text, no torch.

It stands in for a model in tests and in simulated swarms. The loss is the mean over all parameters of
curvature * (value - optimum)² / 2; a step sees the gradient with noise that depends on the run's seed and the window's
number only, so averaging peers that draw different windows visibly lowers the noise floor, and a replay is exact.
Curvatures span a factor of ten, as the usual picture of an ill-conditioned loss has it (Zhang et al. 2019,
arXiv:1907.04164).
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from p2ptrain.config import RunConfig
from p2ptrain.fragments.layout import TensorSpec
from p2ptrain.ids import digest

NUM_WINDOWS = 1 << 20  # as many as 128 MB of text would give at a context of 128
NOISE = 0.5  # of one window's gradient; the distance to the optimum begins near 1.4
CURVATURES = (0.1, 1.0)

Values = npt.NDArray[np.float32]


class Landscape:
    """The loss as a function of the parameters: what every peer of the run has in common."""

    def __init__(self, config: RunConfig) -> None:
        dim, layers = config.model.dim, config.model.layers
        names = ["embedding", *(f"layer.{index}" for index in range(1, layers))]
        self.specs = [TensorSpec(name, (dim, dim), is_embedding=name == "embedding") for name in names]
        self.seed = config.seed
        self.optimum = _normal(dim * dim * layers, "optimum", config.seed)
        self.curvature = np.tile(np.geomspace(*CURVATURES, num=dim * dim, dtype=np.float32), layers)
        starts = range(0, self.optimum.size, dim * dim)
        self.places = {name: slice(start, start + dim * dim) for name, start in zip(names, starts, strict=True)}

    def loss(self, values: Values) -> float:
        distance = (values - self.optimum).astype(np.float64)
        return float(np.mean(self.curvature * distance**2) / 2)

    def gradient(self, values: Values, windows: Sequence[int]) -> Values:
        """Return the gradient (of the sum over parameters, so that it does not shrink with their number) with noise."""
        noise = sum((_normal(values.size, "noise", self.seed, window) for window in windows), np.zeros_like(values))
        slope: Values = self.curvature * (values - self.optimum) + noise * np.float32(NOISE / len(windows))
        return slope


class Quadratic:
    """The quadratic as a task; its inner optimizer is plain gradient descent."""

    num_windows = NUM_WINDOWS

    def __init__(self, config: RunConfig, seed_bytes: bytes = b"") -> None:
        self.windows_per_step = config.inner.windows_per_step
        self._tokens_per_window = config.model.context
        self._landscape = Landscape(config)
        start = int.from_bytes(digest("initial-values", seed_bytes)[:7], "little")
        self._values = _normal(self._landscape.optimum.size, "start", config.seed, start)

    def shapes(self) -> list[TensorSpec]:
        return list(self._landscape.specs)

    def read(self, name: str) -> Values:
        return self._values[self._landscape.places[name]]

    def write(self, name: str, values: Values) -> None:
        target = self.read(name)
        if values.size != target.size:
            raise ValueError(f"{name} has {target.size} elements, not {values.size}")
        target[:] = values.reshape(-1)

    def train_step(self, windows: Sequence[int], learning_rate: float) -> tuple[float, int]:
        loss = self._landscape.loss(self._values)
        self._values -= np.float32(learning_rate) * self._landscape.gradient(self._values, windows)
        return loss, len(windows) * self._tokens_per_window

    def evaluate(self) -> tuple[float, int]:
        """Return the exact loss, which takes no windows to know: it counts as one."""
        return self._landscape.loss(self._values), 1

    def evaluator(self) -> "QuadraticEvaluator":
        return QuadraticEvaluator(self._landscape)

    def state_bytes(self) -> bytes:
        """Return nothing: gradient descent remembers nothing."""
        return b""

    def load_state_bytes(self, data: bytes) -> None:
        if data:
            raise ValueError(f"the quadratic's optimizer has no state, and got {len(data)} bytes of it")


class QuadraticEvaluator:
    """The exact loss of given parameters."""

    def __init__(self, landscape: Landscape) -> None:
        self._landscape = landscape

    def evaluate(self, read: Callable[[str], Values]) -> tuple[float, int]:
        return self._landscape.loss(np.concatenate([read(spec.name) for spec in self._landscape.specs])), 1


def _normal(size: int, what: str, *seeds: int) -> Values:
    """Return `size` standard normal numbers that are a function of the arguments."""
    return np.random.default_rng([*what.encode(), *seeds]).standard_normal(size, dtype=np.float32)
