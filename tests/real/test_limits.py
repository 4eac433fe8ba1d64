"""File descriptors decide how many connections a peer may have."""

import subprocess
import sys

from p2ptrain.net.transport import TransportLimits
from p2ptrain.real.limits import MAX_CONNECTIONS, budget_for

SCRIPT = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
from p2ptrain.real.limits import raise_descriptor_limit
budget = raise_descriptor_limit()
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], budget.max_connections, budget.warning is not None)
"""


def limits_after_start(soft: int, hard: int) -> list[str]:
    script = SCRIPT.format(soft=soft, hard=hard)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()


def test_the_soft_limit_is_raised_to_the_hard_one():  # BUG-P07
    assert limits_after_start(soft=256, hard=4096) == ["4096", str(MAX_CONNECTIONS), "False"]


def test_a_low_hard_limit_gives_a_small_budget_and_one_warning():  # BUG-P07
    soft, connections, is_warned = limits_after_start(soft=48, hard=64)
    assert (soft, is_warned) == ("64", "True")
    assert 4 <= int(connections) < 24


def test_a_budget_leaves_room_for_everything_else():
    for num_descriptors in range(60, 2000, 7):
        limits = TransportLimits.within(budget_for(num_descriptors).max_connections)
        assert limits.max_connections + limits.max_handshakes + 30 <= num_descriptors


def test_even_a_tiny_limit_allows_a_few_connections():
    assert budget_for(10).max_connections == 4
