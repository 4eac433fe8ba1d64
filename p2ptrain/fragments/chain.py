"""The history of a fragment: envelopes, commits, the ledger and fork choice. Pure: bytes in, decisions out.

A fragment's history is a chain of commits with fork choice, like a block chain without mining. A contribution is a
signed envelope (which inner steps of which peer, on which base) and encoded bytes. A commit names its parent, the
envelopes that it merges, the digest of the merged update and the digest of the state after it. It is keyed by its
digest, and its digest determines that state, bit for bit, everywhere.

Each chain carries a ledger: peer -> last merged inner step. An envelope that does not begin right there is refused, so
one chain counts each step of a peer at most once, whatever leaders do, and the ledger's one number tells a learner
which of its hand-overs a chain has merged. The chain with more total work wins, ties by the smaller
digest; work is counted from the envelopes, never a leader's claim, and no peer can have done more than the run's
`max_tokens_per_second` since it was last merged.

Who may lead is not checked here: anybody can sign a commit. Two commits on one parent are a fork, and forks heal.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from typing import Any, Final, Protocol, Self

import msgpack

from p2ptrain.config import LimitsConfig
from p2ptrain.ids import DIGEST_BYTES, Digest, PeerId, RunId, digest, public_key_of
from p2ptrain.wire.messages import unpack

MAX_STEP: Final = 2**53  # so that every language can hold it
MAX_TOKENS: Final = 2**48
MAX_STEP_SECONDS: Final = 600.0  # the interval of a fragment follows from what its members say of their steps
MAX_WORK: Final = 2**60  # what a chain can hold: at 1e6 tokens per second, 36,000 years
MAX_NEXT: Final = 17  # a leader and the most deputies that a run may have (rounds.num_deputies)
MAX_ENVELOPE_BYTES: Final = 16 * 1024  # ours have about 400, plus 9 per tensor of the fragment
MAX_COMMIT_BYTES: Final = 4 * 1024 * 1024  # 4,096 members at most (limits.max_members)
NO_PARENT: Final = Digest(bytes(DIGEST_BYTES))

Verify = Callable[[PeerId, str, bytes, bytes], bool]


class Signs(Protocol):
    """Whoever can sign: net.identity.Identity."""

    def sign(self, domain: str, message: bytes) -> bytes: ...


class ChainError(ValueError):
    """An envelope or a commit that breaks the rules; the message is the reason, for an event."""


@dataclass(frozen=True, kw_only=True)
class _Signed:
    """Fields in a stated order as a msgpack array, and a signature of those bytes at the end."""

    DOMAIN = ""
    MAX_BYTES = 0
    signature: bytes = field(default=b"", compare=False)

    @cached_property
    def payload(self) -> bytes:
        """The bytes that are signed."""
        packed: bytes = msgpack.packb([_plain(getattr(self, name)) for name in _signed_fields(type(self))])  # type: ignore[arg-type]
        return packed

    @cached_property
    def digest(self) -> Digest:
        return digest(self.DOMAIN, self.payload)

    def signed_by(self, signer: Signs) -> Self:
        return replace(self, signature=signer.sign(self.DOMAIN, self.payload))

    def to_bytes(self) -> bytes:
        packed: bytes = msgpack.packb([self.payload, self.signature])
        return packed

    @classmethod
    def _unpack(cls, data: bytes) -> tuple[tuple[Any, ...], bytes, bytes]:
        """Return the fields, the exact payload and the signature; ChainError for anything else.

        What is not spelled as this build would spell it is refused: one thing has one digest.
        """
        if len(data) > cls.MAX_BYTES:
            raise ChainError(f"{cls.DOMAIN} of {len(data)} bytes; at most {cls.MAX_BYTES}")
        try:
            payload, signature = unpack(data)
            values = unpack(payload)
            _require(isinstance(values, tuple) and isinstance(signature, bytes) and len(signature) <= 64)
            _require(msgpack.packb(values) == payload and msgpack.packb((payload, signature)) == data)
        except (ValueError, TypeError):
            raise ChainError(f"malformed {cls.DOMAIN}") from None
        return values, payload, signature

    def _came_as(self, payload: bytes) -> Self:
        """Note the bytes that were signed, of which these fields were read."""
        self.__dict__["payload"] = payload  # where the cached property looks first
        return self


@dataclass(frozen=True, kw_only=True)
class Envelope(_Signed):
    """One peer's contribution to a round, without its bytes."""

    DOMAIN = "envelope"
    MAX_BYTES = MAX_ENVELOPE_BYTES

    run_id: RunId
    fragment: int
    base: Digest
    """The commit whose anchor the work was measured against."""
    peer: PeerId
    after_step: int
    last_step: int
    """The peer's inner steps after_step+1 … last_step are what this covers."""
    steps: int
    tokens: int
    oldest_version: int
    """The version on which the oldest of this work was done."""
    step_seconds: float
    """Seconds from one inner step of this peer to the next, lately."""
    content: Digest
    """Digest of the encoded pseudo-gradient."""
    norms: tuple[float, ...]
    """Euclidean norm of each piece of the fragment, in layout order."""

    @classmethod
    def from_bytes(cls, data: bytes) -> "Envelope":
        """Return an envelope whose fields are in range (its signature is not checked); ChainError otherwise."""
        values, payload, signature = cls._unpack(data)
        try:
            run_id, fragment, base, peer, after_step, last_step, steps, tokens, oldest, seconds, content, norms = values
            envelope = cls(
                run_id=RunId(_digest(run_id)), fragment=_count(fragment, 1 << 16), base=_digest(base), peer=_peer(peer),
                after_step=_count(after_step, MAX_STEP), last_step=_count(last_step, MAX_STEP), steps=_count(steps, MAX_STEP),
                tokens=_count(tokens, MAX_TOKENS), oldest_version=_count(oldest, MAX_STEP), step_seconds=_real(seconds),
                content=_digest(content), norms=tuple(_real(norm) for norm in norms), signature=signature,
            )  # fmt: skip
            _require(1 <= envelope.steps <= envelope.last_step - envelope.after_step and envelope.tokens >= 1)
        except (ValueError, TypeError):
            raise ChainError("malformed envelope") from None
        return envelope._came_as(payload)


