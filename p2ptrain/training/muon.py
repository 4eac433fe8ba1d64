"""The inner optimizer Muon (Jordan et al. 2024): orthogonalised momentum for hidden matrices, AdamW for the rest.

Torch's own, which is imported only when a run asks for it (with it comes torch's compiler: 75 MB). Its rate is adjusted
so that one learning rate serves both parts (Liu et al. 2025, arXiv:2502.16982).
"""

import msgpack
import numpy as np
import torch

from p2ptrain.config import InnerConfig
from p2ptrain.errors import ConfigError
from p2ptrain.training.adamw import AdamW, Region
from p2ptrain.training.flat_parameters import FlatParameters

STATE_FORMAT = "muon-1"
MOMENTUM = 0.95


class Muon:
    """Orthogonalised momentum for `parameters.hidden`, AdamW for embeddings, the output layer, gains and biases."""

    def __init__(self, parameters: FlatParameters, config: InnerConfig) -> None:
        if not hasattr(torch.optim, "Muon"):
            raise ConfigError(f'inner.optimizer = "muon": torch {torch.__version__} has none; 2.9 or newer has')
        self._gradients = parameters.gradients
        self._hidden = parameters.hidden
        count = sum(matrix.numel() for matrix in self._hidden)
        self._momentum = torch.zeros(count, device=parameters.values.device)
        rest = Region(parameters.values[count:], parameters.gradients[count:], parameters.num_decayed - count)
        self._adamw = AdamW(rest, config)
        self._muon = torch.optim.Muon(
            self._hidden, momentum=MOMENTUM, weight_decay=config.weight_decay, adjust_lr_fn="match_rms_adamw"
        )
        offset = 0
        for matrix in self._hidden:
            place = slice(offset, offset + matrix.numel())
            self._muon.state[matrix]["momentum_buffer"] = self._momentum[place].view(matrix.shape)
            offset = place.stop

    def step(self, learning_rate: float) -> None:
        """Move the values against the gradients, unless these are not finite."""
        if not torch.isfinite(self._gradients.sum()):
            return
        self._muon.param_groups[0]["lr"] = learning_rate
        self._muon.step()  # type: ignore[no-untyped-call]
        self._adamw.step(learning_rate)

    def state_bytes(self) -> bytes:
        """Return the momentum as little-endian float32, and AdamW's state, as msgpack."""
        momentum = self._momentum.cpu().numpy().astype("<f4").tobytes()
        packed: bytes = msgpack.packb([STATE_FORMAT, momentum, self._adamw.state_bytes()])
        return packed

    def load_state_bytes(self, data: bytes) -> None:
        """Restore what `state_bytes` returned; ValueError, and nothing changed, when it is anything else."""
        try:
            fields = msgpack.unpackb(data)
        except (ValueError, msgpack.UnpackException):
            raise ValueError("the optimizer state is not msgpack") from None
        if not isinstance(fields, list) or len(fields) != 3 or fields[0] != STATE_FORMAT:
            raise ValueError(f"the optimizer state is not of the format {STATE_FORMAT}")
        _, momentum, rest = fields
        if type(momentum) is not bytes or type(rest) is not bytes or len(momentum) != 4 * self._momentum.numel():
            raise ValueError(f"the optimizer state is not that of {self._momentum.numel():,} hidden parameters")
        values = np.frombuffer(momentum, "<f4").astype(np.float32)
        if not np.isfinite(values).all():
            raise ValueError("the optimizer state has a momentum that is impossible")
        self._adamw.load_state_bytes(rest)
        self._momentum.copy_(torch.from_numpy(values))
