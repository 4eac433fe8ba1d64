"""What simulate refuses, in one line each."""

import math
from pathlib import Path

import pytest

from p2ptrain.errors import ConfigError
from p2ptrain.simulate.options import SimulateOptions


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_peers": 0}, "--peers 0: a whole number from 1 to 256"),
        ({"num_peers": 257}, "--peers 257"),
        ({"seconds": 0.0}, "--seconds 0: a number of seconds greater than 0"),
        ({"seconds": math.inf}, "--seconds inf"),
        ({"kill_one_every": -1.0}, "--kill-one-every -1"),
        ({"kill_leader_every": math.nan}, "--kill-leader-every nan"),
        ({"late_join_at": 60.0}, "--late-join-at 60: from 0 to less than the 60 seconds"),
        ({"num_peers": 1, "kill_one_every": 10.0}, "needs --peers 2 or more"),
        ({"report": Path(__file__)}, "there is a file of that name"),
    ],
)
def test_a_value_that_makes_no_sense_is_one_line(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=r".") as caught:
        SimulateOptions(run="pycode", **changes).check()  # type: ignore[arg-type]
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_ordinary_values_pass() -> None:
    SimulateOptions(run="pycode", num_peers=1).check()
    SimulateOptions(run="pycode", kill_one_every=20.0, kill_leader_every=35.0, late_join_at=30.0, seconds=120.0).check()