@dataclass(frozen=True, kw_only=True)
class Commit(_Signed):
    """One outer update of a fragment: what was merged, and the state that follows from it."""

    DOMAIN = "commit"
    MAX_BYTES = MAX_COMMIT_BYTES

    run_id: RunId
    fragment: int
    parent: Digest
    version: int
    leader: PeerId
    update: Digest
    """Digest of the merged, encoded pseudo-gradient that everybody applies."""
    state: Digest
    """Digest of anchor, outer optimizer and ledger after applying it."""
    total_work: int
    next: tuple[PeerId, ...]
    """The leader of the next round, then its deputies."""
    committed_at: float
    envelopes: tuple[Envelope, ...]

    @classmethod
    def from_bytes(cls, data: bytes) -> "Commit":
        """Return a commit whose fields are in range (nothing else is checked); ChainError otherwise."""
        values, payload, signature = cls._unpack(data)
        try:
            run_id, fragment, parent, version, leader, update, state, total_work, following, committed_at, envelopes = (
                values
            )
            commit = cls(
                run_id=RunId(_digest(run_id)), fragment=_count(fragment, 1 << 16), parent=_digest(parent),
                version=_count(version, MAX_STEP), leader=_peer(leader), update=_digest(update), state=_digest(state),
                total_work=_count(total_work, 2**62), next=tuple(_peer(peer) for peer in following),
                committed_at=_real(committed_at), envelopes=tuple(Envelope.from_bytes(item) for item in envelopes),
                signature=signature,
            )  # fmt: skip
            _require(len(commit.next) <= 32)
        except ChainError:
            raise
        except (ValueError, TypeError):
            raise ChainError("malformed commit") from None
        return commit._came_as(payload)

    @cached_property
    def weight(self) -> tuple[int, int]:
        """Fork choice: of two commits the one with the larger weight wins. Never equal for different commits."""
        return self.total_work, -int.from_bytes(self.digest, "big")

    @cached_property
    def contributors(self) -> tuple[PeerId, ...]:
        return tuple(envelope.peer for envelope in self.envelopes)

    @cached_property
    def tokens(self) -> dict[PeerId, int]:
        """How many tokens of each contributor it merges; not to be changed."""
        return {envelope.peer: envelope.tokens for envelope in self.envelopes}


