"""The text that a peer trains on, and the text that nobody does.

A corpus is a list of whole files, sorted by their relative names. By a hash of its name, one file in `held_out_every`
is held out for validation; a single file loses its tail instead. Peers may have other texts (another Python version,
their own folder), so the host puts a **manifest** of its held-out files into the run: names and digests. A peer
validates on those of them that it has, byte for byte, and trains on none of them, whatever name or content they share.

Windows are cut from the files in a row: window i is the `context` bytes from i * context, and the byte after them.
"""

import os
import platform
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from p2ptrain.config import DataConfig
from p2ptrain.errors import DataError
from p2ptrain.ids import Digest, digest

MAX_CORPUS_BYTES: Final = 1 << 30  # it is held in memory
NEVER_ENTERED: Final = frozenset({"site-packages", "dist-packages", "__pycache__"})
NOT_LIBRARY: Final = frozenset({"test", "tests", "idle_test"})

Text = npt.NDArray[np.uint8]
Manifest = Sequence[tuple[str, bytes]]


@dataclass(frozen=True)
class Document:
    """One file: its name relative to the corpus, and its bytes."""

    name: str
    text: bytes

    @cached_property
    def digest(self) -> Digest:
        return digest("corpus-document", self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """What one peer has to read."""

    source: str
    """For people: where the text is from."""
    training: tuple[Document, ...]
    held_out: tuple[Document, ...]
    num_skipped: int = 0
    """Files that could not be read or are not UTF-8 text."""
    num_wanted: int = 0
    """Held-out files of the run; `held_out` has those of them that are here."""

    @property
    def num_bytes(self) -> int:
        return sum(len(document.text) for document in (*self.training, *self.held_out))

    @property
    def digest(self) -> Digest:
        """What two peers compare to know that their windows are the same."""
        documents = (*self.training, *self.held_out)
        parts = [part for document in documents for part in (document.name.encode(), document.digest)]
        return digest("corpus", len(self.training).to_bytes(8, "little"), *parts)

    def describe(self) -> str:
        """Return one line for people."""
        skipped = f", {self.num_skipped} unreadable skipped" if self.num_skipped else ""
        return (
            f"{self.source}: {self.num_bytes:,} bytes in {len(self.training) + len(self.held_out)} files{skipped}; "
            f"{len(self.held_out)} of {self.num_wanted} held-out files; digest {self.digest.hex()[:12]}"
        )

    def validation_manifest(self) -> list[tuple[str, bytes]]:
        """Return the names and digests of the held-out files, for the host to put into the run."""
        return [(document.name, bytes(document.digest)) for document in self.held_out]

    def for_run(self, manifest: Manifest) -> "Corpus":
        """Return this corpus as a run sees it: the run's held-out files that are here, and none of them in training."""
        wanted = {(name, bytes(document_digest)) for name, document_digest in manifest}
        names, digests = {name for name, _ in wanted}, {document_digest for _, document_digest in wanted}
        everything = sorted((*self.training, *self.held_out), key=lambda document: document.name)
        return Corpus(
            source=self.source,
            training=tuple(item for item in self.training if item.name not in names and item.digest not in digests),
            held_out=tuple(item for item in everything if (item.name, item.digest) in wanted),
            num_skipped=self.num_skipped,
            num_wanted=len(wanted),
        )


class TextWindows:
    """Documents in a row, cut into windows of `context` bytes and the byte that follows."""

    def __init__(self, documents: Sequence[Document], context: int) -> None:
        self.context = context
        self._text: Text = np.frombuffer(b"".join(document.text for document in documents), np.uint8)
        self.num_windows = max(0, self._text.size - 1) // context

    def batch(self, windows: Sequence[int]) -> Text:
        """Return windows by number: (len(windows), context + 1) bytes."""
        starts = np.asarray(windows, np.int64)[:, None] * self.context
        return self._text[starts + np.arange(self.context + 1)]

    def spread(self, count: int) -> list[int]:
        """Return the numbers of `count` windows (or all there are) spread evenly over the text."""
        count = min(count, self.num_windows)
        return [index * self.num_windows // count for index in range(count)]


@lru_cache(maxsize=4)
def windows_of(documents: tuple[Document, ...], context: int) -> TextWindows:
    """Return the windows of these documents: the same object to all peers of one process."""
    return TextWindows(documents, context)


def training_windows(corpus: Corpus, context: int) -> TextWindows:
    """Return the windows to train on; DataError when there is not even one."""
    windows = windows_of(corpus.training, context)
    if not windows.num_windows:
        num_bytes = sum(len(document.text) for document in corpus.training)
        raise DataError(f"{corpus.source}: {num_bytes} bytes to train on; one window takes {context + 1}")
    return windows


def load_corpus(config: DataConfig, *, own_path: str = "") -> Corpus:
    """Read the text of a run from this machine; DataError in one line when there is none. Blocking, about 0.2 s.

    `own_path` is what the peer names as its own text, for runs whose data.source is "path".
    """
    if config.source == "python-stdlib":
        root = Path(sysconfig.get_path("stdlib"))
        names = [name for name in _names_below(root) if _is_library(name)]
        return _whole_files(f"Python {platform.python_version()} standard library", root, names, config.held_out_every)
    path = own_path or config.path
    if not path:
        raise DataError("data.path is empty: each peer of this run brings its own text; name it with --data")
    root = Path(path).expanduser()
    if root.is_file():
        return _one_file(root, config.held_out_every)
    if not root.is_dir():
        raise DataError(f"{path}: no such file or folder")
    return _whole_files(path, root, _names_below(root), config.held_out_every)


def _is_library(name: str) -> bool:
    """Whether a file is the same in every copy of this Python version: those that tell how it was built are not."""
    *folders, file = name.split("/")
    local = file.startswith("_sysconfigdata") or any(folder.startswith("config-") for folder in folders)
    return file.endswith(".py") and not local and NOT_LIBRARY.isdisjoint(folders)


def _names_below(root: Path) -> list[str]:
    """Return the relative names (with /) of the files in a folder, sorted; hidden ones are left out."""
    names = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in NEVER_ENTERED]
        names += [Path(folder, file).relative_to(root).as_posix() for file in files if not file.startswith(".")]
    return sorted(names)


def _whole_files(source: str, root: Path, names: list[str], held_out_every: int) -> Corpus:
    texts = {name: _read_text(root / name) for name in _within_bound(source, root, names)}
    documents = [Document(name, text) for name, text in texts.items() if text]
    num_skipped = sum(text is None for text in texts.values())
    if not documents:
        raise DataError(f"{source}: no text in it ({num_skipped} files that are not UTF-8 or cannot be read)")
    if len(documents) == 1:
        return _without_tail(source, documents[0], held_out_every, num_skipped)
    held_out = _held_out_names([document.name for document in documents], held_out_every)
    return Corpus(
        source=source,
        training=tuple(document for document in documents if document.name not in held_out),
        held_out=tuple(document for document in documents if document.name in held_out),
        num_skipped=num_skipped,
        num_wanted=len(held_out),
    )


def _one_file(path: Path, held_out_every: int) -> Corpus:
    _within_bound(str(path), path.parent, [path.name])
    text = _read_text(path)
    if text is None:
        raise DataError(f"{path}: not UTF-8 text, or it cannot be read")
    if not text:
        raise DataError(f"{path}: the file is empty")
    return _without_tail(str(path), Document(path.name, text), held_out_every, 0)


def _without_tail(source: str, document: Document, held_out_every: int, num_skipped: int) -> Corpus:
    cut = len(document.text) - len(document.text) // held_out_every
    tail = (Document(f"{document.name}#tail", document.text[cut:]),) if cut < len(document.text) else ()
    training = (Document(document.name, document.text[:cut]),)
    return Corpus(source=source, training=training, held_out=tail, num_skipped=num_skipped, num_wanted=len(tail))


def _held_out_names(names: list[str], held_out_every: int) -> set[str]:
    """Return one name in `held_out_every` by hash; at least one, and never all."""
    hashes = {name: int.from_bytes(digest("held-out", name.encode())[:8], "little") for name in names}
    ranked = sorted(names, key=lambda name: hashes[name])
    chosen = [name for name in ranked if hashes[name] % held_out_every == 0] or ranked[:1]
    return set(chosen[: len(names) - 1])


def _within_bound(source: str, root: Path, names: list[str]) -> list[str]:
    num_bytes = sum((root / name).stat().st_size for name in names if (root / name).is_file())
    if num_bytes > MAX_CORPUS_BYTES:
        raise DataError(f"{source}: {num_bytes:,} bytes; at most {MAX_CORPUS_BYTES:,} fit in memory")
    return names


def _read_text(path: Path) -> bytes | None:
    """Return a file's bytes, or None when it cannot be read or is not UTF-8 text."""
    try:
        text = path.read_bytes() if path.is_file() else None
        if text is None or b"\0" in text:
            return None
        text.decode()
    except (OSError, UnicodeDecodeError):
        return None
    return text
