"""Muon moves hidden matrices as torch's does, the rest as our AdamW does, and survives a restart."""

import pytest
import torch
from torch import nn

from p2ptrain.config import InnerConfig
from p2ptrain.training.adamw import AdamW, Region
from p2ptrain.training.flat_parameters import FlatParameters
from p2ptrain.training.muon import MOMENTUM, Muon

CONFIG = InnerConfig(optimizer="muon", weight_decay=0.1)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        chance = torch.Generator().manual_seed(0)
        self.embedding = nn.Parameter(torch.randn(7, 4, generator=chance))
        self.gain = nn.Parameter(torch.ones(4))
        self.hidden = nn.Parameter(torch.randn(6, 4, generator=chance))
        self.output = nn.Parameter(torch.randn(7, 6, generator=chance))


def train(module: nn.Module, flat: FlatParameters, optimizer: Muon, steps: range) -> None:
    for step in steps:
        flat.gradients.copy_(torch.randn(flat.values.numel(), generator=torch.Generator().manual_seed(step)))
        optimizer.step(0.01)


def test_hidden_matrices_come_first_and_are_what_muon_moves() -> None:
    flat = FlatParameters(Small())
    assert [spec.name for spec in flat.specs] == ["hidden", "embedding", "output", "gain"]
    assert [matrix.shape for matrix in flat.hidden] == [(6, 4)]


def test_each_part_moves_as_its_own_optimizer_moves_it() -> None:
    module, reference = Small(), Small()
    flat, other = FlatParameters(module), FlatParameters(reference)
    optimizer = Muon(flat, CONFIG)
    theirs = torch.optim.Muon(
        [reference.hidden], lr=0.01, momentum=MOMENTUM, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"
    )
    ours = AdamW(Region(other.values[24:], other.gradients[24:], other.num_decayed - 24), CONFIG)
    for step in range(10):
        train(module, flat, optimizer, range(step, step + 1))
        other.gradients.copy_(torch.randn(flat.values.numel(), generator=torch.Generator().manual_seed(step)))
        theirs.step()
        ours.step(0.01)
        torch.testing.assert_close(flat.values, other.values, rtol=1e-5, atol=1e-6)


def test_a_restart_goes_on_as_if_nothing_had_happened() -> None:
    module = Small()
    flat = FlatParameters(module)
    optimizer = Muon(flat, CONFIG)
    train(module, flat, optimizer, range(5))
    again = Small()
    flat_again = FlatParameters(again)
    flat_again.values.copy_(flat.values)
    resumed = Muon(flat_again, CONFIG)
    resumed.load_state_bytes(optimizer.state_bytes())
    train(module, flat, optimizer, range(5, 10))
    train(again, flat_again, resumed, range(5, 10))
    torch.testing.assert_close(flat.values, flat_again.values, rtol=0, atol=0)


def test_a_gradient_that_is_not_finite_moves_nothing() -> None:
    flat = FlatParameters(Small())
    optimizer, before = Muon(flat, CONFIG), flat.values.clone()
    flat.gradients.fill_(float("nan"))
    optimizer.step(0.01)
    assert torch.equal(flat.values, before)


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x93\xa6muon-1\xc4\x00\xc4\x00", b"\xff" * 40])
def test_a_state_that_is_not_of_this_model_is_refused_whole(data: bytes) -> None:
    optimizer = Muon(FlatParameters(Small()), CONFIG)
    before = optimizer.state_bytes()
    with pytest.raises(ValueError, match="optimizer state"):
        optimizer.load_state_bytes(data)
    assert optimizer.state_bytes() == before
