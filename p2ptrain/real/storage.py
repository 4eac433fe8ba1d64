"""Blobs as files of one directory.

A blob is replaced by renaming a complete, fsynced file over it, so that a crash leaves the old one or the new one. A
lock on the directory keeps a second process out for as long as the first one lives, however it ends.
"""

import fcntl
import os
import re
from pathlib import Path
from typing import Final

from p2ptrain.errors import IdentityInUseError, StorageError

NAME: Final = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)*", re.ASCII)
PARTIAL: Final = ".partial"
LOCK: Final = ".lock"


class DirectoryStorage:
    """The Storage port in a directory of mode 0700, created when it is missing."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StorageError(f"data directory {directory} cannot be used: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise IdentityInUseError(
                f"the identity in {directory} is in use by another process on this machine"
            ) from None
        for leftover in directory.rglob(f"*{PARTIAL}"):  # of a crash: nobody else writes here
            leftover.unlink(missing_ok=True)

    def read(self, name: str) -> bytes | None:
        path = self._path(name)
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error.strerror}") from None

    def write(self, name: str, data: bytes | bytearray | memoryview) -> None:
        path = self._path(name)
        partial = path.with_name(path.name + PARTIAL)
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
            _sync_directory(path.parent)
        except OSError as error:
            raise StorageError(f"{path} cannot be written: {error.strerror}") from None

    def delete(self, name: str) -> None:
        path = self._path(name)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"{path} cannot be deleted: {error.strerror}") from None

    def names(self) -> list[str]:
        files = (path for path in self._directory.rglob("*") if path.is_file())
        names = (path.relative_to(self._directory).as_posix() for path in files)
        return sorted(name for name in names if NAME.fullmatch(name) and not name.endswith(PARTIAL))

    def close(self) -> None:
        """Let another process use the directory."""
        os.close(self._lock)

    def _path(self, name: str) -> Path:
        if not NAME.fullmatch(name) or name.endswith(PARTIAL):
            raise StorageError(
                f"{name!r} is no name for a blob: words of letters, digits, '.', '_', '-', divided by '/'"
            )
        return self._directory / name


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
