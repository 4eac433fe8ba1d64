"""Two worlds in which the same stories must come out the same: the real machine, and the simulation."""

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol

import pytest

from p2ptrain.real.main import run
from p2ptrain.real.runtime import create_runtime
from p2ptrain.runtime import Runtime
from p2ptrain.sim.ports import SimWorld


class World(Protocol):
    def host(self, peer: int) -> str:
        """Return the address of a peer's machine."""

    def runtime(self, peer: int) -> Runtime:
        """Start a process on it, inside a running story."""

    def run(self, story: Callable[[], Coroutine[Any, Any, Any]]) -> None: ...


class RealWorld:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def host(self, peer: int) -> str:
        return "127.0.0.1"

    def runtime(self, peer: int) -> Runtime:
        return create_runtime(self._directory / str(peer))

    def run(self, story: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        run(story)


class SimulatedWorld:
    def __init__(self) -> None:
        self._world = SimWorld(seed=7)

    def host(self, peer: int) -> str:
        return f"10.0.0.{peer}"

    def runtime(self, peer: int) -> Runtime:
        return self._world.runtime(self.host(peer))

    def run(self, story: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._world.run(story())


@pytest.fixture(params=["real", "sim"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return RealWorld(tmp_path) if request.param == "real" else SimulatedWorld()
