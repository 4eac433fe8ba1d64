"""What one peer holds of one fragment's history: the adopted head and its state, and the recent past around it.

The recent past is what forks, catching up and other peers need: commits by digest, the ledger at each, and the bytes
of the last updates. All of it is bounded. Nothing here waits or talks; fragments/sync.py does.
"""

from collections import OrderedDict
from typing import TypeVar

from p2ptrain.fragments.chain import Commit, Ledger
from p2ptrain.fragments.state import FragmentState
from p2ptrain.ids import Digest

Value = TypeVar("Value")

MAX_COMMITS = 512  # several times the deepest reorganisation, so that who was away for minutes catches up by commits
MAX_LEDGERS = 64  # ledgers are needed where a fork may begin; limits.max_reorg is 16 in the shipped configs
MAX_UPDATES = 16  # who missed more than this fetches a snapshot anyway


class Archive:
    """The chain of one fragment as one peer sees it."""

    def __init__(self, head: Commit, state: FragmentState) -> None:
        self._commits: OrderedDict[Digest, Commit] = OrderedDict()
        self._ledgers: OrderedDict[Digest, Ledger] = OrderedDict()
        self._updates: OrderedDict[Digest, bytes] = OrderedDict()
        self.head, self.state = head, state
        self.adopt(head, state)

    def adopt(self, commit: Commit, state: FragmentState) -> None:
        """Make a commit the head; its state was checked against its digest."""
        self.head, self.state = commit, state
        self.remember(commit, state.ledger)

    def remember(self, commit: Commit, ledger: Ledger | None = None) -> None:
        """Keep a checked commit (of this chain or of a fork), and its ledger when it is known."""
        _keep(self._commits, commit.digest, commit, MAX_COMMITS)
        if ledger is not None:
            _keep(self._ledgers, commit.digest, ledger, MAX_LEDGERS)

    def remember_update(self, digest: Digest, data: bytes) -> None:
        _keep(self._updates, digest, data, MAX_UPDATES)

    def commit(self, digest: Digest) -> Commit | None:
        return self._commits.get(digest)

    def ledger(self, digest: Digest) -> Ledger | None:
        return self._ledgers.get(digest)

    def update(self, digest: Digest) -> bytes | None:
        return self._updates.get(digest)

    def chain(self, digest: Digest, limit: int) -> list[Commit]:
        """Return at most `limit` commits that end with `digest`, newest first, as far back as they are held."""
        found: list[Commit] = []
        commit = self._commits.get(digest)
        while commit is not None and len(found) < limit:
            found.append(commit)
            commit = self._commits.get(commit.parent)
        return found

    def siblings(self, commit: Commit) -> list[Commit]:
        """Return other known commits on the same parent: each is a fork."""
        return [
            other for other in self._commits.values() if other.parent == commit.parent and other.digest != commit.digest
        ]

    def depth_from_head(self, ancestor: Digest) -> int | None:
        """Return how many commits the head is after `ancestor`, or None when it is not (known to be) on our chain."""
        for depth, commit in enumerate(self.chain(self.head.digest, MAX_COMMITS)):
            if commit.digest == ancestor:
                return depth
        return None


def _keep(store: OrderedDict[Digest, Value], key: Digest, value: Value, limit: int) -> None:
    store[key] = value
    store.move_to_end(key)
    while len(store) > limit:
        store.popitem(last=False)
