"""A small decoder in the style of Llama, one byte a token; it reads from top to bottom.

RMSNorm before each block (Zhang & Sennrich 2019), rotary positions (Su et al. 2021), SwiGLU (Shazeer 2020), no biases,
the embedding tied to the output. Matrices that read the same input are one matrix, which is faster on a CPU.
"""

import torch
import torch.nn.functional as F
from torch import nn

from p2ptrain.config import ModelConfig

VOCABULARY = 256
ROTATION_BASE = 10_000.0
NORM_EPSILON = 1e-5


class LanguageModel(nn.Module):
    """Given text, the mean loss of predicting each byte from those before it."""

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.tokens_per_window = config.context
        self.embedding = drawn(VOCABULARY, config.dim, generator)
        self.layers = nn.ModuleList(Layer(config, generator) for _ in range(config.layers))
        self.norm = nn.Parameter(torch.ones(config.dim))
        self.register_buffer("rotations", rotations(config.context, config.dim // config.heads), persistent=False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        inputs, targets = text[:, :-1], text[:, 1:]  # (windows, context)
        stream = F.embedding(inputs, self.embedding)  # (windows, context, dim)
        for layer in self.layers:
            stream = layer(stream, self.rotations)
        logits = F.linear(rms_norm(stream, self.norm), self.embedding)  # (windows, context, vocabulary)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Layer(nn.Module):
    """Attention, then a feed-forward block; each adds to the stream."""

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        dim, hidden, heads = config.dim, config.hidden, config.heads
        quiet = (2 * config.layers) ** -0.5  # so that the stream does not grow with the number of blocks (GPT-2)
        self.heads = heads
        self.attention_norm = nn.Parameter(torch.ones(dim))
        self.query_key_value = drawn(3 * dim, dim, generator)
        self.attention_out = drawn(dim, dim, generator, quiet)
        self.feed_forward_norm = nn.Parameter(torch.ones(dim))
        self.gate_up = drawn(2 * hidden, dim, generator)
        self.down = drawn(dim, hidden, generator, quiet)

    def forward(self, stream: torch.Tensor, rotations: torch.Tensor) -> torch.Tensor:
        stream = stream + self.attention(rms_norm(stream, self.attention_norm), rotations)
        return stream + self.feed_forward(rms_norm(stream, self.feed_forward_norm))

    def attention(self, inputs: torch.Tensor, rotations: torch.Tensor) -> torch.Tensor:
        projected = F.linear(inputs, self.query_key_value)
        by_head = projected.view(*inputs.shape[:2], 3, self.heads, -1)  # (windows, context, 3, heads, head_dim)
        query_key, value = torch.split(by_head, [2, 1], dim=2)
        query, key = rotated(query_key, rotations).transpose(1, 3).unbind(2)  # (windows, heads, context, head_dim)
        attended = F.scaled_dot_product_attention(query, key, value.squeeze(2).transpose(1, 2), is_causal=True)
        return F.linear(attended.transpose(1, 2).flatten(2), self.attention_out)

    def feed_forward(self, inputs: torch.Tensor) -> torch.Tensor:
        gate, up = F.linear(inputs, self.gate_up).chunk(2, dim=-1)  # (windows, context, hidden)
        return F.linear(F.silu(gate) * up, self.down)


def rms_norm(stream: torch.Tensor, gain: nn.Parameter) -> torch.Tensor:
    return F.rms_norm(stream, gain.shape, gain, NORM_EPSILON)


def rotations(context: int, head_dim: int) -> torch.Tensor:
    """Return what turns each pair of numbers at each position: (context, 1, 1, head_dim / 2) complex."""
    frequencies = ROTATION_BASE ** (-torch.arange(0, head_dim, 2) / head_dim)
    angles = torch.outer(torch.arange(context), frequencies)
    return torch.polar(torch.ones_like(angles), angles)[:, None, None]


def rotated(vectors: torch.Tensor, rotations: torch.Tensor) -> torch.Tensor:
    """Turn pairs of numbers (…, context, 2, heads, head_dim) by their position, as complex numbers."""
    pairs = torch.view_as_complex(vectors.view(*vectors.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * rotations).flatten(-2)


def drawn(rows: int, columns: int, generator: torch.Generator, scale: float = 1.0) -> nn.Parameter:
    """Return a matrix of normal numbers that keeps the variance of what it multiplies, times scale².

    It serves the tied embedding too: logits begin with a variance of about one. With GPT-2's 0.02 the default model is
    0.3 nats behind after 400 steps.
    """
    return nn.Parameter(torch.randn(rows, columns, generator=generator) * scale * columns**-0.5)
