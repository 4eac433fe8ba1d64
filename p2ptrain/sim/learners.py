"""What the learners of one process share.

Twenty peers that read the same text would hold it twenty times and judge the same anchors twenty times. Here the text is
read once, its windows are cut once, and the loss of given parameters is computed once and remembered. Everything else is
each peer's own: parameters, optimizer, position.
"""

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from p2ptrain.config import RunConfig
from p2ptrain.fragments.layout import TensorSpec
from p2ptrain.ids import Digest, digest
from p2ptrain.run import HeldOut
from p2ptrain.training.corpus import Corpus, load_corpus
from p2ptrain.training.preparation import Training
from p2ptrain.training.task import Evaluator, make_task

MAX_REMEMBERED: Final = 512  # losses: peers that are some versions apart ask for the same few

Values = npt.NDArray[np.float32]


class SharedTraining:
    """Makes the training of each peer of a simulated swarm; give it to them as `PeerOptions.make_training`."""

    def __init__(self, data: str = "") -> None:
        """`data`: the text of all peers, for runs whose data.source is "path"."""
        self._data = data
        self._corpora: dict[tuple[RunConfig, HeldOut | None], Corpus] = {}
        self._evaluators: dict[tuple[RunConfig, HeldOut | None], Evaluator] = {}

    def __call__(self, config: RunConfig, held_out: HeldOut | None) -> Training:
        corpus = None if config.data.source == "none" else self._corpus(config, held_out)
        task = make_task(config, corpus)
        held_out = None if corpus is None else tuple(corpus.validation_manifest())
        key = config, held_out
        if key not in self._evaluators:
            self._evaluators[key] = RememberingEvaluator(task.evaluator(), task.shapes())
        return Training(task=task, evaluator=self._evaluators[key], corpus=corpus)

    def _corpus(self, config: RunConfig, held_out: HeldOut | None) -> Corpus:
        """Return the text as a run sees it, the same object for all that are told the same."""
        if (config, held_out) not in self._corpora:
            everything = load_corpus(config.data, own_path=self._data)
            manifest = tuple(everything.validation_manifest()) if held_out is None else held_out
            if (config, manifest) not in self._corpora:
                self._corpora[config, manifest] = everything.for_run(manifest)
            self._corpora[config, held_out] = self._corpora[config, manifest]
        return self._corpora[config, held_out]


class RememberingEvaluator:
    """An evaluator that knows the losses of the parameters that it was asked for lately."""

    def __init__(self, evaluator: Evaluator, specs: list[TensorSpec]) -> None:
        self._evaluator, self._names = evaluator, [spec.name for spec in specs]
        self._losses: dict[Digest, tuple[float, int]] = {}

    def evaluate(self, read: Callable[[str], Values]) -> tuple[float, int]:
        key = digest("evaluated", *(np.ascontiguousarray(read(name)).view(np.uint8).data for name in self._names))
        if key not in self._losses:
            self._losses[key] = self._evaluator.evaluate(read)
            if len(self._losses) > MAX_REMEMBERED:
                del self._losses[next(iter(self._losses))]
        return self._losses[key]
