"""What a learner owes and is owed: the conserved quantity of a fragment. Pure NumPy.

Per fragment a learner has the anchor a that it adopted last, its local parameters θ, the unmerged work d = a - θ, and
the residual e of a lossy codec. At a step boundary it hands over s = d; what travels is the encoding of s + e, which
decodes to q. When a chain is adopted, one of two things is true of each hand-over:

* the chain merged it: `d <- d - s`, `e <- e + s - q`. Work done since the hand-over stays.
* it did not (aborted, left out, a lost fork): nothing changes, and the work stays pending.

Then `θ <- a' - d` (rebase). Unmerged work is invariant under adoption, so a second hand-over before an answer simply
covers the first: both begin at the ledger's last step of this peer, so a chain admits one of them. Which hand-overs a
chain has merged follows from one number, the ledger's last step of this peer. If a reorganisation takes a merged
hand-over back, its s returns to d.

Of d only a share may be kept at each adoption (`d <- share * d`): 1 is rebase, 0 is the paper's overwrite, what lies
between is a mix; work that has missed a round may be kept to a smaller share, since old work does harm. The tokens of
what is not kept are counted as dropped, each with its reason. If a round merges a hand-over after all, they are merged.

Checked by property tests: trained = merged + pending + dropped, and d + e = all work - all merged q.
"""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]

NUM_RETAINED = 4  # merged hand-overs whose values are kept, so that a reorganisation can give them back


@dataclass(eq=False, kw_only=True)
class HandOver:
    """A snapshot of unmerged work, on its way into a round."""

    after_step: int  # the ledger's last step of this peer when it was made
    last_step: int
    steps: int
    tokens: int
    base_version: int
    oldest_version: int
    work: Vector | None  # s, (num_elements,); None once it is too old to be given back
    exact: Vector  # s + e, (num_elements,): what the codec gets
    residual: Vector | None  # e when it was made; None while there was none
    encoded_error: Vector | None = None  # s + e - q, for lossy codecs; set when it was encoded
    kept_steps: int = 0  # of steps and tokens: what is still in d; `work` is scaled down with it
    kept_tokens: int = 0
    dropped: Counter[str] = field(default_factory=Counter)  # tokens of it that were given up before it was merged


@dataclass(frozen=True, slots=True)
class Tally:
    """Tokens of a fragment: trained = merged + pending + sum of dropped, always."""

    trained: int
    merged: int
    pending: int
    dropped: dict[str, int]


@dataclass(frozen=True, slots=True)
class Adoption:
    """What `FragmentAccount.adopt` did."""

    parameters: Vector  # θ', (num_elements,)
    merged_tokens: int  # newly merged by the adopted chain (negative when a reorganisation took some back)
    dropped: dict[str, int]  # tokens given up by this adoption, by reason


