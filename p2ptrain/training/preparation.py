"""Making ready to train: text, model, evaluator. Blocking, since it reads files and imports torch: for a worker thread."""

from dataclasses import dataclass

from p2ptrain.config import RunConfig
from p2ptrain.errors import StorageError
from p2ptrain.training.corpus import Corpus, Manifest, load_corpus
from p2ptrain.training.task import Evaluator, Task, make_task


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What a trainer has and other peers do not need."""

    task: Task
    evaluator: Evaluator
    corpus: Corpus | None


def prepare(config: RunConfig, held_out: Manifest | None, *, data: str, threads: int, device: str) -> Training:
    """Read the text and make the model; `held_out` is the run's, or None for the peer that makes the run.

    `data` is this peer's own text, for runs whose data.source is "path". Raises DataError or ConfigError.
    """
    corpus = None
    if config.data.source != "none":
        corpus = load_corpus(config.data, own_path=data)
        corpus = corpus.for_run(corpus.validation_manifest() if held_out is None else held_out)
    task = make_task(config, corpus, threads=threads, device=device)
    return Training(task=task, evaluator=task.evaluator(), corpus=corpus)


def restore_inner_state(task: Task, data: bytes) -> None:
    """Give the inner optimizer the state that was saved; StorageError when it is not of this model."""
    try:
        task.load_state_bytes(data)
    except ValueError as error:
        raise StorageError(
            f"the saved state of the inner optimizer cannot be used: {error}; move learner.msgpack away"
        ) from None


def import_torch() -> None:
    """Import torch while the network is busy: two seconds."""
    import torch  # noqa: F401
