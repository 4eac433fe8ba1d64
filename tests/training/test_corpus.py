"""Which text a peer trains on, and which nobody does."""

from pathlib import Path

import pytest

from p2ptrain.config import DataConfig
from p2ptrain.errors import DataError
from p2ptrain.training.corpus import Corpus, Document, TextWindows, load_corpus, training_windows

STDLIB = DataConfig(source="python-stdlib", held_out_every=16)
OWN = DataConfig(source="path", held_out_every=4)


def folder_of(tmp_path: Path, texts: dict[str, str | bytes]) -> str:
    for name, text in texts.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(tmp_path)


def names(documents: tuple[Document, ...]) -> list[str]:
    return [document.name for document in documents]


def test_the_standard_library_is_there_without_its_tests_and_what_others_installed() -> None:
    corpus = load_corpus(STDLIB)
    everything = names(corpus.training) + names(corpus.held_out)
    assert "dataclasses.py" in everything and "asyncio/tasks.py" in everything
    assert not [name for name in everything if {"test", "tests", "site-packages"} & set(name.split("/")[:-1])]
    assert corpus.num_bytes > 5_000_000
    assert 0.03 < len(corpus.held_out) / len(everything) < 0.12
    assert names(corpus.training) == sorted(names(corpus.training))
    assert load_corpus(STDLIB).digest == corpus.digest


def test_a_folder_is_read_in_the_order_of_names_and_what_is_no_text_is_skipped(tmp_path: Path) -> None:
    no_text: dict[str, str | bytes] = {"image.png": b"\x89PNG\0", "latin.txt": b"caf\xe9", ".git/hidden": "hidden"}
    corpus = load_corpus(OWN, own_path=folder_of(tmp_path, {"b/z.txt": "zz", "a.txt": "aa", **no_text}))
    assert sorted(names(corpus.training) + names(corpus.held_out)) == ["a.txt", "b/z.txt"]
    assert corpus.num_skipped == 2
    assert "2 unreadable skipped" in corpus.describe()


def test_whole_files_are_held_out_by_name_so_all_peers_choose_alike(tmp_path: Path) -> None:
    texts: dict[str, str | bytes] = {f"{index}.txt": f"text {index}" for index in range(40)}
    one = load_corpus(OWN, own_path=folder_of(tmp_path / "one", texts))
    other = load_corpus(OWN, own_path=folder_of(tmp_path / "other", {**texts, "0.txt": "edited", "more.txt": "more"}))
    assert set(names(one.held_out)) <= set(names(other.held_out))
    assert 3 <= len(one.held_out) <= 17


@pytest.mark.parametrize("held_out_every", [2, 1000])
def test_a_few_files_leave_something_to_train_and_something_to_judge(tmp_path: Path, held_out_every: int) -> None:
    path = folder_of(tmp_path, {"a": "aaa", "b": "bbb"})
    corpus = load_corpus(DataConfig(source="path", held_out_every=held_out_every), own_path=path)
    assert len(corpus.training) == len(corpus.held_out) == 1


def test_a_single_file_loses_its_tail(tmp_path: Path) -> None:
    corpus = load_corpus(OWN, own_path=folder_of(tmp_path, {"book.txt": "x" * 60 + "y" * 20}) + "/book.txt")
    assert [document.text for document in corpus.training] == [b"x" * 60]
    assert [document.text for document in corpus.held_out] == [b"y" * 20]


def test_a_peer_validates_on_those_of_the_runs_files_that_it_has_and_trains_on_none() -> None:
    host = Corpus(source="host", training=(), held_out=(Document("v", b"judge"), Document("w", b"old")))
    own = Corpus(
        source="own",
        training=(Document("copy", b"judge"), Document("t", b"train"), Document("v", b"judge"), Document("w", b"new")),
        held_out=(Document("mine", b"mine"),),
    )
    seen = own.for_run(host.validation_manifest())
    assert names(seen.held_out) == ["v"] and seen.num_wanted == 2
    assert names(seen.training) == ["t"], "neither the same name, nor the same bytes under another name"
    assert "1 of 2 held-out files" in seen.describe()


def test_the_manifest_survives_msgpack(tmp_path: Path) -> None:
    corpus = load_corpus(OWN, own_path=folder_of(tmp_path, {"a": "aaa", "b": "bbb", "c": "ccc"}))
    manifest = corpus.validation_manifest()
    assert all(len(digest) == 32 for _, digest in manifest)
    again = [(str(name), bytes(digest)) for name, digest in manifest]
    assert corpus.for_run(again).digest == corpus.digest


def test_the_digest_tells_other_text_and_another_cut_apart() -> None:
    a, b = Document("a", b"aaa"), Document("b", b"bbb")
    digests = {
        Corpus(source="x", training=(a, b), held_out=()).digest,
        Corpus(source="x", training=(a,), held_out=(b,)).digest,
        Corpus(source="x", training=(a,), held_out=()).digest,
        Corpus(source="x", training=(a, Document("b", b"bbc")), held_out=()).digest,
    }
    assert len(digests) == 4


def test_windows_overlap_by_the_one_byte_that_is_only_predicted() -> None:
    windows = TextWindows([Document("a", b"abcde"), Document("b", b"fghi")], context=4)
    assert windows.num_windows == 2
    assert [bytes(row) for row in windows.batch([1, 0])] == [b"efghi", b"abcde"]
    assert windows.batch([]).shape == (0, 5)


def test_validation_windows_are_spread_over_the_text() -> None:
    windows = TextWindows([Document("a", bytes(101))], context=10)
    assert windows.spread(4) == [0, 2, 5, 7]
    assert windows.spread(1000) == list(range(10))
    assert TextWindows([], context=10).spread(4) == []


@pytest.mark.parametrize(
    ("texts", "path", "words"),
    [
        ({}, "", "--data"),
        ({}, "nowhere", "no such file or folder"),
        ({"kept": ""}, ".", "no text in it"),
        ({"a.txt": ""}, "a.txt", "the file is empty"),
        ({"a.bin": b"\xff\0"}, "a.bin", "not UTF-8"),
    ],
)
def test_text_that_is_not_there_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: dict[str, str | bytes], path: str, words: str
) -> None:
    folder_of(tmp_path, texts)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=words) as raised:
        load_corpus(OWN, own_path=path)
    assert "\n" not in str(raised.value)


def test_text_too_short_for_one_window_is_refused_with_both_numbers() -> None:
    corpus = Corpus(source="tiny.txt", training=(Document("tiny.txt", b"x" * 128),), held_out=())
    with pytest.raises(DataError, match=r"tiny\.txt: 128 bytes to train on; one window takes 129"):
        training_windows(corpus, context=128)