@dataclass(kw_only=True)
class FragmentAccount:
    """The books of one fragment on one learner."""

    anchor: Vector
    version: int
    merged_step: int = 0  # the ledger's last step of this peer in the adopted chain
    keep: float = 1.0
    """The share of the remaining work that an adoption keeps: 1 rebase, 0 overwrite."""
    keep_late: float = 1.0
    """The same, on top, for work that has missed a round."""
    max_staleness: int = 8
    max_reorg: int = 16
    residual: Vector | None = None
    _trained: int = 0
    _merged: int = 0
    _dropped: Counter[str] = field(default_factory=Counter)
    _pending_steps: int = 0
    _pending_tokens: int = 0
    _last_step: int = 0
    _oldest_version: int = 0
    _history: list[HandOver] = field(default_factory=list)
    _included: list[HandOver] = field(default_factory=list)

    @property
    def pending_steps(self) -> int:
        return self._pending_steps

    def tally(self) -> Tally:
        dropped = {reason: tokens for reason, tokens in sorted(self._dropped.items()) if tokens}
        return Tally(self._trained, self._merged, self._pending_tokens, dropped)

    def count_step(self, step: int, tokens: int) -> None:
        """Note inner step number `step` (they only grow), which trained on `tokens` tokens."""
        if not self._pending_steps:
            self._oldest_version = self.version
        self._last_step = max(step, self._last_step + 1, self.merged_step + 1)
        self._pending_steps += 1
        self._pending_tokens += tokens
        self._trained += tokens

    def hand_over(self, parameters: Vector) -> HandOver | None:
        """Return all unmerged work as of now, or None when there is none."""
        if not self._pending_steps:
            return None
        if any(self._last_step == earlier.last_step for earlier in self._history):
            self._last_step += 1  # no step since then, perhaps another base: a ledger must be able to tell them apart
        work = np.subtract(self.anchor, parameters)
        hand_over = HandOver(
            after_step=self.merged_step, last_step=self._last_step, steps=self._pending_steps,
            tokens=self._pending_tokens, base_version=self.version, oldest_version=self._oldest_version,
            work=work, exact=work if self.residual is None else np.add(work, self.residual), residual=self.residual,
            kept_steps=self._pending_steps, kept_tokens=self._pending_tokens,
        )  # fmt: skip
        self._history.append(hand_over)
        return hand_over

    def adopt(self, parameters: Vector, anchor: Vector, version: int, merged_step: int) -> Adoption:
        """Move to another commit, whose anchor and ledger entry of this peer are given; return the new parameters."""
        work = np.subtract(self.anchor, parameters)
        merged_before, dropped_before = self._merged, Counter(self._dropped)
        included = self._included_at(merged_step)
        for hand_over in self._included[::-1]:
            if hand_over not in included:
                work = self._take_back(hand_over, work)
        for hand_over in included:
            if hand_over not in self._included:
                work = self._merge(hand_over, work)
        self.anchor, self.version, self.merged_step, self._included = anchor, version, merged_step, included
        self._oldest_version = min(self._oldest_version, version)  # the heavier branch may be the shorter one
        self._forget()
        if self._pending_tokens:
            work = self._keep_share(*self._share_and_reason(), work)
        parameters = np.subtract(anchor, work)
        return Adoption(parameters, self._merged - merged_before, dict(self._dropped - dropped_before))

    def _included_at(self, merged_step: int) -> list[HandOver]:
        """Return the hand-overs that a chain whose ledger says `merged_step` has merged, oldest first."""
        by_last_step = {hand_over.last_step: hand_over for hand_over in self._history}
        if merged_step not in by_last_step:  # merged by an earlier life of this peer, or before anything in the books
            return [hand_over for hand_over in self._included if hand_over.last_step <= merged_step]
        chain: list[HandOver] = []
        link = by_last_step.get(merged_step)
        while link is not None:
            chain.append(link)
            link = by_last_step.get(link.after_step)  # after_step < last_step, so this ends
        return chain[::-1]

    def _share_and_reason(self) -> tuple[float, str]:
        """Return how much of the pending work stays, and why not all of it."""
        age = self.version - self._oldest_version
        if age > self.max_staleness:
            return 0.0, "stale"
        if age > 1 and self.keep_late < 1.0:
            return self.keep * self.keep_late, "late"
        return self.keep, "mixed" if self.keep else "overwritten"

    def _keep_share(self, share: float, reason: str, work: Vector) -> Vector:
        """Give up all but a share of the pending work; return what remains."""
        if share >= 1.0 and self._pending_steps:
            return work
        kept_steps = int(self._pending_steps * share)
        share = share if kept_steps else 0.0  # less than one step is nothing
        kept_tokens = int(self._pending_tokens * share)
        self._dropped[reason] += self._pending_tokens - kept_tokens
        self._pending_steps, self._pending_tokens = kept_steps, kept_tokens
        for hand_over in self._history:
            if hand_over not in self._included and hand_over.work is not None:
                left = int(hand_over.kept_tokens * share)
                hand_over.dropped[reason] += hand_over.kept_tokens - left
                hand_over.kept_tokens, hand_over.kept_steps = left, int(hand_over.kept_steps * share)
                hand_over.work = np.multiply(hand_over.work, np.float32(share)) if share else None
        return np.multiply(work, np.float32(share)) if share else np.zeros_like(work)

    def _merge(self, hand_over: HandOver, work: Vector) -> Vector:
        self._merged += hand_over.tokens
        self._dropped.subtract(hand_over.dropped)
        if hand_over.encoded_error is not None:
            self.residual = hand_over.encoded_error
        if hand_over.work is None:
            return work
        self._pending_tokens -= hand_over.kept_tokens
        self._pending_steps -= hand_over.kept_steps
        self._oldest_version = hand_over.base_version
        return np.subtract(work, hand_over.work)

    def _take_back(self, hand_over: HandOver, work: Vector) -> Vector:
        self._merged -= hand_over.tokens
        if hand_over.work is None:
            hand_over.dropped["reorganised"] += hand_over.kept_tokens
            hand_over.kept_tokens = hand_over.kept_steps = 0
        self._dropped.update(hand_over.dropped)
        if hand_over.work is None:
            return work
        self.residual = hand_over.residual
        self._oldest_version = hand_over.oldest_version
        self._pending_tokens += hand_over.kept_tokens
        self._pending_steps += hand_over.kept_steps
        return np.add(work, hand_over.work)

    def _forget(self) -> None:
        """Forget hand-overs that no chain we may still adopt can hold, and the values of those merged long ago."""
        for hand_over in self._included[:-NUM_RETAINED]:
            hand_over.work = hand_over.residual = hand_over.encoded_error = None
        final, self._included = self._included[: -self.max_reorg - 1], self._included[-self.max_reorg - 1 :]
        oldest = self.version - self.max_staleness - self.max_reorg
        self._history = [
            one for one in self._history if one in self._included or (one not in final and one.base_version >= oldest)
        ]
