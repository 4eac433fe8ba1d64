"""The run config (what all peers agree on) and the peer config (how one machine takes part).

Both are TOML, both are strict: an unknown key, a wrong type or a value out of range is one line that names the file,
the key, the value, what is allowed, and the nearest key where one was mistyped. A run config is data, never code; its
canonical bytes are part of the run id, so that two peers of a run cannot disagree about it.
"""

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import msgpack
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from p2ptrain.errors import ConfigError

MAX_CONFIG_BYTES = 64 * 1024  # ours have 2 KiB; a run config also travels in a message head

Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Rate = Annotated[float, Field(gt=0.0, le=100.0)]


class Section(BaseModel):
    """A table of a config: strict, immutable, and no key that it does not know."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


class ModelConfig(Section):
    """What is trained. `llama`: a byte-level decoder; `char-mlp`: eight bytes of context; `quadratic`: a stand-in."""

    kind: Literal["llama", "char-mlp", "quadratic"] = "llama"
    dim: Annotated[int, Field(ge=2, le=8192)] = 64
    """Width of the residual stream (for `quadratic`: columns of each tensor). Raise for a larger model."""
    layers: Annotated[int, Field(ge=1, le=128)] = 4
    heads: Annotated[int, Field(ge=1, le=128)] = 4
    hidden: Annotated[int, Field(ge=2, le=65536)] = 172
    """Width of the feed-forward layer; 8/3 of dim is usual for SwiGLU."""
    context: Annotated[int, Field(ge=1, le=65536)] = 128
    """Tokens that a window holds and attention spans."""

    @model_validator(mode="after")
    def _heads_divide_dim(self) -> "ModelConfig":
        if self.kind == "llama" and (self.dim % self.heads or (self.dim // self.heads) % 2):
            raise ValueError(f"dim = {self.dim} must be an even multiple of heads = {self.heads}")
        return self


class DataConfig(Section):
    """What it is trained on. `python-stdlib`: the *.py of the standard library; `path`: text that each peer brings."""

    source: Literal["python-stdlib", "path", "none"] = "python-stdlib"
    path: str = ""
    """A file or folder, for source = "path"; a peer may name its own with --data."""
    held_out_every: Annotated[int, Field(ge=2, le=1000)] = 16
    """One file in this many (by a hash of its name) is held out for validation."""
    num_validation_windows: Annotated[int, Field(ge=1, le=65536)] = 64


class InnerConfig(Section):
    """The inner optimizer, with warm-up, cosine and clipping, on each peer alone."""

    optimizer: Literal["adamw", "muon"] = "adamw"
    """Muon moves hidden matrices by orthogonalised momentum, and everything else as AdamW does."""
    learning_rate: Rate = 6e-3
    beta1: Fraction = 0.9
    beta2: Fraction = 0.95
    weight_decay: Fraction = 0.1
    clip: Annotated[float, Field(gt=0.0, le=1e6)] = 1.0
    """Largest norm of a gradient; larger ones are scaled down to it."""
    warmup_steps: Annotated[int, Field(ge=0, le=1_000_000)] = 50
    total_steps: Count = 4000
    """Inner steps of the schedule, counted by the swarm's progress (versions x H), so that newcomers agree on it."""
    final_fraction: Fraction = 0.1
    """The cosine ends at this fraction of learning_rate, and stays there."""
    windows_per_step: Annotated[int, Field(ge=1, le=4096)] = 8


class OuterConfig(Section):
    """The outer optimizer, on the merged pseudo-gradient. Momentum 0.9 is ruinous in short runs."""

    optimizer: Literal["sgd", "adam"] = "sgd"
    learning_rate: Annotated[float, Field(gt=0.0, le=10.0)] = 0.7
    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.5
    """Of sgd; the beta1 of adam."""
    nesterov: bool = True
    beta2: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.99
    """Of adam."""
    epsilon: Annotated[float, Field(gt=0.0, le=1.0)] = 1e-8
    """Of adam."""


class RoundsConfig(Section):
    """When and how averaging groups form."""

    inner_steps: Annotated[int, Field(ge=1, le=100_000)] = 20
    """H: inner steps between two rounds of a fragment (elsewhere: sync_every, local_steps). Raise on slow links."""
    least_interval: Annotated[float, Field(ge=0.0, le=1e6)] = 1.0
    """Seconds between two rounds of a fragment at least, however fast steps are: gossip must keep up with commits."""
    quorum: Annotated[int, Field(ge=1, le=1024)] = 1
    """K: members that a round needs once `lonely_intervals` passed without half of the last round's members."""
    lonely_intervals: Annotated[float, Field(ge=1.0, le=100.0)] = 3.0
    grace_fraction: Fraction = 0.25
    """After a quorum, late members are waited for at most this fraction of an interval. How long is learnt from their
    lateness; a return within a quarter of H steps costs little learning."""
    num_deputies: Annotated[int, Field(ge=0, le=16)] = 2
    merge: Literal["rda", "rda-median", "mean", "trimmed-mean", "median", "centered-clip"] = "rda"
    """Radial-directional averaging (arXiv 2604.21428), with the mean or the median of the lengths; the plain weighted
    mean; or a rule that withstands some hostile contributions at the price of ignoring weights: see averaging/merge.py."""
    adopt: Literal["rebase", "mix", "overwrite"] = "rebase"
    """What becomes of the local work since the hand-over when a commit arrives: kept (rebase), kept to `mix_share`, or
    dropped (overwrite, as in the paper)."""
    mix_share: Fraction = 0.5
    late_share: Fraction = 1.0
    """Work that has missed a round is kept to this share at each further commit (1: all of it)."""
    max_staleness: Annotated[int, Field(ge=1, le=10_000)] = 8
    """Work whose oldest base is more commits behind the head than this is dropped, with that reason."""


