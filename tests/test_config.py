"""Configs are strict: every mistake is one line that names file, line, key, value and what is allowed."""

from pathlib import Path

import pytest

from p2ptrain.config import RunConfig, load_peer_config, load_run_config, shipped
from p2ptrain.errors import ConfigError


@pytest.mark.parametrize("name", list(shipped("configs")))
def test_every_shipped_run_loads_and_survives_the_wire(name: str) -> None:
    config = load_run_config(name)
    assert config.name == name
    assert RunConfig.from_bytes(config.to_bytes()) == config


@pytest.mark.parametrize("name", list(shipped("peers")))
def test_every_shipped_peer_config_loads(name: str) -> None:
    assert load_peer_config(name).peer.listen


MISTAKES = [
    ("[inner]\nlearnig_rate = 1.0", ":2: unknown key inner.learnig_rate (did you mean 'learning_rate'?)"),
    ("[rounds]\nlearning_rate = 1.0", ":2: unknown key rounds.learning_rate (it belongs in [inner])"),
    ("[innr]\nclip = 1.0", ":1: unknown key innr (did you mean 'inner'?)"),
    ("[inner]\nclip = 1.0\nlearning_rate = '1e-4'", ":3: inner.learning_rate = '1e-4': input should be a valid number"),
    ("[inner]\nlearning_rate = 1e9", "inner.learning_rate = 1000000000.0: input should be less than or equal to 100"),
    ("[inner]\nlearning_rate = nan", "inner.learning_rate = nan: input should be a finite number"),
    ("[outer]\nnesterov = 'yes'", "outer.nesterov = 'yes': input should be a valid boolean"),
    ("[model]\nlayers = [4]", "model.layers = [4]: input should be a valid integer"),
    ("[model]\nlayers = 4.0", "model.layers = 4.0"),
    ("[model]\nkind = 'gpt'", "model.kind = 'gpt': input should be 'llama', 'char-mlp' or 'quadratic'"),
    ("[model]\ndim = 65", "dim = 65 must be an even multiple of heads = 4"),
    ("[codec]\nup = 'fp8'", "codec.up = 'fp8': input should be 'fp32', 'bf16', 'fp16', 'int8', 'int4' or 'topk2'"),
    ("[codec]\ndown = 'topk2'", "codec.down = 'topk2': input should be 'fp32', 'bf16', 'fp16', 'int8' or 'int4'"),
    ("name = 'a'\nname = 'b'", "not TOML: Cannot overwrite a value"),
    ("name = 08", "not TOML"),
    ("\ufeffname = 'a'", "not TOML"),
    ("", "the file is empty"),
    ("# only a comment\n", "the file is empty"),
]


@pytest.mark.parametrize(("text", "words"), MISTAKES)
def test_a_mistake_is_one_line_with_its_place(tmp_path: Path, text: str, words: str) -> None:  # BUG-L01
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_run_config(str(path))
    said = str(caught.value)
    assert words in said and str(path) in said and "\n" not in said


def test_windows_line_ends_are_no_mistake(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(b'name = "mine"\r\n[inner]\r\nclip = 2.0\r\n')
    assert load_run_config(str(path)).inner.clip == 2.0


def test_a_config_from_the_network_is_held_to_the_same_rules() -> None:
    with pytest.raises(ConfigError, match="over the network"):
        RunConfig.from_bytes(b"\xc1 not msgpack")
    foreign = load_run_config("pycode").to_bytes().replace(b"cosine", b"cosinf").replace(b"clip", b"clap")
    with pytest.raises(ConfigError, match=r"unknown key inner\.clap"):
        RunConfig.from_bytes(foreign)


def test_every_default_is_part_of_the_bytes_so_that_two_builds_cannot_disagree_in_silence() -> None:
    config = load_run_config("pycode")
    assert config.model_copy(update={"seed": 1}).to_bytes() != config.to_bytes()
    assert b"max_reorg" in config.to_bytes()
