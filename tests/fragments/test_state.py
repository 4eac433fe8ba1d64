"""A fragment's state: what a commit determines, over the wire and in memory."""

import numpy as np
import pytest

from p2ptrain.config import OuterConfig
from p2ptrain.fragments.chain import ChainError
from p2ptrain.fragments.state import FragmentState

OPTIMIZERS = {
    "memoryless": OuterConfig(momentum=0.0),
    "nesterov": OuterConfig(momentum=0.5),
    "adam": OuterConfig(optimizer="adam"),
}


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_a_state_survives_the_wire_with_its_digest(name: str) -> None:
    outer = OPTIMIZERS[name]
    state = FragmentState.genesis(np.arange(5, dtype=np.float32), outer, 1000.0)
    arrived = FragmentState.from_bytes(b"".join(state.to_buffers()), 5, outer)
    assert arrived.digest == state.digest
    with pytest.raises(ChainError):
        FragmentState.from_bytes(b"".join(state.to_buffers())[:-1], 5, outer)
    with pytest.raises(ChainError):
        FragmentState.from_bytes(b"", 5, outer)


def test_the_arrays_of_a_state_cannot_be_changed_by_mistake() -> None:
    state = FragmentState.genesis(np.zeros(3, np.float32), OPTIMIZERS["nesterov"], 1000.0)
    with pytest.raises(ValueError, match="read-only"):
        state.anchor[0] = 1.0
