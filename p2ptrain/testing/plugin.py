"""The pytest plugin: fixtures `swarm` and `local_swarm`, and the option `--swarm-seed`.

Imports nothing of p2ptrain until a test asks for a fixture, so that it costs other tests nothing. A failed test says the
seed of its swarm, what happened last, and how to see it again.
"""

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from p2ptrain.testing.local import LocalSwarm
    from p2ptrain.testing.virtual import VirtualSwarm

MAX_SEED = 2**31 - 1


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("p2ptrain", "simulated swarms of p2ptrain")
    group.addoption(
        "--swarm-seed", type=_seed, metavar="N",
        help="seed of every `swarm`, to see a failure again (default: one for each test, by its name)",
    )  # fmt: skip


def _seed(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > MAX_SEED:
        raise pytest.UsageError(f"--swarm-seed {text}: a whole number from 0 to {MAX_SEED}")
    return int(text)


@pytest.fixture
def swarm(request: pytest.FixtureRequest) -> "Iterator[VirtualSwarm]":
    """Peers in virtual time on a simulated network: the same story for a seed, watched by checkers."""
    from p2ptrain.testing.virtual import VirtualSwarm

    given = request.config.getoption("--swarm-seed")
    with VirtualSwarm(seed=zlib.crc32(request.node.nodeid.encode()) & MAX_SEED if given is None else given) as swarm:
        yield swarm


@pytest.fixture
def local_swarm(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[LocalSwarm]":
    """The same peers as real processes on loopback, in real time."""
    from p2ptrain.testing.local import LocalSwarm

    folder: Path = tmp_path_factory.mktemp("local-swarm")
    with LocalSwarm(folder) as swarm:
        yield swarm


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[None] | pytest.TestReport:  # what pluggy's wrappers are: a generator that returns
    report: pytest.TestReport = yield  # type: ignore[misc, assignment]
    arguments = getattr(item, "funcargs", {})
    told = next((arguments[name] for name in ("swarm", "local_swarm") if hasattr(arguments.get(name), "story")), None)
    if report.failed and told is not None:
        report.sections.append(("p2ptrain swarm", told.story(item.nodeid)))
    return report
