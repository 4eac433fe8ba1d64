"""Training a torch module that predicts bytes.

The module does one thing: given text (windows, context + 1) it returns the mean loss of its predictions, in nats. Here
is everything around it that does not depend on its architecture: windows, steps, validation, state.
"""

import copy
import math
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from p2ptrain.config import InnerConfig, RunConfig
from p2ptrain.errors import ConfigError
from p2ptrain.fragments.layout import TensorSpec
from p2ptrain.training.adamw import AdamW
from p2ptrain.training.char_mlp import CharMLP
from p2ptrain.training.corpus import Corpus, TextWindows, training_windows, windows_of
from p2ptrain.training.flat_parameters import FlatParameters
from p2ptrain.training.language_model import LanguageModel

EVALUATION_TOKENS = 8192  # in one forward pass: bounds the memory of its logits to 8 MiB

Values = npt.NDArray[np.float32]
ByteModel = LanguageModel | CharMLP


def make_text_task(config: RunConfig, corpus: Corpus, *, seed: int, threads: int, device: str) -> "TextTask":
    """Return the run's model, initialised from a seed, with this peer's text."""
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError('peer.device = "cuda": torch finds no CUDA device here; allowed: "cpu"')
    torch.set_num_threads(threads)
    return TextTask(_module(config, seed), config, corpus, device)


def text_specs(config: RunConfig) -> list[TensorSpec]:
    """Return the tensors of the run's model, without its text."""
    return list(FlatParameters(_module(config, seed=0)).specs)


def _module(config: RunConfig, seed: int) -> ByteModel:
    kind = CharMLP if config.model.kind == "char-mlp" else LanguageModel
    return kind(config.model, torch.Generator().manual_seed(seed))


class Optimizer(Protocol):
    """Moves a model's parameters, and can be saved."""

    def step(self, learning_rate: float) -> None: ...
    def state_bytes(self) -> bytes: ...
    def load_state_bytes(self, data: bytes) -> None: ...


def _optimizer(parameters: FlatParameters, config: InnerConfig) -> Optimizer:
    if config.optimizer == "adamw":
        return AdamW(parameters, config)
    from p2ptrain.training.muon import Muon  # with it comes torch's compiler

    return Muon(parameters, config)


class TextTask:
    """A module in training on one peer's text (a `Task`)."""

    def __init__(self, module: ByteModel, config: RunConfig, corpus: Corpus, device: str = "cpu") -> None:
        self._module = module
        self._parameters = FlatParameters(module, device)
        self._optimizer = _optimizer(self._parameters, config.inner)
        self._training = training_windows(corpus, config.model.context)
        held_out = windows_of(corpus.held_out, config.model.context)
        self._validation = Validation(held_out, config.data.num_validation_windows, device)
        self._device = device
        self.num_windows = self._training.num_windows
        self.windows_per_step = config.inner.windows_per_step

    def shapes(self) -> list[TensorSpec]:
        return list(self._parameters.specs)

    def read(self, name: str) -> Values:
        return self._parameters.read(name)

    def write(self, name: str, values: Values) -> None:
        self._parameters.write(name, values)

    def train_step(self, windows: Sequence[int], learning_rate: float) -> tuple[float, int]:
        self._parameters.gradients.zero_()
        loss = self._module(_tokens(self._training, windows, self._device))
        loss.backward()
        self._optimizer.step(learning_rate)
        return loss.item(), len(windows) * self._module.tokens_per_window

    def evaluate(self) -> tuple[float, int]:
        return self._validation.judge(self._module)

    def evaluator(self) -> "TextEvaluator":
        return TextEvaluator(copy.deepcopy(self._module), self._validation, self._device)

    def state_bytes(self) -> bytes:
        return self._optimizer.state_bytes()

    def load_state_bytes(self, data: bytes) -> None:
        self._optimizer.load_state_bytes(data)


class TextEvaluator:
    """A module of its own, for parameters that come from elsewhere (an `Evaluator`)."""

    def __init__(self, module: ByteModel, validation: "Validation", device: str) -> None:
        self._module = module
        self._parameters = FlatParameters(module, device)
        self._validation = validation

    def evaluate(self, read: Callable[[str], Values]) -> tuple[float, int]:
        for spec in self._parameters.specs:
            self._parameters.write(spec.name, read(spec.name))
        return self._validation.judge(self._module)


class Validation:
    """The held-out windows that everybody in a run is judged on."""

    def __init__(self, text: TextWindows, count: int, device: str) -> None:
        self._text = text
        self._windows = text.spread(count)
        self._device = device

    def judge(self, module: ByteModel) -> tuple[float, int]:
        """Return the mean loss and the number of windows; (nan, 0) when there is no held-out text."""
        if not self._windows:
            return math.nan, 0
        chunk = max(1, EVALUATION_TOKENS // module.tokens_per_window)
        total = 0.0
        with torch.no_grad():
            for start in range(0, len(self._windows), chunk):
                windows = self._windows[start : start + chunk]
                total += len(windows) * module(_tokens(self._text, windows, self._device)).item()
        return total / len(self._windows), len(self._windows)


def _tokens(text: TextWindows, windows: Sequence[int], device: str) -> torch.Tensor:
    return torch.from_numpy(text.batch(windows)).to(device, torch.int64)
