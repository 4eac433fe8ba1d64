"""How many connections this process may have.

Each connection is a file descriptor, and a process that runs out of them can neither accept, nor dial, nor save. The
soft limit is a default from another age, so it is raised to the hard one; what remains after a reserve for files,
libraries and the loop is the budget.
"""

import resource
from dataclasses import dataclass
from typing import Final

RESERVED_DESCRIPTORS: Final = 40  # standard streams, the loop, libraries, checkpoints, connections that are ending
CONNECTION_SHARE: Final = 0.8  # of the rest; handshakes may take a quarter as many again (TransportLimits.within)
MAX_CONNECTIONS: Final = 512  # a partial view has at most 128 peers with two connections each; a bootstrap has more
MIN_CONNECTIONS: Final = 4
UNLIMITED: Final = 1 << 20
COMFORTABLE_CONNECTIONS: Final = 64  # below this a peer works, with fewer neighbours


@dataclass(frozen=True, slots=True)
class ConnectionBudget:
    """The number of connections to keep below, and one sentence for the user when that is few."""

    max_connections: int
    warning: str | None


def raise_descriptor_limit() -> ConnectionBudget:
    """Raise the soft limit on open files to the hard one and return the budget that follows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):
            pass  # some systems announce a hard limit that they do not grant: the soft one stands
    return budget_for(UNLIMITED if soft == resource.RLIM_INFINITY else soft)


def budget_for(num_descriptors: int) -> ConnectionBudget:
    """Return the connection budget of a process that may open so many files."""
    affordable = int((num_descriptors - RESERVED_DESCRIPTORS) * CONNECTION_SHARE)
    connections = min(max(affordable, MIN_CONNECTIONS), MAX_CONNECTIONS)
    if connections >= COMFORTABLE_CONNECTIONS:
        return ConnectionBudget(connections, None)
    return ConnectionBudget(
        connections, f"only {num_descriptors} files may be open (ulimit -n): at most {connections} connections"
    )
