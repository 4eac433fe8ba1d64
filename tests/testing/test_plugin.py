"""The pytest plugin as somebody has it who installed p2ptrain."""

import subprocess
import sys

import pytest

pytest_plugins = ["pytester"]

THE_EXAMPLE = """
    from p2ptrain.config import load_run_config

    my_run = load_run_config("sim-quadratic")

    def test_my_merge_rule_survives_a_partition(swarm):  # virtual time, seeded, seed printed on failure, replayable
        swarm.add_peers(8, network="home-internet", run=my_run)    # my_run may name the test's own model, data, merge rule
        swarm.partition(swarm.peers[:4], swarm.peers[4:]); swarm.run(minutes=10); swarm.heal(); swarm.run(minutes=5)
        assert swarm.heads_agree() and swarm.participation > 0.9
"""


def pytest_in(pytester: pytest.Pytester, test: str, *arguments: str) -> pytest.RunResult:
    pytester.makepyfile(test)
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", *arguments)


def test_the_documented_example_passes_in_an_ordinary_installation(pytester: pytest.Pytester) -> None:
    pytest_in(pytester, THE_EXAMPLE).assert_outcomes(passed=1)


def test_a_failure_shows_the_seed_and_how_to_see_it_again(pytester: pytest.Pytester) -> None:
    test = """
    def test_it(swarm):
        swarm.add_peers(2)
        swarm.run(minutes=5)
        assert swarm.versions == []
    """
    first = pytest_in(pytester, test)
    first.assert_outcomes(failed=1)
    again = next(line for line in first.stdout.str().splitlines() if line.startswith("again: "))
    seed = again.split("--swarm-seed ")[1]
    second = pytest_in(pytester, test, "--swarm-seed", seed)
    second.stdout.fnmatch_lines([f"seed {seed}, 2 of 2 peers alive*", again])
    assert [line for line in first.stdout.str().splitlines() if " s peer " in line] == [
        line for line in second.stdout.str().splitlines() if " s peer " in line
    ]
    third = pytest_in(pytester, test, "--swarm-seed", "12")
    third.stdout.fnmatch_lines(["seed 12, 2 of 2 peers alive*"])


def test_what_outlives_a_swarm_is_an_error_of_its_test(pytester: pytest.Pytester) -> None:
    test = """
    import asyncio

    def test_it(swarm):
        swarm.add_peers(2)
        process = swarm.sim.world.process(swarm.peers[1].host)
        swarm._get(lambda: process.context.run(asyncio.get_running_loop().call_later, 1e6, print))
    """
    result = pytest_in(pytester, test)
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*leaks:*a timer for*is still set*"])


@pytest.mark.parametrize("seed", ["-1", "x", "1.5", str(2**31)])
def test_a_seed_that_is_none_is_one_line(pytester: pytest.Pytester, seed: str) -> None:
    result = pytest_in(pytester, "def test_it(): pass", f"--swarm-seed={seed}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"--swarm-seed {seed}: a whole number from 0 to {2**31 - 1}" in result.stderr.str()


def test_tests_that_use_no_swarm_pay_for_none() -> None:
    code = "import sys; import p2ptrain.testing.plugin; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "p2ptrain.testing.plugin" in loaded
    assert {"torch", "hivemind", "numpy", "pydantic", "msgpack", "p2ptrain.errors"}.isdisjoint(loaded)
