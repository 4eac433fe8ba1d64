"""Inner steps of a fixed length, for simulations with real processes.

Many peers on few cores make steps as fast as the scheduler lets them, so no two runs are alike. A task that sleeps until
its step is over takes no more than its share, and the swarm behaves as one whose machines are all equally fast.
"""

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from p2ptrain.fragments.layout import TensorSpec
from p2ptrain.training.task import Evaluator, Task

Values = npt.NDArray[np.float32]


class SleepingTask:
    """A task whose inner steps end `step_seconds` after one another, unless the task itself takes longer."""

    def __init__(self, task: Task, step_seconds: float) -> None:
        self._task, self._step_seconds = task, step_seconds
        self._due_at = 0.0
        self.num_windows, self.windows_per_step = task.num_windows, task.windows_per_step

    def train_step(self, windows: Sequence[int], learning_rate: float) -> tuple[float, int]:
        began_at = time.monotonic()
        result = self._task.train_step(windows, learning_rate)
        is_late = began_at > self._due_at + self._step_seconds  # it was paused: what a sleep is late by is made up
        self._due_at = (began_at if is_late else self._due_at) + self._step_seconds
        time.sleep(max(0.0, self._due_at - time.monotonic()))
        return result

    def shapes(self) -> list[TensorSpec]:
        return self._task.shapes()

    def read(self, name: str) -> Values:
        return self._task.read(name)

    def write(self, name: str, values: Values) -> None:
        self._task.write(name, values)

    def evaluate(self) -> tuple[float, int]:
        return self._task.evaluate()

    def evaluator(self) -> Evaluator:
        return self._task.evaluator()

    def state_bytes(self) -> bytes:
        return self._task.state_bytes()

    def load_state_bytes(self, data: bytes) -> None:
        self._task.load_state_bytes(data)
