"""Ways to break p2ptrain on purpose. A hunt that does not find them would not find the like in earnest.

A mutant is a change in the text of a few functions; one that does not fit the code any more says so.
"""

import inspect
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from p2ptrain.averaging.leader import Leader
from p2ptrain.averaging.member import Member
from p2ptrain.discovery.contacts import Contacts
from p2ptrain.fragments import pure
from p2ptrain.fragments.chain import Ledger
from p2ptrain.fragments.follower import Follower
from p2ptrain.fragments.sync import ChainSync
from p2ptrain.sim import memo


@dataclass(frozen=True)
class Change:
    """In the text of `owner.name`, `before` becomes `after`; the new function is put there, and under each of `aliases`."""

    owner: Any
    name: str
    before: str
    after: str
    aliases: tuple[Any, ...] = ()

    def function(self) -> Any:
        """Return the changed function; AssertionError when the text does not occur exactly once."""
        original = inspect.getattr_static(self.owner, self.name)
        source = textwrap.dedent(inspect.getsource(original))
        assert source.count(self.before) == 1, f"{self.name} no longer has {self.before!r} once: adapt this mutant"
        namespace: dict[str, Any] = {}
        module = sys.modules[original.__module__]
        exec(
            compile(source.replace(self.before, self.after), f"mutant of {self.name}", "exec"), vars(module), namespace
        )
        return namespace[self.name]


@dataclass(frozen=True)
class Mutant:
    name: str
    changes: Sequence[Change]
    is_known_survivor: bool = False
    """It survived earlier tests, and no invariant need see it."""

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Break p2ptrain like this for a while."""
        with ExitStack() as patches:
            for change in self.changes:
                function = change.function()
                for owner in (change.owner, *change.aliases):
                    patches.enter_context(patch.object(owner, change.name, function))
            yield


ADOPT_WHOLE = "self.adopt(commit, state, source=candidate.sources[0] if candidate.sources else None)"
ADOPT_BY_PARTS = (
    "half = state.anchor.copy(); half[half.size // 2 :] = parent_state.anchor[half.size // 2 :]; "
    "self.archive.state = type(state)(half, parent_state.moments, parent_state.ledger); await asyncio.sleep(0.2); "
    + ADOPT_WHOLE
)

MUTANTS = [
    Mutant(
        "no state digest check",
        [
            Change(Follower, "_replay", "if state.digest != commit.state:", "if False:"),
            Change(pure, "parse_snapshot", "if state.digest != commit.state:", "if False:", aliases=(memo,)),
        ],
    ),
    Mutant(
        "no ledger check",
        [Change(Ledger, "refusal", "if envelope.after_step != last_step:", "if False:")],
    ),
    Mutant(
        "signing before holding the bytes",
        [Change(Leader, "_close", "held = await self._let_hold(draft, data, decision.members)", "held = True")],
    ),
    Mutant("applying by parts", [Change(Follower, "_replay", ADOPT_WHOLE, ADOPT_BY_PARTS)]),
    Mutant(
        "accepting an envelope twice",
        [
            Change(
                Ledger, "refusal", "if envelope.after_step != last_step:",
                "if envelope.after_step != last_step and envelope.last_step != last_step:",
            )
        ],
    ),
    Mutant(
        "adopting the lighter chain",
        [
            Change(Follower, "adopt", "if commit.weight <= old.weight:", "if commit.digest == old.digest:"),
            Change(Follower, "offer", "candidate.weight <= self.archive.head.weight", "head_digest == self.archive.head.digest"),
            Change(Follower, "run", "if one.weight > self.archive.head.weight", "if one.digest != self.archive.head.digest"),
        ],
    ),
    Mutant(
        "no re-bootstrap",
        [
            Change(
                Contacts, "refresh", "for contact in self._contacts:",
                "self.met = getattr(self, 'met', False) or bool(connected)\n    for contact in self._contacts:\n"
                "        if self.met:\n            contact.needed.clear()\n            continue",
            )
        ],
    ),
    Mutant(
        "resetting the residual at an abort",
        [
            Change(
                Member, "_send_work", "self._sent = None",
                "self._sent = None; self._learner.accounts[self._fragment.index].residual = None",
            )
        ],
    ),
    Mutant(
        "a newcomer believes the heaviest head, whoever names it",
        [Change(ChainSync, "_fetch_start", "heaviest_first[len(heaviest_first) // 2 :]", "heaviest_first[:]")],
        is_known_survivor=True,
    ),
    Mutant(
        "signing although nobody confirmed that it holds the bytes",
        [Change(Leader, "_close", "if not held:", "if False:")],
        is_known_survivor=True,
    ),
    Mutant(
        "contributing however few steps there are",
        [Change(Member, "call", "max(1, self._config.rounds.inner_steps // 10)", "1")],
        is_known_survivor=True,
    ),
]  # fmt: skip
