"""The machine's clocks."""

import time


class SystemClock:
    """Seconds: `monotonic` since some fixed moment, `wall` since 1970."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()
