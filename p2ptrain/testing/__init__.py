"""Testing one's own models, merge rules and settings on whole swarms. docs/simulation.md tells how.

An ordinary install brings a pytest plugin (plugin.py) with two fixtures: `swarm`, peers in virtual time on a simulated
network, and `local_swarm`, the same peers as real processes on loopback. Both can be used without pytest, too:

    from p2ptrain.testing import VirtualSwarm

    with VirtualSwarm(seed=7) as swarm:
        swarm.add_peers(8, network="home-internet")
        swarm.run(minutes=10)
        print(swarm.versions, swarm.participation)
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from p2ptrain.testing.experiment import Experiment
    from p2ptrain.testing.local import LocalPeer, LocalSwarm
    from p2ptrain.testing.virtual import VirtualPeer, VirtualSwarm

__all__ = ["Experiment", "LocalPeer", "LocalSwarm", "VirtualPeer", "VirtualSwarm"]

_MODULES = {
    "Experiment": "experiment",
    "LocalPeer": "local",
    "LocalSwarm": "local",
    "VirtualPeer": "virtual",
    "VirtualSwarm": "virtual",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for only then: pytest loads this package whether a test needs it or not."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
