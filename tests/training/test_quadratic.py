"""The stand-in has a known optimum, and everything about it can be replayed."""

import numpy as np
import pytest

from p2ptrain.config import load_run_config
from p2ptrain.training.quadratic import Quadratic

CONFIG = load_run_config("sim-quadratic")


def trained(task: Quadratic, windows: range, learning_rate: float = 0.1) -> Quadratic:
    for window in windows:
        task.train_step([window], learning_rate)
    return task


def values_of(task: Quadratic) -> np.ndarray:
    return np.concatenate([task.read(spec.name) for spec in task.shapes()])


def test_shapes_come_from_the_config_and_the_first_is_an_embedding() -> None:
    specs = Quadratic(CONFIG).shapes()
    assert [spec.shape for spec in specs] == [(16, 16)] * 4
    assert [spec.is_embedding for spec in specs] == [True, False, False, False]


def test_the_same_windows_give_the_same_bits() -> None:
    one, other = (values_of(trained(Quadratic(CONFIG), range(50))) for _ in range(2))
    assert one.tobytes() == other.tobytes()
    assert values_of(trained(Quadratic(CONFIG), range(1, 51))).tobytes() != one.tobytes()


def test_the_loss_falls_to_the_noise_floor() -> None:
    task = Quadratic(CONFIG)
    before, _ = task.evaluate()
    after, num_windows = trained(task, range(1000)).evaluate()
    assert before > 0.3 and after < 0.02 and num_windows == 1


def test_the_optimum_is_common_to_all_peers_and_the_start_may_differ() -> None:
    task, other = Quadratic(CONFIG, b"here"), Quadratic(CONFIG, b"there")
    assert values_of(task).tobytes() != values_of(other).tobytes()
    distance = values_of(trained(task, range(1000))) - values_of(trained(other, range(5000, 6000)))
    assert np.abs(distance).mean() < 0.3


def test_averaging_peers_with_different_windows_lowers_the_noise_floor() -> None:
    peers = [trained(Quadratic(CONFIG), range(start, start + 1000)) for start in range(0, 8000, 1000)]
    alone = float(np.mean([peer.evaluate()[0] for peer in peers]))
    mean = {spec.name: np.mean([peer.read(spec.name) for peer in peers], axis=0) for spec in peers[0].shapes()}
    together, _ = peers[0].evaluator().evaluate(mean.__getitem__)
    assert together < alone / 4


def test_reading_is_a_view_and_writing_checks_the_size() -> None:
    task = Quadratic(CONFIG)
    view = task.read("layer.1")
    task.write("layer.1", np.full((16, 16), 3.0, np.float32))
    assert (view == 3.0).all()
    with pytest.raises(ValueError, match="256 elements, not 3"):
        task.write("layer.1", np.zeros(3, np.float32))


def test_there_is_no_optimizer_state_to_restore() -> None:
    task = Quadratic(CONFIG)
    task.load_state_bytes(task.state_bytes())
    with pytest.raises(ValueError, match="no state"):
        task.load_state_bytes(b"moments")
