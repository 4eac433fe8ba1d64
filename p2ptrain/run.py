"""What a swarm agrees to train: the manifest of a run, and its genesis.

The owner makes the initial anchors once; everybody else fetches them by digest, since initial values differ between
processors and builds of torch. The run id is the digest of the manifest (config, owner's key, nonce, layout, genesis,
held-out files), which the owner signs: who joins by a link can check every byte of what he joins.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import msgpack
import numpy as np
from numpy.typing import NDArray

from p2ptrain.config import RunConfig
from p2ptrain.errors import LinkError
from p2ptrain.fragments.chain import Commit, Signs, Verify, genesis_commit
from p2ptrain.fragments.layout import Layout
from p2ptrain.fragments.state import FragmentState
from p2ptrain.ids import DIGEST_BYTES, Digest, PeerId, RunId, digest, parse_peer_id

MAX_MANIFEST_BYTES = 256 * 1024  # ours have 4 KiB: the config, 32 bytes a fragment, about 60 a held-out file

HeldOut = tuple[tuple[str, bytes], ...]  # (relative name, digest) of each file that nobody trains on


@dataclass(frozen=True, kw_only=True)
class RunManifest:
    """Everything that a join link's run id stands for."""

    config: RunConfig
    owner: PeerId
    nonce: bytes
    created_at: float
    layout: Digest
    genesis: tuple[Digest, ...]
    """Digest of the initial state of each fragment."""
    held_out: HeldOut
    signature: bytes = b""

    @cached_property
    def payload(self) -> bytes:
        rows = [
            self.config.to_bytes(), self.owner, self.nonce, self.created_at, self.layout, list(self.genesis),
            [list(item) for item in self.held_out],
        ]  # fmt: skip
        packed: bytes = msgpack.packb(rows)
        return packed

    @cached_property
    def run_id(self) -> RunId:
        return RunId(digest("run", self.payload))

    def signed_by(self, signer: Signs) -> "RunManifest":
        return replace(self, signature=signer.sign("run", self.payload))

    def to_bytes(self) -> bytes:
        packed: bytes = msgpack.packb([self.payload, self.signature])
        return packed

    @classmethod
    def from_bytes(cls, data: bytes | bytearray, *, expected: RunId, verify: Verify) -> "RunManifest":
        """Return the manifest of exactly the expected run; LinkError otherwise, ConfigError for a config we cannot train."""
        try:
            payload, signature = msgpack.unpackb(data)
            if RunId(digest("run", payload)) != expected:  # before anything in it is looked at
                raise LinkError("the manifest that the peers sent is not that of the run in the link")
            config, owner, nonce, created_at, layout, genesis, held_out = msgpack.unpackb(payload)
            manifest = cls(
                config=RunConfig.from_bytes(config), owner=parse_peer_id(owner), nonce=bytes(nonce), created_at=float(created_at),
                layout=Digest(bytes(layout)), genesis=tuple(Digest(bytes(item)) for item in genesis),
                held_out=tuple((str(name), bytes(item)) for name, item in held_out), signature=bytes(signature),
            )  # fmt: skip
        except (ValueError, TypeError, msgpack.UnpackException):
            raise LinkError("the run's manifest is malformed") from None
        if not verify(manifest.owner, "run", payload, manifest.signature):
            raise LinkError("the run's manifest is not signed by its owner")
        if any(len(item) != DIGEST_BYTES for item in (manifest.layout, *manifest.genesis)) or not math.isfinite(
            manifest.created_at
        ):
            raise LinkError("the run's manifest is malformed")
        return manifest

    def genesis_commit(self, fragment: int) -> Commit:
        """Return version 0 of a fragment; its first leader is the owner's own peer."""
        return genesis_commit(self.run_id, fragment, self.genesis[fragment], self.created_at, [self.owner])

    def check_layout(self, layout: Layout) -> None:
        """Raise LinkError when this build cuts the run's model in another way (another version of p2ptrain)."""
        if layout.digest() != self.layout or len(layout.fragments) != len(self.genesis):
            raise LinkError(
                "this build makes another model from the run's config than its owner did; use the owner's version of p2ptrain"
            )


def create_run(
    config: RunConfig,
    layout: Layout,
    anchors: list[NDArray[np.float32]],
    *,
    owner: PeerId,
    signer: Signs,
    nonce: bytes,
    now: float,
    held_out: HeldOut,
) -> tuple[RunManifest, list[FragmentState]]:
    """Return the signed manifest of a new run and the initial state of each fragment."""
    states = [FragmentState.genesis(anchor, config.outer, now) for anchor in anchors]
    manifest = RunManifest(
        config=config, owner=owner, nonce=nonce, created_at=now, layout=layout.digest(),
        genesis=tuple(state.digest for state in states), held_out=held_out,
    )  # fmt: skip
    return manifest.signed_by(signer), states
