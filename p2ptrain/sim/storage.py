"""A disk in memory: full, slow, without power, or lying.

A write is what the reader sees at once. It is safe from a power cut a moment later: when the disk has it, which the
writer waits for, as with fsync. A disk that lies says at once that it has it; what it was told in its last seconds is
gone after a power cut, and the blob is again what it was before.
"""

import asyncio
import re
from collections import deque
from typing import Final

from p2ptrain.errors import StorageError
from p2ptrain.sim.process import SimProcess

STORAGE_NAME: Final = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)*", re.ASCII)
NO_SPACE: Final = "No space left on device"  # as the operating system words it
LIE_SECONDS: Final = 10.0  # of writes that a cheap disk loses

Undo = tuple[float, str, bytes | None]  # when it becomes durable, which blob, what it was before (None: not there)


class SimStorage:
    """Named blobs on one machine's disk."""

    def __init__(self) -> None:
        self.full = False
        """Whether every write fails."""
        self.write_seconds = 0.0
        """What each write or deletion costs before it is durable."""
        self.bytes_per_second: float | None = None
        """At which blobs are written; None: at no cost."""
        self.lies_for = 0.0
        """For so many seconds after a write was reported as done, a power cut undoes it."""
        self._blobs: dict[str, bytes] = {}
        self._undo: deque[Undo] = deque()
        self._busy_until = 0.0
        self._owed_seconds = 0.0

    # The Storage port

    def read(self, name: str) -> bytes | None:
        return self._blobs.get(_checked(name))

    def write(self, name: str, data: bytes | bytearray | memoryview) -> None:
        name = _checked(name)
        if self.full:
            raise StorageError(f"{name} cannot be written: {NO_SPACE}")
        self._change(name, bytes(data))

    def delete(self, name: str) -> None:
        if _checked(name) in self._blobs:
            self._change(name, None)

    def names(self) -> list[str]:
        return sorted(self._blobs)

    # What a story does to it

    @property
    def loses_unsynced(self) -> bool:
        """Whether it lies, as cheap ones do."""
        return self.lies_for > 0.0

    @loses_unsynced.setter
    def loses_unsynced(self, lies: bool) -> None:
        self.lies_for = LIE_SECONDS if lies else 0.0

    def cut_power(self) -> list[str]:
        """Lose what is not durable; return the names of the blobs that are not what they were."""
        now, lost = _now(), set()
        while self._undo:
            durable_at, name, before = self._undo.pop()  # the newest first
            if durable_at > now:
                _set(self._blobs, name, before)
                lost.add(name)
        self._busy_until = now
        return sorted(lost)

    def take_seconds(self) -> float:
        """Return how long what was done since the last time takes; whoever did it waits for that long."""
        seconds, self._owed_seconds = self._owed_seconds, 0.0
        return seconds

    def _change(self, name: str, data: bytes | None) -> None:
        now = _now()
        before = self._blobs.get(name)
        _set(self._blobs, name, data)
        cost = self.write_seconds
        if data is not None and self.bytes_per_second is not None:
            cost += len(data) / self.bytes_per_second
        self._busy_until = max(now, self._busy_until) + cost
        self._owed_seconds = self._busy_until - now
        durable_at = self._busy_until + self.lies_for
        while self._undo and self._undo[0][0] <= now:
            self._undo.popleft()
        if durable_at > now:
            self._undo.append((durable_at, name, before))


class MountedStorage:
    """A disk as one process sees it: what that process does after its death has no effect."""

    def __init__(self, disk: SimStorage, process: SimProcess) -> None:
        self._disk, self._process = disk, process

    def read(self, name: str) -> bytes | None:
        return self._disk.read(name)

    def write(self, name: str, data: bytes | bytearray | memoryview) -> None:
        if self._process.alive:
            self._disk.write(name, data)

    def delete(self, name: str) -> None:
        if self._process.alive:
            self._disk.delete(name)

    def names(self) -> list[str]:
        return self._disk.names()


def _set(blobs: dict[str, bytes], name: str, data: bytes | None) -> None:
    if data is None:
        blobs.pop(name, None)
    else:
        blobs[name] = data


def _checked(name: str) -> str:
    if not STORAGE_NAME.fullmatch(name) or ".." in name:
        raise StorageError(f"{name!r} is no name for a blob: words of letters, digits, '.', '_', '-', divided by '/'")
    return name


def _now() -> float:
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:  # before the story begins
        return 0.0
