"""The manifest: who joins by a link can check every byte of what he joins."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2ptrain.config import load_run_config
from p2ptrain.errors import LinkError
from p2ptrain.fragments.layout import TensorSpec, make_layout
from p2ptrain.ids import RunId, digest
from p2ptrain.net.identity import Identity, verify
from p2ptrain.run import RunManifest, create_run

OWNER, OTHER = Identity(b"\1" * 32), Identity(b"\2" * 32)
CONFIG = load_run_config("sim-quadratic")
LAYOUT = make_layout([TensorSpec(f"t{index}", (4, 4)) for index in range(4)], 4)
ANCHORS = [np.full(fragment.num_elements, fragment.index, np.float32) for fragment in LAYOUT.fragments]


def a_run(nonce: bytes = b"n" * 16, held_out: tuple[tuple[str, bytes], ...] = (("a.py", b"d" * 32),)) -> RunManifest:
    manifest, states = create_run(
        CONFIG, LAYOUT, ANCHORS, owner=OWNER.peer_id, signer=OWNER, nonce=nonce, now=1000.0, held_out=held_out
    )
    assert [state.digest for state in states] == list(manifest.genesis)
    return manifest


def test_a_manifest_survives_the_wire() -> None:
    manifest = a_run()
    arrived = RunManifest.from_bytes(manifest.to_bytes(), expected=manifest.run_id, verify=verify)
    assert arrived == manifest and arrived.run_id == manifest.run_id
    arrived.check_layout(LAYOUT)


def test_everything_that_peers_must_agree_on_is_part_of_the_run_id() -> None:
    ids = {a_run().run_id, a_run(nonce=b"m" * 16).run_id, a_run(held_out=()).run_id}
    ids.add(replace(a_run(), genesis=tuple(reversed(a_run().genesis))).run_id)
    ids.add(replace(a_run(), config=CONFIG.model_copy(update={"seed": 7})).run_id)
    assert len(ids) == 5


def test_another_run_or_another_owner_is_refused() -> None:
    manifest = a_run()
    with pytest.raises(LinkError, match="not that of the run in the link"):
        RunManifest.from_bytes(manifest.to_bytes(), expected=RunId(digest("run", b"other")), verify=verify)
    with pytest.raises(LinkError, match="not signed by its owner"):
        RunManifest.from_bytes(manifest.signed_by(OTHER).to_bytes(), expected=manifest.run_id, verify=verify)


@settings(max_examples=200, deadline=None)
@given(position=st.integers(0, 5000), bit=st.integers(0, 7))
def test_a_flipped_bit_is_always_noticed(position: int, bit: int) -> None:
    manifest = a_run()
    data = bytearray(manifest.to_bytes())
    data[position % len(data)] ^= 1 << bit
    with pytest.raises(LinkError):
        RunManifest.from_bytes(data, expected=manifest.run_id, verify=verify)


def test_a_build_that_makes_another_model_of_the_config_is_refused() -> None:
    with pytest.raises(LinkError, match="makes another model"):
        a_run().check_layout(make_layout([TensorSpec(f"t{index}", (4, 5)) for index in range(4)], 4))
