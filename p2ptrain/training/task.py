"""What a learner trains, and nothing about who else trains it.

A task owns parameters, training windows (numbered 0 to num_windows - 1) and an inner optimizer. The learner sees the
parameters by name as flat float32 vectors, which it may change between two steps; the optimizer's moments stay. Only
the tasks that read text need torch, and it is imported when one of them is made: a simulated swarm never pays for it.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from p2ptrain.config import RunConfig
from p2ptrain.errors import DataError
from p2ptrain.fragments.layout import TensorSpec
from p2ptrain.ids import digest
from p2ptrain.training.corpus import Corpus
from p2ptrain.training.quadratic import Quadratic

Values = npt.NDArray[np.float32]


class Evaluator(Protocol):
    """A second copy of the model, for judging given parameters on any thread while the task goes on training."""

    def evaluate(self, read: Callable[[str], Values]) -> tuple[float, int]:
        """Return the mean validation loss of the parameters that `read(name)` gives, and the number of windows."""


class Task(Protocol):
    """One model in training. Used by one thread at a time."""

    @property
    def num_windows(self) -> int:
        """Training windows there are."""

    @property
    def windows_per_step(self) -> int: ...

    def shapes(self) -> list[TensorSpec]:
        """Return the tensors to average, tied ones once, in an order that depends on the run config only."""

    def read(self, name: str) -> Values:
        """Return a tensor's values, flat in C order: a view while it lives in CPU memory, else a copy."""

    def write(self, name: str, values: Values) -> None:
        """Replace a tensor's values in place; ValueError when the number of elements is another."""

    def train_step(self, windows: Sequence[int], learning_rate: float) -> tuple[float, int]:
        """Make one inner step; return the loss before it (nats per token) and the tokens learned from."""

    def evaluate(self) -> tuple[float, int]:
        """Return the current parameters' mean validation loss and its windows; (nan, 0) without held-out text."""

    def evaluator(self) -> Evaluator:
        """Return a new evaluator; call it on the thread that trains, use the result on any."""

    def state_bytes(self) -> bytes:
        """Return the inner optimizer's state, so that a restart can resume."""

    def load_state_bytes(self, data: bytes) -> None:
        """Restore what `state_bytes` returned; ValueError, and nothing changed, when it is not of this model."""


def make_task(
    config: RunConfig, corpus: Corpus | None, seed_bytes: bytes = b"", *, threads: int = 1, device: str = "cpu"
) -> Task:
    """Return the task of a run, with initial values drawn from the run's seed (and `seed_bytes`, if any).

    The initial values differ between CPUs and builds of torch: only the host's are used, as the genesis. `threads` is
    for torch, and for the whole process: one is best wherever peers share a machine.
    """
    if config.model.kind == "quadratic":
        return Quadratic(config, seed_bytes)
    if corpus is None:
        raise DataError(f'model.kind = "{config.model.kind}" trains on text, and none was given')
    from p2ptrain.training.text_task import make_text_task  # torch: 2 s and 200 MB

    seed = int.from_bytes(digest("initial-values", config.seed.to_bytes(8, "little"), seed_bytes)[:7], "little")
    return make_text_task(config, corpus, seed=seed, threads=threads, device=device)


def tensor_specs(config: RunConfig) -> list[TensorSpec]:
    """Return the tensors that a run averages: what a peer that does not train needs to know of its model."""
    if config.model.kind == "quadratic":
        return Quadratic(config).shapes()
    from p2ptrain.training.text_task import text_specs

    return text_specs(config)
