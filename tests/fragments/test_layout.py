"""Cutting a model into fragments."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2ptrain.errors import ConfigError
from p2ptrain.fragments.layout import TensorSpec, make_layout

MODEL = [
    TensorSpec("embedding", (256, 64), is_embedding=True),
    *(
        TensorSpec(f"layer.{index}.{name}", shape)
        for index in range(4)
        for name, shape in (("q", (64, 64)), ("up", (64, 172)), ("gain", (64,)))
    ),
    TensorSpec("empty", (0, 3)),
    TensorSpec("scalar", ()),
]

SHAPES = st.lists(st.lists(st.integers(0, 9), max_size=3).map(tuple), min_size=1, max_size=12)


@settings(max_examples=200, deadline=None)
@given(shapes=SHAPES, num_embeddings=st.integers(0, 2), count=st.integers(1, 6))
def test_every_element_is_in_exactly_one_fragment(
    shapes: list[tuple[int, ...]], num_embeddings: int, count: int
) -> None:
    tensors = [
        TensorSpec(f"t{index}", shape, is_embedding=index < num_embeddings and len(shape) > 0)
        for index, shape in enumerate(shapes)
    ]
    try:
        layout = make_layout(tensors, count)
    except ConfigError:
        return
    assert len(layout.fragments) == count and all(fragment.num_elements for fragment in layout.fragments)
    covered = {
        (piece.tensor.name, element)
        for fragment in layout.fragments
        for piece in fragment.pieces
        for element in range(piece.start, piece.stop)
    }
    assert len(covered) == layout.num_elements == sum(tensor.num_elements for tensor in tensors)
    for fragment in layout.fragments:
        assert [piece.offset for piece in fragment.pieces] == [
            sum(piece.num_elements for piece in fragment.pieces[:index]) for index in range(len(fragment.pieces))
        ]


def test_the_order_of_the_tensors_does_not_matter() -> None:
    assert make_layout(MODEL, 4).digest() == make_layout(MODEL[::-1], 4).digest()


def test_another_shape_name_or_number_of_fragments_is_another_layout() -> None:
    digests = {
        make_layout(MODEL, 4).digest(),
        make_layout(MODEL, 3).digest(),
        make_layout([*MODEL, TensorSpec("more", (1,))], 4).digest(),
        make_layout(
            [TensorSpec("renamed", tensor.shape) if tensor.name == "scalar" else tensor for tensor in MODEL], 4
        ).digest(),
    }
    assert len(digests) == 4


def test_the_embedding_is_on_its_own_and_the_rest_is_balanced() -> None:
    layout = make_layout(MODEL, 4)
    embedding = [
        fragment for fragment in layout.fragments if any(piece.tensor.is_embedding for piece in fragment.pieces)
    ]
    assert all(piece.tensor.is_embedding for fragment in embedding for piece in fragment.pieces)
    sizes = [fragment.num_elements for fragment in layout.fragments if fragment not in embedding]
    assert max(sizes) <= 4 / 3 * sum(sizes) / len(sizes)


def test_a_large_embedding_is_cut_by_rows() -> None:
    layout = make_layout([TensorSpec("embedding", (1000, 8), is_embedding=True), TensorSpec("w", (8, 8))], 5)
    pieces = [piece for fragment in layout.fragments for piece in fragment.pieces if piece.tensor.is_embedding]
    assert len(pieces) == 4 and all(piece.start % 8 == 0 and piece.stop % 8 == 0 for piece in pieces)


@pytest.mark.parametrize("count", [0, -1, 1000])
def test_a_number_of_fragments_that_cannot_be_made_is_refused(count: int) -> None:
    with pytest.raises(ConfigError, match=rf"fragments.count = {count}: this model can be cut into 1 to \d+ fragments"):
        make_layout(MODEL, count)


def test_two_tensors_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="same name"):
        make_layout([TensorSpec("w", (2,)), TensorSpec("w", (3,))], 1)
