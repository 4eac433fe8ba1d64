"""What came before the commit that a peer began with, learnt when a fork turns out to be older than that.

A newcomer begins with one commit and the ledger after it. If its chain loses against one that branched off before that
commit, it can judge that by the same rules as everybody else once it knows what came before. The commits before are
linked to its own by digest, so nobody who gives them can lie. The ledgers follow backwards: an envelope says after which
step it began, and the last commit before it that merged the same peer says when that was.
"""

from collections.abc import Sequence

from p2ptrain.fragments.chain import Commit, Ledger, LedgerEntry


def ledgers_before(ledger: Ledger, commits: Sequence[Commit]) -> list[tuple[Commit, Ledger]]:
    """Return the commits before the last one, newest first, each with the ledger after it.

    `commits` are oldest first, each the parent of the next; `ledger` is the one after the last of them. It goes as far
    back as the ledgers can be told: a peer that was merged before all of these commits ends it.
    """
    entries = dict(ledger.entries)
    found: list[tuple[Commit, Ledger]] = []
    for index in range(len(commits) - 1, 0, -1):
        for envelope in commits[index].envelopes:
            if envelope.after_step == 0:
                entries.pop(envelope.peer, None)
                continue
            before = next((one for one in commits[index - 1 :: -1] if envelope.peer in one.contributors), None)
            if before is None:
                return found
            entries[envelope.peer] = LedgerEntry(envelope.after_step, before.committed_at)
        found.append((commits[index - 1], Ledger(ledger.created_at, dict(entries))))
    return found
