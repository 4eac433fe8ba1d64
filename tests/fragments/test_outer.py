"""Fixed arithmetic: the same update leads to the same bytes, whatever the processor."""

import os
import subprocess
import sys

import numpy as np
import pytest

from p2ptrain.config import OuterConfig
from p2ptrain.fragments.outer import num_moments, outer_step
from p2ptrain.ids import digest

# Digests of anchor and moments after five steps from seeded values, made once; every machine must find the same.
GOLDEN = {
    "memoryless": "e272d87cd572f1e5c2e80a4737b2cb7936243f51e60a5891d9fc2e7469433fb9",
    "heavy ball": "34df448e426246a401b9181d878ecc6d50ac6083bc4996033675fcc2acaba101",
    "nesterov": "832663f9c3389ac26c7c051bf1d9dc19ecb26447718251742cfa7488b2e7881d",
    "adam": "66962c8721966cd7c327ef4fc71d6badb7efc058730b5e5582d2c54b035c33c8",
}
OPTIMIZERS = {
    "memoryless": OuterConfig(learning_rate=1.0, momentum=0.0),
    "heavy ball": OuterConfig(learning_rate=0.7, momentum=0.9, nesterov=False),
    "nesterov": OuterConfig(learning_rate=0.7, momentum=0.5, nesterov=True),
    "adam": OuterConfig(optimizer="adam", learning_rate=0.1, momentum=0.9, beta2=0.95),
}


def five_steps(name: str) -> str:
    outer = OPTIMIZERS[name]
    source = np.random.Generator(np.random.PCG64(7))
    anchor = source.standard_normal(10_007, dtype=np.float32)
    moments = np.zeros(num_moments(outer) * anchor.size, np.float32)
    for step in range(1, 6):
        update = source.standard_normal(anchor.size, dtype=np.float32)
        anchor, moments = outer_step(anchor, moments, update, outer, step=step)
    return digest("golden", anchor.tobytes(), moments.tobytes()).hex()


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


def test_the_steps_of_sgd_are_those_of_torch_in_exact_numbers() -> None:
    import torch

    for name, outer in OPTIMIZERS.items():
        if outer.optimizer != "sgd":
            continue
        parameter = torch.nn.Parameter(torch.tensor([8.0, -4.0]))
        optimizer = torch.optim.SGD(
            [parameter], lr=0.5, momentum=outer.momentum and 0.5, nesterov=bool(outer.momentum) and outer.nesterov
        )
        exact = outer.model_copy(update={"learning_rate": 0.5, "momentum": outer.momentum and 0.5})
        anchor, moments = np.float32([8.0, -4.0]), np.zeros(2 * num_moments(outer), np.float32)
        for step, update in enumerate(([1.0, 2.0], [-0.5, 0.25], [4.0, 4.0]), start=1):
            parameter.grad = torch.tensor(update)
            optimizer.step()
            anchor, moments = outer_step(anchor, moments, np.float32(update), exact, step=step)
            np.testing.assert_array_equal(anchor, parameter.detach().numpy(), err_msg=name)


def test_the_steps_of_adam_are_those_of_torch() -> None:
    import torch

    outer, source = OPTIMIZERS["adam"], np.random.default_rng(3)
    anchor = source.standard_normal(50).astype(np.float32)
    moments = np.zeros(100, np.float32)
    parameter = torch.nn.Parameter(torch.tensor(anchor, dtype=torch.float64))
    optimizer = torch.optim.Adam([parameter], lr=0.1, betas=(0.9, 0.95), eps=1e-8)
    for step in range(1, 40):
        update = source.standard_normal(50).astype(np.float32)
        parameter.grad = torch.tensor(update, dtype=torch.float64)
        optimizer.step()
        anchor, moments = outer_step(anchor, moments, update, outer, step=step)
        np.testing.assert_allclose(anchor, parameter.detach().numpy(), atol=2e-5)