class FragmentsConfig(Section):
    """The model is averaged in this many pieces, each with a chain and leaders of its own."""

    count: Annotated[int, Field(ge=1, le=1024)] = 4


class CodecConfig(Section):
    """How tensors travel: contributions up to the leader, updates down to everybody. wire/codecs.py has the table."""

    up: Literal["fp32", "bf16", "fp16", "int8", "int4", "topk2"] = "fp16"
    """What a lossy codec lost stays with its peer, and is added to the peer's next contribution."""
    down: Literal["fp32", "bf16", "fp16", "int8", "int4"] = "fp16"
    """Rounded by chance that follows from the parent commit, since an update has nobody who keeps what was lost."""


class LimitsConfig(Section):
    """Bounds against absurd or hostile peers."""

    max_tokens_per_second: Annotated[float, Field(gt=0.0, le=1e9)] = 1e6
    """No peer's work counts for more than this in fork choice."""
    max_weight_ratio: Annotated[float, Field(ge=1.0, le=1000.0)] = 3.0
    """A contribution weighs at most this many times the median."""
    max_reorg: Annotated[int, Field(ge=1, le=10_000)] = 16
    """A fork that began more commits ago than this is refused, loudly."""
    max_members: Annotated[int, Field(ge=1, le=4096)] = 64
    """G: contributions that one leader merges."""


class RunConfig(Section):
    """Everything that the peers of a run must agree on."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")] = "run"
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    inner: InnerConfig = InnerConfig()
    outer: OuterConfig = OuterConfig()
    rounds: RoundsConfig = RoundsConfig()
    fragments: FragmentsConfig = FragmentsConfig()
    codec: CodecConfig = CodecConfig()
    limits: LimitsConfig = LimitsConfig()

    @model_validator(mode="after")
    def _data_fits_model(self) -> "RunConfig":
        if (self.model.kind == "quadratic") != (self.data.source == "none"):
            raise ValueError('data.source = "none" goes with model.kind = "quadratic", and only with it')
        return self

    def to_bytes(self) -> bytes:
        """Return the canonical bytes: msgpack, keys sorted, every default written out."""
        packed: bytes = msgpack.packb(_sorted(self.model_dump()))
        return packed

    @classmethod
    def from_bytes(cls, data: bytes) -> "RunConfig":
        """Return the config that a peer sent; ConfigError when this build cannot train it."""
        try:
            values = msgpack.unpackb(data, strict_map_key=True)
        except (ValueError, msgpack.UnpackException):
            raise ConfigError("the run config that came over the network is not msgpack") from None
        return validated(cls, values, "the run config that came over the network")


class PeerSection(Section):
    """How this machine takes part; nothing here changes what is trained."""

    listen: str = "0.0.0.0:0"
    """HOST:PORT to accept peers on; port 0 takes a free one."""
    announce: list[str] = []
    """HOST:PORT under which others can dial this machine, when that is not where it listens (port forwarding)."""
    train: bool = True
    """false: a bootstrap peer, which helps others to meet and does not compute."""
    device: Literal["cpu", "cuda"] = "cpu"
    threads: Annotated[int, Field(ge=0, le=1024)] = 0
    """Threads of the inner loop; 0: one, which is best when peers share a machine."""
    data: str = ""
    """A file or folder with this peer's own text, for runs whose data.source is "path"."""


class PeerConfig(Section):
    """peers/*.toml: one kind of machine."""

    peer: PeerSection = PeerSection()


Config = TypeVar("Config", bound=Section)


def load_run_config(name_or_path: str) -> RunConfig:
    """Return configs/NAME.toml, or the TOML file at a path."""
    return load_config(RunConfig, name_or_path, folder="configs", what="run")


def load_peer_config(name_or_path: str) -> PeerConfig:
    """Return peers/NAME.toml, or the TOML file at a path."""
    return load_config(PeerConfig, name_or_path, folder="peers", what="peer config")


def shipped(folder: str) -> dict[str, Path]:
    """Return the TOML files that come with p2ptrain, by name: from the wheel, or from the checkout around it."""
    package = Path(str(resources.files("p2ptrain")))
    for place in (package / folder, package.parent / folder):
        if place.is_dir():
            return {path.stem: path for path in sorted(place.glob("*.toml"))}
    return {}


