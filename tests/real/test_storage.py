"""Blobs as files: private, durable, and for one process only."""

import stat
from pathlib import Path

import pytest

from p2ptrain.errors import IdentityInUseError, StorageError
from p2ptrain.real.storage import DirectoryStorage


def test_directory_and_files_are_private(tmp_path):
    storage = DirectoryStorage(tmp_path / "peer")
    storage.write("a/b.bin", b"x")
    for path, mode in (("", 0o700), ("a", 0o700), ("a/b.bin", 0o600)):
        assert stat.S_IMODE((tmp_path / "peer" / path).stat().st_mode) == mode


def test_two_processes_cannot_use_one_directory(tmp_path):
    first = DirectoryStorage(tmp_path)
    with pytest.raises(IdentityInUseError, match="in use by another process"):
        DirectoryStorage(tmp_path)
    first.close()
    DirectoryStorage(tmp_path).close()


def test_what_a_crash_left_half_written_is_removed_and_the_old_blob_stays(tmp_path):
    first = DirectoryStorage(tmp_path)
    first.write("state.bin", b"old")
    (tmp_path / "state.bin.partial").write_bytes(b"ne")
    first.close()
    second = DirectoryStorage(tmp_path)
    assert second.read("state.bin") == b"old"
    assert second.names() == ["state.bin"]
    assert not (tmp_path / "state.bin.partial").exists()


def test_errors_name_the_file(tmp_path):
    storage = DirectoryStorage(tmp_path)
    (tmp_path / "state.bin").mkdir()
    with pytest.raises(StorageError, match=r"state\.bin cannot be read"):
        storage.read("state.bin")
    with pytest.raises(StorageError, match=r"state\.bin cannot be written"):
        storage.write("state.bin", b"x")


def test_a_failed_write_leaves_the_old_blob(tmp_path, monkeypatch):
    storage = DirectoryStorage(tmp_path)
    storage.write("state.bin", b"old")

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("p2ptrain.real.storage.os.fsync", fail)
    with pytest.raises(StorageError, match="No space left on device"):
        storage.write("state.bin", b"new")
    assert storage.read("state.bin") == b"old"


def test_a_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="file"):
        DirectoryStorage(Path(tmp_path / "file" / "peer"))
