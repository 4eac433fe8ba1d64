"""Whether it is nearly one's turn, in a swarm that is larger than a round. Pure.

A leader seats those who have waited for longest, by the ledger, and every peer has that ledger. So a peer can judge from
the last round how near its turn is: when that round was full and most of its members had waited much longer than this
peer has now, it would only be sent away. If the round was not full, there is room for all.
"""

from statistics import median_low

from p2ptrain.fragments.chain import Commit, Ledger
from p2ptrain.ids import PeerId

NEAR_TURN = 0.5  # of what the last round's members had waited: rounds vary in how many come
STRANGER_INTERVALS = 4.0  # a member that the chain did not know counts as having waited so long, it may be new


def is_far_from_turn(
    peer: PeerId, head: Commit, ledger_before: Ledger | None, ledger: Ledger, *, num_seats: int
) -> bool:
    """Return whether a peer may stay away from the round on `head`, whose ledger is given, and that of its parent.

    A peer that the chain never merged has waited for longest: it always comes.
    """
    entry = ledger.entries.get(peer)
    if entry is None or ledger_before is None or len(head.envelopes) < num_seats:
        return False
    interval = head.committed_at - ledger_before.latest_at
    of_strangers = min(head.committed_at - ledger.created_at, STRANGER_INTERVALS * interval)
    before = [ledger_before.entries.get(member) for member in head.contributors]
    waits = [of_strangers if one is None else head.committed_at - one.merged_at for one in before]
    soon = head.committed_at - entry.merged_at + 2 * interval
    return soon < NEAR_TURN * median_low(waits)
