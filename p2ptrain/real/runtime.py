"""The real runtime of one peer."""

from pathlib import Path

from p2ptrain.real.clock import SystemClock
from p2ptrain.real.compute import ThreadCompute
from p2ptrain.real.entropy import SystemEntropy
from p2ptrain.real.network import TcpNetwork
from p2ptrain.real.storage import DirectoryStorage
from p2ptrain.runtime import Runtime


def create_runtime(directory: Path) -> Runtime:
    """Return the ports of a peer whose data directory this is. Call it inside the running event loop.

    StorageError when the directory cannot be used or another process uses it.
    """
    return Runtime(
        clock=SystemClock(),
        entropy=SystemEntropy(),
        network=TcpNetwork(),
        compute=ThreadCompute(),
        storage=DirectoryStorage(directory),
    )
