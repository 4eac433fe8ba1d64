"""Every scenario file beside this one is played, and comes out as it says it must."""

from pathlib import Path

import pytest

from p2ptrain.sim.scenario import load_scenario, run_scenario

FILES = sorted(Path(__file__).parent.glob("*.toml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_comes_out_as_it_must(path: Path) -> None:
    scenario = load_scenario(path)
    assert scenario.name == path.stem and scenario.story
    swarm = scenario.swarm()
    print(f"seed {scenario.seed}: {scenario.story}")
    outcome = swarm.run(run_scenario(scenario, swarm))
    print(outcome)
    assert not outcome.failures


def test_there_are_as_many_as_promised() -> None:
    assert len(FILES) >= 20
