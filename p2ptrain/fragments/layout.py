"""Cutting a model into fragments.

The tensors are split deterministically into P fragments of about equal bytes: largest first into the lightest bin,
ties by name. Embeddings are cut by rows into fragments of their own, since they are large and merge by another rule.
Every peer computes the same layout from the same shapes; the digest of the layout is part of the genesis.

Source: "balanced tensor" fragmentation of Decoupled DiLoCo (arXiv 2604.21428).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import msgpack

from p2ptrain.errors import ConfigError
from p2ptrain.ids import Digest, digest

SMALL_TENSOR_ELEMENTS = 4096  # below it a direction in few dimensions is mostly noise: plain mean


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor of the model: its name, its shape, and whether its rows are an embedding. Always float32."""

    name: str
    shape: tuple[int, ...]
    is_embedding: bool = False

    @property
    def num_elements(self) -> int:
        return prod(self.shape)

    @property
    def merges_by_direction(self) -> bool:
        """Whether radial-directional averaging applies (else the plain weighted mean does)."""
        return not self.is_embedding and self.num_elements >= SMALL_TENSOR_ELEMENTS


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of a tensor that a fragment holds: elements [start, stop) of its flat, C-order values."""

    tensor: TensorSpec
    start: int
    stop: int
    offset: int  # where it begins in the fragment's flat vector

    @property
    def num_elements(self) -> int:
        return self.stop - self.start

    @property
    def place(self) -> slice:
        """Where it lies in the fragment's flat vector."""
        return slice(self.offset, self.offset + self.num_elements)


@dataclass(frozen=True, slots=True)
class Fragment:
    """One piece of the model, seen as one flat float32 vector of `num_elements`."""

    index: int
    pieces: tuple[Piece, ...]

    @property
    def num_elements(self) -> int:
        return sum(piece.num_elements for piece in self.pieces)

    @property
    def num_bytes(self) -> int:
        return 4 * self.num_elements


@dataclass(frozen=True, slots=True)
class Layout:
    """All fragments of a model."""

    fragments: tuple[Fragment, ...]

    @property
    def num_elements(self) -> int:
        return sum(fragment.num_elements for fragment in self.fragments)

    def digest(self) -> Digest:
        """Return what two peers compare to know that they cut the same model in the same way."""
        rows = [
            [
                fragment.index,
                piece.tensor.name,
                list(piece.tensor.shape),
                piece.start,
                piece.stop,
                piece.tensor.merges_by_direction,
            ]
            for fragment in self.fragments
            for piece in fragment.pieces
        ]
        return digest("layout", msgpack.packb(rows))


def make_layout(tensors: Sequence[TensorSpec], count: int) -> Layout:
    """Cut tensors into `count` fragments; ConfigError when there is less than one tensor (or row) for each."""
    names = [tensor.name for tensor in tensors]
    if len(set(names)) != len(names):
        raise ConfigError("two tensors of the model have the same name")
    full = [tensor for tensor in tensors if tensor.num_elements]
    embeddings = sorted((tensor for tensor in full if tensor.is_embedding), key=lambda tensor: tensor.name)
    others = sorted(
        (tensor for tensor in full if not tensor.is_embedding), key=lambda tensor: (-tensor.num_elements, tensor.name)
    )
    num_rows = sum(tensor.shape[0] for tensor in embeddings)
    if not 1 <= count <= len(others) + num_rows:
        raise ConfigError(
            f"fragments.count = {count}: this model can be cut into 1 to {len(others) + num_rows} fragments"
        )
    share = _embedding_share(embeddings, others, count)
    bins = _rows_in_bins(embeddings, share) + _largest_first(others, count - share)
    if count == 1:
        bins = [_rows_in_bins(embeddings, 1)[0] + _largest_first(others, 1)[0]] if embeddings and others else bins
    return Layout(tuple(Fragment(index, _placed(parts)) for index, parts in enumerate(bins)))


Part = tuple[TensorSpec, int, int]


def _embedding_share(embeddings: list[TensorSpec], others: list[TensorSpec], count: int) -> int:
    """Return how many fragments the embeddings get: by their bytes, at least one for each kind when there are two."""
    if not embeddings or not others:
        return count if embeddings else 0
    if count == 1:
        return 0
    elements = sum(tensor.num_elements for tensor in embeddings)
    total = elements + sum(tensor.num_elements for tensor in others)
    rows = sum(tensor.shape[0] for tensor in embeddings)
    wanted = max(1, round(count * elements / total))
    return min(max(wanted, count - len(others)), count - 1, rows)


def _rows_in_bins(embeddings: list[TensorSpec], count: int) -> list[list[Part]]:
    """Cut embeddings by rows, in order, into bins of about equal numbers of elements."""
    rows = [(tensor, row) for tensor in embeddings for row in range(tensor.shape[0])]
    bins: list[list[Part]] = []
    for index in range(count):
        parts: list[Part] = []
        for tensor, row in rows[len(rows) * index // count : len(rows) * (index + 1) // count]:
            width = tensor.num_elements // tensor.shape[0]
            if parts and parts[-1][0] is tensor:
                parts[-1] = (tensor, parts[-1][1], (row + 1) * width)
            else:
                parts.append((tensor, row * width, (row + 1) * width))
        bins.append(parts)
    return bins


def _largest_first(tensors: list[TensorSpec], count: int) -> list[list[Part]]:
    """Put each tensor (they come largest first) into the bin that is lightest so far."""
    bins: list[list[Part]] = [[] for _ in range(count)]
    weights = [0] * count
    for tensor in tensors:
        lightest = min(range(count), key=lambda index: (weights[index], index)) if count else 0
        bins[lightest].append((tensor, 0, tensor.num_elements))
        weights[lightest] += tensor.num_elements
    return bins


def _placed(parts: list[Part]) -> tuple[Piece, ...]:
    pieces: list[Piece] = []
    offset = 0
    for tensor, start, stop in sorted(parts, key=lambda part: (part[0].name, part[1])):
        pieces.append(Piece(tensor, start, stop, offset))
        offset += stop - start
    return tuple(pieces)
