"""Fixed arithmetic: the same update leads to the same bytes, whatever the processor."""

import os
import subprocess
import sys

import numpy as np
import pytest

from p2ptrain.config import OuterConfig
from p2ptrain.fragments.chain import ChainError
from p2ptrain.fragments.state import FragmentState, outer_step
from p2ptrain.ids import digest

# Digests of anchor and momentum after five steps from seeded values, made once; every machine must find the same.
GOLDEN = {
    "memoryless": "e272d87cd572f1e5c2e80a4737b2cb7936243f51e60a5891d9fc2e7469433fb9",
    "heavy ball": "34df448e426246a401b9181d878ecc6d50ac6083bc4996033675fcc2acaba101",
    "nesterov": "832663f9c3389ac26c7c051bf1d9dc19ecb26447718251742cfa7488b2e7881d",
}
OPTIMIZERS = {
    "memoryless": OuterConfig(learning_rate=1.0, momentum=0.0),
    "heavy ball": OuterConfig(learning_rate=0.7, momentum=0.9, nesterov=False),
    "nesterov": OuterConfig(learning_rate=0.7, momentum=0.5, nesterov=True),
}


def five_steps(name: str) -> str:
    outer = OPTIMIZERS[name]
    source = np.random.Generator(np.random.PCG64(7))
    anchor = source.standard_normal(10_007, dtype=np.float32)
    momentum = np.zeros(anchor.size if outer.momentum else 0, np.float32)
    for _ in range(5):
        anchor, momentum = outer_step(anchor, momentum, source.standard_normal(anchor.size, dtype=np.float32), outer)
    return digest("golden", anchor.tobytes(), momentum.tobytes()).hex()


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_the_outer_step_has_the_golden_digest(name: str) -> None:
    assert five_steps(name) == GOLDEN[name]


@pytest.mark.parametrize("capability", ["default", "avx2"])
def test_the_digest_does_not_depend_on_what_the_processor_can_do(capability: str) -> None:
    code = "import runpy, sys, torch; test = runpy.run_path(sys.argv[1])\n"
    code += "print(*[test['five_steps'](name) for name in test['OPTIMIZERS']])"
    disabled = "AVX512F AVX2 FMA3" if capability == "default" else ""
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": capability, "NPY_DISABLE_CPU_FEATURES": disabled}
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, __file__],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.split() == list(GOLDEN.values())


def test_the_steps_are_those_of_torch_in_exact_numbers() -> None:
    import torch

    for name, outer in OPTIMIZERS.items():
        parameter = torch.nn.Parameter(torch.tensor([8.0, -4.0]))
        optimizer = torch.optim.SGD(
            [parameter], lr=0.5, momentum=outer.momentum and 0.5, nesterov=bool(outer.momentum) and outer.nesterov
        )
        exact = outer.model_copy(update={"learning_rate": 0.5, "momentum": outer.momentum and 0.5})
        anchor, momentum = np.float32([8.0, -4.0]), np.zeros(2 if outer.momentum else 0, np.float32)
        for update in ([1.0, 2.0], [-0.5, 0.25], [4.0, 4.0]):
            parameter.grad = torch.tensor(update)
            optimizer.step()
            anchor, momentum = outer_step(anchor, momentum, np.float32(update), exact)
            np.testing.assert_array_equal(anchor, parameter.detach().numpy(), err_msg=name)


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
