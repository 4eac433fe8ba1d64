"""Training on text, alone."""

import math
import threading

import numpy as np
import pytest

from p2ptrain.config import DataConfig, InnerConfig, ModelConfig, RunConfig
from p2ptrain.training.corpus import Corpus, Document
from p2ptrain.training.task import Task, make_task

LINES = b"".join(b"peer %d trains window %d and sends it on\n" % (number % 7, number % 13) for number in range(400))
CORPUS = Corpus(source="lines", training=(Document("a", LINES),), held_out=(Document("b", LINES[:2000]),))
LLAMA = RunConfig(
    model=ModelConfig(dim=32, layers=2, heads=2, hidden=64, context=32),
    data=DataConfig(num_validation_windows=16),
    inner=InnerConfig(learning_rate=1e-2, windows_per_step=4),
)
CHAR_MLP = LLAMA.model_copy(update={"model": ModelConfig(kind="char-mlp", dim=16, hidden=64, context=8)})


def stepped(task: Task, steps: range) -> list[float]:
    count = task.windows_per_step
    starts = [step * count % (task.num_windows - count) for step in steps]
    return [task.train_step(range(start, start + count), 1e-2)[0] for start in starts]


def values_of(task: Task) -> dict[str, np.ndarray]:
    return {spec.name: task.read(spec.name).copy() for spec in task.shapes()}


@pytest.mark.parametrize("config", [LLAMA, CHAR_MLP], ids=["llama", "char-mlp"])
def test_the_loss_falls_by_more_than_a_nat(config: RunConfig) -> None:
    task = make_task(config, CORPUS)
    before, num_windows = task.evaluate()
    stepped(task, range(100))
    assert num_windows == 16
    assert task.evaluate()[0] < before - 1.0


def test_a_step_counts_the_bytes_that_it_predicts() -> None:
    assert make_task(LLAMA, CORPUS).train_step([0, 1, 2], 1e-2)[1] == 3 * 32
    assert make_task(CHAR_MLP, CORPUS).train_step([0, 1, 2], 1e-2)[1] == 3


def test_a_restart_resumes_bit_for_bit() -> None:  # BUG-DA02
    task, restarted = make_task(LLAMA, CORPUS), make_task(LLAMA, CORPUS, b"other initial values")
    stepped(task, range(5))
    for name, values in values_of(task).items():
        restarted.write(name, values)
    restarted.load_state_bytes(task.state_bytes())
    assert stepped(restarted, range(5, 10)) == stepped(task, range(5, 10))


def test_parameters_written_between_steps_are_what_the_next_step_trains() -> None:
    task = make_task(LLAMA, CORPUS)
    start, (first, *_) = values_of(task), stepped(task, range(5))
    state = task.state_bytes()
    for name, values in start.items():
        task.write(name, values)
    assert task.state_bytes() == state, "the moments stay"
    assert stepped(task, range(1)) == [first]


def test_given_parameters_are_judged_on_another_thread_without_touching_the_training() -> None:
    task, undisturbed = make_task(LLAMA, CORPUS), make_task(LLAMA, CORPUS)
    stepped(task, range(3)), stepped(undisturbed, range(3))
    snapshot, expected = values_of(task), task.evaluate()
    evaluator = task.evaluator()
    results: list[tuple[float, int]] = []
    thread = threading.Thread(target=lambda: results.extend(evaluator.evaluate(snapshot.__getitem__) for _ in range(5)))
    thread.start()
    losses = stepped(task, range(3, 13))
    thread.join()
    assert results == [expected] * 5
    assert losses == stepped(undisturbed, range(3, 13))


def test_without_held_out_text_there_is_no_validation_loss() -> None:
    loss, num_windows = make_task(LLAMA, Corpus(source="own", training=CORPUS.training, held_out=())).evaluate()
    assert math.isnan(loss) and num_windows == 0


def test_the_mean_is_over_windows_however_they_are_cut_into_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task(LLAMA, CORPUS)
    whole, _ = task.evaluate()
    monkeypatch.setattr("p2ptrain.training.text_task.EVALUATION_TOKENS", 3 * 32)
    assert task.evaluate() == (pytest.approx(whole, abs=1e-5), 16)