def load_config(kind: type[Config], name_or_path: str, *, folder: str, what: str) -> Config:
    """Return a TOML file of this kind: FOLDER/NAME.toml that comes with p2ptrain, or the one at a path.

    ConfigError for the first mistake, with file and line; `what` is what such a file is called.
    """
    known = shipped(folder)
    path = known.get(name_or_path, Path(name_or_path))
    if path.suffix != ".toml":
        near = _nearest(name_or_path, list(known))
        there_are = ", ".join(known) or "none"
        raise ConfigError(
            f"no {what} named {name_or_path!r}{near}; there are: {there_are}; or give a path to a .toml file"
        )
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    if len(data) > MAX_CONFIG_BYTES:
        raise ConfigError(f"{path}: {len(data)} bytes; a config has at most {MAX_CONFIG_BYTES}")
    try:
        text = data.decode()
        values = tomllib.loads(text)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None
    if not values:
        raise ConfigError(f"{path}: the file is empty; a config has at least one table")
    return validated(kind, values, str(path), text)


def validated(kind: type[Config], values: Any, source: str, text: str = "") -> Config:
    """Return values as a section; ConfigError for the first mistake, with its line where it stands in `text`."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        details = error.errors(include_url=False)
        first = next((detail for detail in details if detail["type"] == "extra_forbidden"), details[0])
        raise ConfigError(_one_line(kind, first, source, text)) from None


def _one_line(kind: type[Section], detail: ErrorDetails, source: str, text: str) -> str:
    location = _place(kind, [str(part) for part in detail["loc"]])
    key = ".".join(location)
    line = line_of(text, location)
    where = f"{source}:{line}" if line else source
    if detail["type"] == "extra_forbidden":
        table = _section_at(kind, [str(part) for part in detail["loc"][:-1]])
        keys = list(table.model_fields) if table is not None else []
        near = _nearest(location[-1], keys) or _elsewhere(kind, location[-1])
        return f"{where}: unknown key {key}{near}; allowed here: {', '.join(keys)}"
    reason = detail["msg"].removeprefix("Value error, ")
    value = f" = {_toml_value(detail['input'])}" if location and not isinstance(detail["input"], Mapping) else ""
    return f"{where}: {key}{value}: {reason[:1].lower()}{reason[1:]}" if key else f"{where}: {reason}"


def _toml_value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)[:60]


def _section_at(kind: type[Section], location: Sequence[str]) -> type[Section] | None:
    """Return the section that a place of pydantic's names; None when there is none."""
    return _follow(kind, location)[0]


def _place(kind: type[Section], location: Sequence[str]) -> list[str]:
    """Return a place of pydantic's as it stands in the file: without the tags that tell the kinds of a table apart."""
    return _follow(kind, location)[1]


def _follow(kind: type[Section], location: Sequence[str]) -> tuple[type[Section] | None, list[str]]:
    annotation: Any = kind
    place: list[str] = []
    for part in location:
        sections = _sections_in(annotation)
        tagged = next((one for one in sections if len(sections) > 1 and part in _tags(one)), None)
        if tagged is not None:
            annotation = tagged
            continue
        place.append(part)
        if len(sections) == 1 and part in sections[0].model_fields:
            annotation = sections[0].model_fields[part].annotation
        elif not part.isdigit():
            annotation = None
    sections = _sections_in(annotation)
    return (sections[0] if len(sections) == 1 else None), place


def _sections_in(annotation: Any) -> list[type[Section]]:
    """Return the sections that an annotation may hold, however deep in lists and alternatives."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return [annotation]
    return [section for inner in get_args(annotation) for section in _sections_in(inner)]


def _tags(section: type[Section]) -> tuple[str, ...]:
    field = section.model_fields.get("kind")
    return get_args(field.annotation) if field is not None else ()


def _nearest(word: str, words: list[str]) -> str:
    close = difflib.get_close_matches(word, words, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _elsewhere(kind: type[Section], key: str) -> str:
    """Say where a key belongs that stands in the wrong table."""
    for name, field in kind.model_fields.items():
        if (
            isinstance(field.annotation, type)
            and issubclass(field.annotation, Section)
            and key in field.annotation.model_fields
        ):
            return f" (it belongs in [{name}])"
    return ""


def line_of(text: str, location: Sequence[str]) -> int:
    """Return the line (1-based) of a key, or of the innermost table around it; 0 when there is neither.

    Tables are followed, and tables of a list by their number from 0; dotted keys and inline tables are not.
    """
    table: list[str] = []
    counts: dict[str, int] = {}
    best, best_line = 0, 0
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if stripped.startswith("[["):
            name = stripped.partition("]")[0].strip("[ ")
            counts[name] = counts.get(name, -1) + 1
            table = [*name.split("."), str(counts[name])]
            path = table
        elif stripped.startswith("["):
            table = []
            for part in stripped.partition("]")[0].strip("[ ").split("."):
                table.append(part)
                if ".".join(table) in counts:
                    table.append(str(counts[".".join(table)]))
            path = table
        else:
            path = [*table, stripped.partition("=")[0].strip()]
        if path == list(location[: len(path)]) and len(path) > best:
            best, best_line = len(path), number
    return best_line


def _sorted(value: Any) -> Any:
    return {key: _sorted(value[key]) for key in sorted(value)} if isinstance(value, dict) else value
