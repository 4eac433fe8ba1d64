"""Our AdamW is torch's, and its state survives a restart."""

import msgpack
import pytest
import torch
from torch import nn

from p2ptrain.config import InnerConfig
from p2ptrain.training.adamw import AdamW
from p2ptrain.training.flat_parameters import FlatParameters

CONFIG = InnerConfig(clip=1.0, weight_decay=0.1)


def module_and_optimizer(config: InnerConfig = CONFIG) -> tuple[nn.Linear, FlatParameters, AdamW]:
    torch.manual_seed(0)
    module = nn.Linear(5, 3)
    flat = FlatParameters(module)
    return module, flat, AdamW(flat, config)


def gradient(number: int, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(18, generator=torch.Generator().manual_seed(number)) * scale


def stepped(flat: FlatParameters, optimizer: AdamW, numbers: range) -> None:
    for number in numbers:
        flat.gradients.copy_(gradient(number))
        optimizer.step(0.01)


def test_it_is_torchs_adamw_with_clipping_and_no_decay_of_biases() -> None:
    module, flat, optimizer = module_and_optimizer()
    reference, _, _ = module_and_optimizer()
    groups = [{"params": [reference.weight], "weight_decay": 0.1}, {"params": [reference.bias], "weight_decay": 0.0}]
    theirs = torch.optim.AdamW(groups, lr=0.01, betas=(CONFIG.beta1, CONFIG.beta2))
    for number in range(20):
        flat.gradients.copy_(gradient(number, scale=10.0 ** (number % 3 - 1)))
        reference.weight.grad = flat.gradients[:15].view(3, 5).clone()
        reference.bias.grad = flat.gradients[15:].clone()
        torch.nn.utils.clip_grad_norm_(reference.parameters(), CONFIG.clip)
        theirs.step()
        optimizer.step(0.01)
    torch.testing.assert_close(module.weight, reference.weight, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(module.bias, reference.bias, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_changes_nothing(poison: float) -> None:
    _, flat, optimizer = module_and_optimizer()
    stepped(flat, optimizer, range(3))
    values, state = flat.values.clone(), optimizer.state_bytes()
    flat.gradients[4] = poison
    optimizer.step(0.01)
    assert torch.equal(flat.values, values) and optimizer.state_bytes() == state


def test_a_restart_resumes_bit_for_bit() -> None:
    _, flat, optimizer = module_and_optimizer()
    stepped(flat, optimizer, range(5))
    _, restarted, fresh = module_and_optimizer()
    restarted.values.copy_(flat.values)
    fresh.load_state_bytes(optimizer.state_bytes())
    stepped(flat, optimizer, range(5, 9))
    stepped(restarted, fresh, range(5, 9))
    assert torch.equal(flat.values, restarted.values)


def state(**changes: object) -> bytes:
    fields = {"format": "adamw-1", "num_steps": 3, "first": bytes(72), "second": bytes(72)} | changes
    return bytes(msgpack.packb(list(fields.values())))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not msgpack"),
        (state()[:-1], "not msgpack"),
        (b"\x01", "not of the format"),
        (state(format="adamw-2"), "not of the format"),
        (state(num_steps=-1), "counts no steps"),
        (state(num_steps=True), "counts no steps"),
        (state(first=bytes(76)), "18 parameters"),
        (state(second="text"), "18 parameters"),
        (state(first=b"\x00\x00\xc0\x7f" * 18), "impossible"),
        (state(second=b"\x00\x00\x80\xbf" * 18), "impossible"),
    ],
)
def test_a_state_that_is_not_this_models_is_refused_and_changes_nothing(data: bytes, words: str) -> None:
    _, flat, optimizer = module_and_optimizer()
    stepped(flat, optimizer, range(2))
    before = optimizer.state_bytes()
    with pytest.raises(ValueError, match=words):
        optimizer.load_state_bytes(data)
    assert optimizer.state_bytes() == before
