"""The cheapest model that learns text: a byte from the eight before it (Bengio et al. 2003).

With dim 16, hidden 128 and context 8 it has 53,632 parameters and a step of 64 windows takes about a millisecond, so
a test can ask within seconds whether a swarm really learns faster than one peer.
"""

import torch
import torch.nn.functional as F
from torch import nn

from p2ptrain.config import ModelConfig
from p2ptrain.training.language_model import VOCABULARY, drawn


class CharMLP(nn.Module):
    """Given text, the mean loss of predicting the last byte of each window from all before it."""

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.tokens_per_window = 1
        inputs = config.context * config.dim
        self.embedding = drawn(VOCABULARY, config.dim, generator, config.dim**0.5)  # unit variance
        self.hidden = drawn(config.hidden, inputs, generator)
        self.hidden_bias = nn.Parameter(torch.zeros(config.hidden))
        self.output = drawn(VOCABULARY, config.hidden, generator, 0.1)  # begins near the uniform distribution
        self.output_bias = nn.Parameter(torch.zeros(VOCABULARY))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        context = F.embedding(text[:, :-1], self.embedding).flatten(1)  # (windows, context * dim)
        features = torch.tanh(F.linear(context, self.hidden, self.hidden_bias))
        return F.cross_entropy(F.linear(features, self.output, self.output_bias), text[:, -1])
