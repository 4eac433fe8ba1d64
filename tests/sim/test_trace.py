"""A trace is the same for a seed, byte for byte, in whatever process it is made."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def trace(path: Path, *, hash_seed: str, seed: int = 7, network: str = "hostile") -> bytes:
    command = [
        sys.executable,
        "-m",
        "p2ptrain",
        "simulate",
        "sim-quadratic",
        "--virtual",
        "--peers",
        "5",
        "--hours",
        "0.3",
    ]
    command += ["--network", network, "--kill-one-every", "300", "--step-seconds", "5"]
    subprocess.run(
        [*command, "--seed", str(seed), "--trace", str(path)], check=True, capture_output=True,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
    )  # fmt: skip
    return path.read_bytes()


@pytest.mark.parametrize("network", ["home-internet", "hostile"])
def test_two_processes_with_different_hash_seeds_tell_the_same(tmp_path: Path, network: str) -> None:
    first = trace(tmp_path / "first.txt", hash_seed="1", network=network)
    assert first == trace(tmp_path / "second.txt", hash_seed="2", network=network)
    lines = first.decode().splitlines()
    times = [float(line.split(" ", 1)[0]) for line in lines]
    assert times == sorted(times) and times[-1] > 1000.0
    for part in (
        " process began",
        " process killed",
        " sends round.register to ",
        " receives round.register from ",
        " adopted fragment=",
    ):
        assert any(part in line for line in lines), part


def test_another_seed_tells_another_story(tmp_path: Path) -> None:
    assert trace(tmp_path / "7.txt", hash_seed="0") != trace(tmp_path / "8.txt", hash_seed="0", seed=8)
