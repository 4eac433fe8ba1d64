"""The decoder: its parts do what their names say."""

import math

import torch

from p2ptrain.config import ModelConfig
from p2ptrain.training.language_model import LanguageModel, rotated, rotations

TINY = ModelConfig(dim=16, layers=2, heads=2, hidden=24, context=12)


def model(config: ModelConfig = TINY) -> LanguageModel:
    return LanguageModel(config, torch.Generator().manual_seed(0))


def text(num_windows: int = 3, context: int = 12) -> torch.Tensor:
    return torch.randint(0, 256, (num_windows, context + 1), generator=torch.Generator().manual_seed(1))


def test_it_begins_near_the_uniform_distribution() -> None:
    assert abs(model()(text()).item() - math.log(256)) < 1.0


def test_a_byte_is_predicted_from_those_before_it_only() -> None:
    module = model()
    embedded = torch.randn(1, 12, 16, generator=torch.Generator().manual_seed(2))
    changed = embedded.clone()
    changed[:, 7] += 1.0
    before, after = (stream_of(module, values) for values in (embedded, changed))
    assert torch.equal(before[:, :7], after[:, :7])
    assert not torch.allclose(before[:, 8:], after[:, 8:])


def stream_of(module: LanguageModel, stream: torch.Tensor) -> torch.Tensor:
    for layer in module.layers:
        stream = layer(stream, module.rotations)
    return stream


def test_rotation_keeps_lengths_and_sees_relative_positions_only() -> None:
    turns = rotations(context=20, head_dim=8)
    query, key = torch.randn(2, 8, generator=torch.Generator().manual_seed(3))
    everywhere = torch.stack([query, key]).expand(1, 20, 1, 2, 8).transpose(2, 3)  # (1, 20, query and key, 1, 8)
    queries, keys = rotated(everywhere, turns)[0, :, :, 0].unbind(1)
    torch.testing.assert_close(queries.norm(dim=-1), query.norm().expand(20))
    scores = queries @ keys.T
    torch.testing.assert_close(scores.diagonal(-3), scores[3, 0].expand(17), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(queries[0], query)


def test_the_embedding_is_the_output_too_and_counts_once() -> None:
    embedding, attention, feed_forward, norms = 256 * 16, 4 * 16 * 16, 3 * 16 * 24, 2 * 16
    expected = embedding + 2 * (attention + feed_forward + norms) + 16
    assert sum(parameter.numel() for parameter in model().parameters()) == expected
