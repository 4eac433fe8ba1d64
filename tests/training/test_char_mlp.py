"""The cheapest model that learns text."""

import math

import torch

from p2ptrain.config import load_run_config
from p2ptrain.training.char_mlp import CharMLP

CONFIG = load_run_config("char-mlp")


def test_it_has_fifty_four_thousand_parameters_and_begins_near_uniform() -> None:
    module = CharMLP(CONFIG.model, torch.Generator().manual_seed(0))
    text = torch.randint(0, 256, (64, 9), generator=torch.Generator().manual_seed(1))
    assert sum(parameter.numel() for parameter in module.parameters()) == 53_632
    assert abs(module(text).item() - math.log(256)) < 0.1


def test_it_learns_a_rule_that_needs_two_bytes_of_context() -> None:
    module = CharMLP(CONFIG.model, torch.Generator().manual_seed(0))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    text = torch.randint(0, 4, (256, 9), generator=torch.Generator().manual_seed(2))
    text[:, 8] = (text[:, 7] + text[:, 6]) % 4
    for _ in range(200):
        optimizer.zero_grad()
        loss = module(text)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1
