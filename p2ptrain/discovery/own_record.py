"""What this peer says about itself: always newer than anything it ever said.

Instants grow with every record, even when the clock steps back, except when it was so far ahead that nobody believed
us: a machine that starts with a wrong clock is heard as soon as that is set right. A record of our own key that comes back from the
swarm and is newer than ours (from before a restart, with a faster clock) is outbid by a newer one.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from p2ptrain.discovery.records import MAX_CLOCK_SKEW, MAX_LIFETIME, MemberRecord
from p2ptrain.ids import RunId
from p2ptrain.net.identity import Identity
from p2ptrain.runtime import Address, Clock

TICK: Final = 0.001  # seconds between two records at least, by their own account


class OwnRecord:
    """The newest record of this peer, and its signed bytes."""

    def __init__(
        self, *, clock: Clock, identity: Identity, run_id: RunId, role: str, addresses: Sequence[Address]
    ) -> None:
        self._clock, self._identity = clock, identity
        self.record = MemberRecord(
            peer=identity.peer_id,
            run_id=run_id,
            addresses=tuple(addresses),
            role=role,
            issued_at=clock.wall(),
            sequence=0,
            lifetime=MAX_LIFETIME,
        )
        self.signed = self.record.to_bytes(identity)

    def issue(self, **changes: Any) -> bytes:
        """Sign and return a newer record with some fields changed."""
        now, next_at = self._clock.wall(), self.record.issued_at + TICK
        self.record = replace(
            self.record,
            issued_at=max(now, next_at) if next_at <= now + MAX_CLOCK_SKEW else now,
            sequence=self.record.sequence + 1,
            **changes,
        )
        self.signed = self.record.to_bytes(self._identity)
        return self.signed

    def outbid(self, echo: MemberRecord) -> bool:
        """Issue a record newer than `echo`, one of our own, if it is newer than ours; return whether it was."""
        if echo.age_key <= self.record.age_key:
            return False
        self.record = replace(self.record, issued_at=echo.issued_at, sequence=echo.sequence)
        self.issue()
        return True
