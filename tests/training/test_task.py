"""Making the task of a run."""

import subprocess
import sys

import pytest

from p2ptrain.config import RunConfig, load_run_config
from p2ptrain.errors import ConfigError, DataError
from p2ptrain.training.corpus import Corpus, Document
from p2ptrain.training.task import Task, make_task

CORPUS = Corpus(source="test", training=(Document("a", bytes(range(256)) * 8),), held_out=())


def initial_bytes(task: Task) -> bytes:
    return b"".join(task.read(spec.name).tobytes() for spec in task.shapes())


@pytest.mark.parametrize("module", ["task", "quadratic", "cursor", "schedule", "corpus"])
def test_nothing_but_a_text_task_needs_torch(module: str) -> None:
    script = f"import sys, p2ptrain.training.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=60).returncode == 0


def test_the_quadratic_is_made_and_trained_without_torch() -> None:
    script = """
import sys
from p2ptrain.config import load_run_config
from p2ptrain.training.task import make_task
make_task(load_run_config("sim-quadratic"), None).train_step([0], 0.1)
sys.exit("torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=60).returncode == 0


@pytest.mark.parametrize("name", ["pycode", "char-mlp", "sim-quadratic"])
def test_initial_values_follow_the_seed(name: str) -> None:
    config = load_run_config(name)
    first = initial_bytes(make_task(config, CORPUS))
    assert initial_bytes(make_task(config, CORPUS)) == first
    assert initial_bytes(make_task(config, CORPUS, b"another")) != first
    assert initial_bytes(make_task(config.model_copy(update={"seed": 1}), CORPUS)) != first


def test_a_text_model_without_text_is_refused() -> None:
    with pytest.raises(DataError, match="llama"):
        make_task(RunConfig(), None)


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ConfigError, match='allowed: "cpu"'):
        make_task(RunConfig(), CORPUS, device="cuda")
