"""What a peer keeps on disk of a run, so that a restart goes on where it was.

Heads and their states are checked against their digests when they are read. A file that is there and does not match
stops the command with its name, and is left as it is: fetching over it could lose the only copy.
"""

from collections.abc import Sequence

import msgpack

from p2ptrain.config import OuterConfig
from p2ptrain.errors import LinkError, P2PTrainError, StorageError
from p2ptrain.fragments.chain import ChainError, Commit
from p2ptrain.fragments.layout import Layout
from p2ptrain.fragments.pure import Pure
from p2ptrain.fragments.state import FragmentState
from p2ptrain.ids import RunId, format_run_id, parse_run_id
from p2ptrain.run import RunManifest
from p2ptrain.runtime import Storage

STEPS_RESERVED = 1_000_000  # inner step numbers claimed at a time: a killed peer never uses one twice


class RunStore:
    """One run's files in a peer's storage. Blocking: call it on a worker thread."""

    def __init__(self, storage: Storage, run_id: RunId, pure: Pure) -> None:
        self._storage, self._run_id, self._pure = storage, run_id, pure
        self._folder = format_run_id(run_id)

    def save_manifest(self, manifest: RunManifest) -> None:
        self._storage.write(f"{self._folder}/manifest.msgpack", manifest.to_bytes())

    def load_manifest(self) -> RunManifest | None:
        name = f"{self._folder}/manifest.msgpack"
        data = self._storage.read(name)
        if data is None:
            return None
        try:
            return RunManifest.from_bytes(data, expected=self._run_id, verify=self._pure.verify)
        except P2PTrainError as error:
            raise _corrupt(name, str(error)) from None

    def save_heads(self, heads: Sequence[tuple[Commit, FragmentState]]) -> None:
        for commit, state in heads:
            data = self._pure.pack_head(commit, state)
            self._storage.write(f"{self._folder}/fragment-{commit.fragment}.snapshot", data)

    def load_heads(self, layout: Layout, outer: OuterConfig) -> list[tuple[Commit, FragmentState] | None]:
        """Return the saved head of each fragment (None where none was saved); StorageError for a corrupt file."""
        heads: list[tuple[Commit, FragmentState] | None] = []
        for fragment in layout.fragments:
            name = f"{self._folder}/fragment-{fragment.index}.snapshot"
            packed = self._storage.read(name)
            if packed is None:
                heads.append(None)
                continue
            try:
                commit_bytes, data = msgpack.unpackb(packed)
                heads.append(self._pure.parse_snapshot(bytes(data), commit_bytes, fragment, outer))
            except (ValueError, TypeError, ChainError, P2PTrainError, msgpack.UnpackException) as error:
                raise _corrupt(name, str(error)) from None
        return heads

    def reserve_steps(self) -> int:
        """Return a number above every inner step that this identity has made in the run, and claim those that follow."""
        name = f"{self._folder}/steps.msgpack"
        data = self._storage.read(name)
        try:
            reserved = int(msgpack.unpackb(data)) if data is not None else 0
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise _corrupt(name, str(error)) from None
        self._storage.write(name, msgpack.packb(reserved + STEPS_RESERVED))
        return reserved

    def save_learner(self, position: int, inner_state: bytes) -> None:
        self._storage.write(f"{self._folder}/learner.msgpack", msgpack.packb([position, inner_state]))

    def load_learner(self) -> tuple[int, bytes]:
        """Return the window cursor's position and the inner optimizer's state (0 and b"" when there is none)."""
        name = f"{self._folder}/learner.msgpack"
        data = self._storage.read(name)
        if data is None:
            return 0, b""
        try:
            position, inner_state = msgpack.unpackb(data)
            return int(position), bytes(inner_state)
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise _corrupt(name, str(error)) from None


def hosted_runs(storage: Storage, pure: Pure) -> list[RunManifest]:
    """Return the runs that are saved here, newest first."""
    manifests: list[RunManifest] = []
    for name in storage.names():
        folder, _, file = name.rpartition("/")
        if file == "manifest.msgpack" and _is_run_id(folder):
            manifest = RunStore(storage, parse_run_id(folder), pure).load_manifest()
            if manifest is not None:
                manifests.append(manifest)
    return sorted(manifests, key=lambda manifest: -manifest.created_at)


def _is_run_id(folder: str) -> bool:
    """Whether a folder is a run's, and not, for example, one that its user has put aside."""
    try:
        parse_run_id(folder)
    except LinkError:
        return False
    return True


def _corrupt(name: str, reason: str) -> StorageError:
    return StorageError(
        f"{name} in the identity directory is corrupt ({reason or 'unreadable'}); it was left as it is: move it away to go on without it"
    )
