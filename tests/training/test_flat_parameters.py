"""Parameters, flat and by name, in one memory."""

import numpy as np
import pytest
import torch
from torch import nn

from p2ptrain.errors import ConfigError
from p2ptrain.training.flat_parameters import FlatParameters


class Odd(nn.Module):
    """A scalar, an empty matrix, a vector, an embedding and a matrix tied to it."""

    def __init__(self) -> None:
        super().__init__()
        self.scalar = nn.Parameter(torch.tensor(2.5))
        self.empty = nn.Parameter(torch.zeros(0, 3))
        self.vector = nn.Parameter(torch.arange(3.0))
        self.embedding = nn.Parameter(torch.arange(6.0).view(2, 3))
        self.output = self.embedding


def test_tied_weights_count_once_and_matrices_come_first() -> None:
    flat = FlatParameters(Odd())
    assert [(spec.name, spec.shape) for spec in flat.specs] == [
        ("empty", (0, 3)),
        ("embedding", (2, 3)),
        ("scalar", ()),
        ("vector", (3,)),
    ]
    assert [spec.name for spec in flat.specs if spec.is_embedding] == ["embedding"]
    assert flat.values.numel() == 10 and flat.num_decayed == 6


@pytest.mark.parametrize("name", ["scalar", "empty", "vector", "embedding"])
def test_every_shape_survives_a_round_trip(name: str) -> None:  # BUG-M04
    module = Odd()
    flat = FlatParameters(module)
    before = flat.read(name)
    assert before.dtype == np.float32 and before.ndim == 1
    flat.write(name, before + 1)
    assert torch.equal(module.get_parameter(name), dict(Odd().named_parameters())[name] + 1)


def test_the_module_sees_what_is_written_and_reading_copies_nothing() -> None:
    module = Odd()
    flat = FlatParameters(module)
    view = flat.read("vector")
    flat.write("vector", np.array([7.0, 8.0, 9.0], np.float32))
    assert module.vector.tolist() == view.tolist() == [7.0, 8.0, 9.0]


def test_gradients_land_in_the_flat_vector() -> None:
    module = Odd()
    flat = FlatParameters(module)
    (module.vector.sum() * 2).backward()
    assert flat.gradients.tolist() == [0] * 7 + [2] * 3


def test_another_size_is_refused_before_anything_changes() -> None:
    flat = FlatParameters(Odd())
    with pytest.raises(ValueError, match="vector has 3 elements, not 4"):
        flat.write("vector", np.zeros(4, np.float32))
    assert flat.read("vector").tolist() == [0, 1, 2]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_dtype_that_cannot_be_averaged_is_refused_at_the_start(dtype: torch.dtype) -> None:  # BUG-M03
    with pytest.raises(ConfigError, match=r"parameter weight is \w+16|float64; allowed: float32"):
        FlatParameters(nn.Linear(2, 2, dtype=dtype))


def test_a_model_with_running_statistics_is_refused_at_the_start() -> None:  # BUG-M07
    with pytest.raises(ConfigError, match="buffer running_mean"):
        FlatParameters(nn.BatchNorm1d(4))