def genesis_commit(run_id: RunId, fragment: int, state: Digest, created_at: float, leaders: Iterable[PeerId]) -> Commit:
    """Return version 0 of a fragment. It follows from the run id, so it needs no signature."""
    following = tuple(leaders)
    return Commit(
        run_id=run_id, fragment=fragment, parent=NO_PARENT, version=0, leader=following[0], update=NO_PARENT, state=state,
        total_work=0, next=following, committed_at=created_at, envelopes=(),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """What a chain has merged of one peer: up to which inner step, and when."""

    last_step: int
    merged_at: float


@dataclass(frozen=True)
class Ledger:
    """Peer -> last merged inner step, as of one commit."""

    created_at: float
    entries: Mapping[PeerId, LedgerEntry]

    def last_step(self, peer: PeerId) -> int:
        entry = self.entries.get(peer)
        return entry.last_step if entry else 0

    def refusal(self, envelope: Envelope) -> str | None:
        """Return why this chain cannot count the envelope, or None when it can."""
        last_step = self.last_step(envelope.peer)
        if envelope.after_step != last_step:
            return f"this chain has merged steps up to {last_step}; the envelope begins after {envelope.after_step}"
        return None

    def work(self, envelope: Envelope, committed_at: float, limits: LimitsConfig) -> int:
        """Return what the envelope adds to the chain's total work: its tokens, capped by time; at least 1."""
        entry = self.entries.get(envelope.peer)
        elapsed = max(0.0, committed_at - (entry.merged_at if entry else self.latest_at))
        return max(1, int(min(float(envelope.tokens), limits.max_tokens_per_second * elapsed)))

    @cached_property
    def latest_at(self) -> float:
        """When this chain last merged anything: from then on a peer that it does not know counts, not from the run's start."""
        return max((entry.merged_at for entry in self.entries.values()), default=self.created_at)

    def after(self, commit: Commit) -> "Ledger":
        entries = dict(self.entries)
        for envelope in commit.envelopes:
            entries[envelope.peer] = LedgerEntry(envelope.last_step, commit.committed_at)
        return Ledger(self.created_at, entries)

    def to_bytes(self) -> bytes:
        rows = [[peer, entry.last_step, entry.merged_at] for peer, entry in sorted(self.entries.items())]
        packed: bytes = msgpack.packb([self.created_at, rows])
        return packed

    @classmethod
    def from_bytes(cls, data: bytes) -> "Ledger":
        """Return a ledger; ChainError unless these are exactly the bytes that `to_bytes` makes."""
        try:
            created_at, rows = unpack(data)
            entries = {
                _peer(peer): LedgerEntry(_count(step, MAX_STEP), _real(merged_at)) for peer, step, merged_at in rows
            }
            ledger = cls(_real(created_at), entries)
            _require(ledger.to_bytes() == data)
        except (ValueError, TypeError):
            raise ChainError("malformed ledger") from None
        return ledger


def check_envelope(
    envelope: Envelope, head: Commit, ledger: Ledger, *, num_pieces: int, max_staleness: int, verify: Verify
) -> None:
    """Raise ChainError with the reason why a round on `head` must not merge this envelope."""
    if envelope.run_id != head.run_id or envelope.fragment != head.fragment:
        raise ChainError("the envelope is of another run or fragment")
    if len(envelope.norms) != num_pieces:
        raise ChainError(f"{len(envelope.norms)} norms for {num_pieces} pieces")
    if envelope.step_seconds > MAX_STEP_SECONDS:
        raise ChainError(f"steps of {envelope.step_seconds:g} s; at most {MAX_STEP_SECONDS:g} are believed")
    if envelope.oldest_version > head.version:
        raise ChainError(f"work on version {envelope.oldest_version}, which comes after the head's {head.version}")
    if head.version - envelope.oldest_version > max_staleness:
        raise ChainError(
            f"stale: work on version {envelope.oldest_version}, {head.version - envelope.oldest_version} commits behind"
        )
    if reason := ledger.refusal(envelope):
        raise ChainError(reason)
    if not verify(envelope.peer, Envelope.DOMAIN, envelope.payload, envelope.signature):
        raise ChainError("the envelope's signature is not its peer's")


def total_work(
    parent: Commit, ledger: Ledger, envelopes: Iterable[Envelope], committed_at: float, limits: LimitsConfig
) -> int:
    """Return the total work of a commit on `parent` (whose ledger is given) that merges these envelopes."""
    return parent.total_work + sum(ledger.work(envelope, committed_at, limits) for envelope in envelopes)


def check_commit(
    commit: Commit,
    parent: Commit,
    ledger: Ledger,
    limits: LimitsConfig,
    *,
    num_pieces: int,
    max_staleness: int,
    verify: Verify,
) -> None:
    """Raise ChainError unless `commit` may follow `parent`, whose ledger is given. The state is checked by applying."""
    if (commit.run_id, commit.fragment, commit.parent) != (parent.run_id, parent.fragment, parent.digest):
        raise ChainError("the commit is not on this parent")
    if commit.version != parent.version + 1:
        raise ChainError(f"version {commit.version} after {parent.version}")
    if not commit.committed_at > parent.committed_at:
        raise ChainError("the commit is not later than its parent")
    if not 1 <= len(commit.envelopes) <= limits.max_members:
        raise ChainError(f"{len(commit.envelopes)} envelopes; 1 to {limits.max_members} are allowed")
    if any(one.peer >= other.peer for one, other in zip(commit.envelopes, commit.envelopes[1:], strict=False)):
        raise ChainError("the envelopes are not in ascending order of peer id, each once")
    if commit.total_work > MAX_WORK:
        raise ChainError("more work than a chain can hold")
    if not commit.next:
        raise ChainError("the commit names no next leader")
    if len(commit.next) > MAX_NEXT or not set(commit.next) <= {commit.leader, *commit.contributors}:
        raise ChainError("the commit names next leaders who were not in its round")
    if not verify(commit.leader, Commit.DOMAIN, commit.payload, commit.signature):
        raise ChainError("the commit's signature is not its leader's")
    if commit.total_work != total_work(parent, ledger, commit.envelopes, commit.committed_at, limits):
        raise ChainError("the total work is not what the envelopes add up to")
    for envelope in commit.envelopes:
        check_envelope(envelope, parent, ledger, num_pieces=num_pieces, max_staleness=max_staleness, verify=verify)


def draw(key: bytes, peers: Iterable[PeerId]) -> list[PeerId]:
    """Return the peers in an order that everybody who has the key computes alike, and nobody can choose."""
    return sorted(set(peers), key=lambda peer: (digest("draw", key, public_key_of(peer)), peer))


@cache
def _signed_fields(kind: Any) -> tuple[str, ...]:
    return tuple(item.name for item in fields(kind) if item.name != "signature")


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value.to_bytes() if isinstance(value, Envelope) else value


def _require(condition: bool) -> None:
    if not condition:
        raise ValueError


def _digest(value: Any) -> Digest:
    _require(isinstance(value, bytes) and len(value) == DIGEST_BYTES)
    return Digest(value)


def _peer(value: Any) -> PeerId:
    _require(isinstance(value, str))
    public_key_of(PeerId(value))
    return PeerId(value)


def _count(value: Any, limit: int) -> int:
    _require(type(value) is int and 0 <= value < limit)
    return int(value)


def _real(value: Any) -> float:
    _require(type(value) is float and math.isfinite(value) and value >= 0.0)
    return float(value)
