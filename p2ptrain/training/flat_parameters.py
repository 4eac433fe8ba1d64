"""A module's parameters as views of one flat vector, and their gradients of another.

The learner and the optimizer work on vectors, autograd on named tensors; both see the same memory. Tied parameters
appear once. Only float32 parameters, and nothing else that a module would have to remember, can be averaged: anything
else is refused when the task is made, not in every round.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from p2ptrain.errors import ConfigError
from p2ptrain.fragments.layout import TensorSpec

Values = npt.NDArray[np.float32]

EDGES = frozenset({"embedding", "output"})  # matrices whose rows stand for tokens, not for features


class FlatParameters:
    """Moves a module to a device and its parameters into `values`.

    First come the hidden matrices, then those at the edges, then vectors; matrices decay, vectors do not.
    """

    def __init__(self, module: nn.Module, device: str = "cpu") -> None:
        named = dict(module.named_parameters())
        _refuse_what_cannot_be_averaged(module, named)
        module.to(device)
        ordered = sorted(named.items(), key=_rank)  # stable: else as the module declares them
        self.hidden = [parameter for name, parameter in ordered if _rank((name, parameter)) == 0]
        self.specs = [TensorSpec(name, tuple(value.shape), is_embedding=name == "embedding") for name, value in ordered]
        self.num_decayed = sum(parameter.numel() for parameter in named.values() if parameter.ndim >= 2)
        self.values = torch.empty(sum(spec.num_elements for spec in self.specs), device=device)
        self.gradients = torch.zeros_like(self.values)
        self._places: dict[str, slice] = {}
        offset = 0
        for name, parameter in ordered:
            place = self._places[name] = slice(offset, offset + parameter.numel())
            self.values[place] = parameter.detach().reshape(-1)
            parameter.data = self.values[place].view(parameter.shape)
            parameter.grad = self.gradients[place].view(parameter.shape)
            offset = place.stop

    def read(self, name: str) -> Values:
        """Return a tensor's values, flat: a view in CPU memory, a copy from any other device."""
        values: Values = self.values[self._places[name]].cpu().numpy()
        return values

    def write(self, name: str, values: Values) -> None:
        """Replace a tensor's values; ValueError when the number of elements is another."""
        place = self._places[name]
        if values.size != place.stop - place.start:
            raise ValueError(f"{name} has {place.stop - place.start} elements, not {values.size}")
        if self.values.device.type == "cpu":
            self.read(name)[:] = values.reshape(-1)
        else:
            self.values[place] = torch.from_numpy(np.array(values, np.float32).reshape(-1)).to(self.values.device)


def _rank(named: tuple[str, nn.Parameter]) -> int:
    """Return 0 for hidden matrices, 1 for those at the edges, 2 for vectors."""
    name, parameter = named
    return 2 if parameter.ndim < 2 else int(name in EDGES or parameter.ndim > 2)


def _refuse_what_cannot_be_averaged(module: nn.Module, named: dict[str, nn.Parameter]) -> None:
    for name, parameter in named.items():
        if parameter.dtype != torch.float32:
            raise ConfigError(f"parameter {name} is {str(parameter.dtype).removeprefix('torch.')}; allowed: float32")
    remembered = [name for name, _ in module.named_buffers() if name in module.state_dict()]
    if remembered:
        raise ConfigError(f"buffer {remembered[0]}: a model with state that is not a parameter cannot be averaged")
