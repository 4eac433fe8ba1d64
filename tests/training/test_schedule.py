"""The learning rate follows fixed arithmetic."""

import pytest

from p2ptrain.config import InnerConfig
from p2ptrain.training.schedule import learning_rate

CONFIG = InnerConfig(learning_rate=1.0, warmup_steps=10, total_steps=110, final_fraction=0.1)


@pytest.mark.parametrize(
    ("progress", "expected"),
    [(0, 0.1), (4, 0.5), (9, 1.0), (10, 1.0), (60, 0.55), (110, 0.1), (10**9, 0.1), (4.5, 0.55)],
)
def test_warm_up_then_cosine_then_constant(progress: float, expected: float) -> None:
    assert learning_rate(progress, CONFIG) == pytest.approx(expected)


def test_without_warm_up_the_first_step_has_the_full_rate() -> None:
    assert learning_rate(0, InnerConfig(learning_rate=0.5, warmup_steps=0)) == 0.5


def test_a_warm_up_longer_than_the_schedule_is_no_error() -> None:
    config = InnerConfig(learning_rate=1.0, warmup_steps=100, total_steps=50, final_fraction=0.1)
    assert learning_rate(49, config) == pytest.approx(0.5)
    assert learning_rate(1000, config) == pytest.approx(0.1)
