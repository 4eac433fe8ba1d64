"""Real time for the volunteers' part: what it may take, and what the next size will take by what the last one took."""

from typing import Final

from p2ptrain.runtime import Clock

GROWTH: Final = {"p2ptrain": 1.15, "hivemind": 1.6}  # real time grows about as this power of the number of peers


class OutOfTime(Exception):
    """The budget is used up; the message says how far it came."""


class Budget:
    """Real seconds for all sizes together."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock, self._seconds = clock, seconds
        self._began_at = clock.monotonic()
        self._took: dict[str, tuple[int, float]] = {}  # by what was run: peers, real seconds

    def now(self) -> float:
        return self._clock.monotonic()

    def seconds_left(self) -> float:
        return max(0.0, self._began_at + self._seconds - self._clock.monotonic())

    def note(self, what: str, num_peers: int, seconds: float) -> None:
        """Remember what a size took."""
        self._took[what] = num_peers, seconds

    def expected_seconds(self, what: str, num_peers: int) -> float | None:
        """Return about what a size will take, by what the last one took; None before there was one."""
        if what not in self._took:
            return None
        peers, seconds = self._took[what]
        return seconds * float((num_peers / peers) ** GROWTH[what])

    def check(self, what: str, num_peers: int) -> None:
        """OutOfTime when a size will not fit into what is left."""
        expected = self.expected_seconds(what, num_peers) or 0.0
        if expected > self.seconds_left() or not self.seconds_left():
            raise OutOfTime(f"it needs about {_minutes(expected)}, {_minutes(self.seconds_left())} are left")


def _minutes(seconds: float) -> str:
    return f"{seconds / 60.0:.1f} minutes"
