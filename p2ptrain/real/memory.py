"""How much memory this process has used at most."""

import resource
import sys


def peak_memory_bytes() -> int:
    """Return the largest resident set so far; the system counts in KiB, except on macOS."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
