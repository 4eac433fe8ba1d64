"""From a plan that fails to a small one that fails in the same way.

Faults that never found their moment go first, then halves, quarters and single faults (delta debugging, Zeller and
Hildebrandt 2002), then time and peers. A smaller plan counts when the same checker complains.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from p2ptrain.explore.plan import Plan, PlannedFault
from p2ptrain.explore.story import Outcome

MAX_ATTEMPTS: Final = 80
LEAST_SECONDS: Final = 60.0
FEWER_PEERS: Final = (3, 4, 5, 6)

Attempt = Callable[[Plan], Awaitable[Outcome]]


class Shrinker:
    """Makes a failing plan smaller; `attempt` runs a plan."""

    def __init__(self, attempt: Attempt, outcome: Outcome, say: Callable[[str], None] = lambda words: None) -> None:
        self._attempt, self._say = attempt, say
        self.smallest = outcome
        self.num_attempts = 0

    async def shrink(self) -> Outcome:
        """Return what became of the smallest plan that was found."""
        hit = {number for number, _, _ in self.smallest.hits}
        await self._try_faults([fault for fault in self.smallest.plan.faults if fault.number in hit])
        await self._drop_faults()
        await self._shorten()
        for peers in FEWER_PEERS:
            if peers < self.smallest.plan.peers and await self._try(peers=peers):
                break
        await self._drop_faults()
        return self.smallest

    async def _drop_faults(self) -> None:
        """Leave out ever smaller parts of the faults, as long as it still fails."""
        size = max(1, len(self.smallest.plan.faults) // 2)
        while self.smallest.plan.faults:
            start = 0
            while start < len(self.smallest.plan.faults):
                faults = self.smallest.plan.faults
                if not await self._try_faults([*faults[:start], *faults[start + size :]]):
                    start += size
            if size == 1:
                return
            size //= 2

    async def _shorten(self) -> None:
        plan = self.smallest.plan
        last_hit = max((at for _, _, at in self.smallest.hits), default=0.0)
        for seconds in (last_hit + 5.0, last_hit + 30.0, last_hit + 90.0, self.smallest.at):
            if LEAST_SECONDS <= seconds < plan.seconds and await self._try(minutes=round(seconds / 60.0, 3)):
                return

    async def _try_faults(self, faults: Sequence[PlannedFault]) -> bool:
        return len(faults) < len(self.smallest.plan.faults) and await self._try(faults=list(faults))

    async def _try(self, **changes: object) -> bool:
        if self.num_attempts >= MAX_ATTEMPTS:
            return False
        self.num_attempts += 1
        outcome = await self._attempt(self.smallest.plan.model_copy(update=changes))
        if outcome.rule != self.smallest.rule:
            return False
        self.smallest = outcome
        plan = outcome.plan
        self._say(f"still fails with {len(plan.faults)} faults, {plan.minutes:g} minutes, {plan.peers} peers")
        return True
