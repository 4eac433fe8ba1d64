"""Whether what a peer holds is within the bounds that the code names. Cheap: lengths only."""

from collections.abc import Iterator

from p2ptrain.discovery.view import MAX_MEMBERS
from p2ptrain.fragments.archive import MAX_COMMITS, MAX_LEDGERS, MAX_UPDATES
from p2ptrain.fragments.follower import MAX_CANDIDATES_PER_PEER, Follower
from p2ptrain.net.outbox import MAX_WAITING_FRAMES
from p2ptrain.net.pool import MAX_RETIRING
from p2ptrain.net.streams import MAX_CALLS, MAX_SERVED
from p2ptrain.peer import Peer
from p2ptrain.training.learner import Learner

MAX_HAND_OVERS_PER_VERSION = 4  # attempts at one commit; each makes at most one hand-over of a fragment
MAX_INBOX = 64  # of a learner per fragment: what adoptions and calls can put there in one inner step of a minute

Quantity = tuple[str, int, int]  # what, how many, at most


def excess(peer: Peer) -> str | None:
    """Return the first thing that a peer has too many of, as a sentence, or None."""
    for what, count, limit in quantities(peer):
        if count > limit:
            return f"{count} {what}; at most {limit}"
    return None


def quantities(peer: Peer) -> Iterator[Quantity]:
    """Yield everything that is bounded, with its bound."""
    view = peer.members._roster.view
    yield "members in the view", len(view), MAX_MEMBERS
    yield "live members", len(peer.members.live()), MAX_MEMBERS
    connector, pool = peer.transport._connector, peer.transport._pool
    sessions = pool.sessions
    yield "connections", len(sessions), pool._max_connections + MAX_RETIRING
    yield "handshakes of diallers", len(connector._handshakes), connector._max_handshakes
    for session in sessions:
        yield "frames waiting to be written", len(session._outbox._control), MAX_WAITING_FRAMES + MAX_SERVED
        yield "streams of one connection", len(session._calls._streams), MAX_CALLS + MAX_SERVED
    for follower in peer.chains.followers:
        yield from _of_follower(follower, len(view) + len(sessions) + 1)
    if peer.learner is not None:
        yield from _of_learner(peer.learner)


def _of_follower(follower: Follower, num_peers: int) -> Iterator[Quantity]:
    archive = follower.archive
    yield "commits in an archive", len(archive._commits), MAX_COMMITS
    yield "ledgers in an archive", len(archive._ledgers), MAX_LEDGERS
    yield "updates in an archive", len(archive._updates), MAX_UPDATES
    yield "heads to follow", len(follower._candidates), MAX_CANDIDATES_PER_PEER * num_peers


def _of_learner(learner: Learner) -> Iterator[Quantity]:
    yield "requests in a learner's inbox", len(learner._inbox), MAX_INBOX * len(learner.accounts)
    for account in learner.accounts:
        kept_versions = account.max_staleness + account.max_reorg
        yield "hand-overs that are kept", len(account._history), MAX_HAND_OVERS_PER_VERSION * (kept_versions + 1)
        yield "merged hand-overs that are kept", len(account._included), account.max_reorg + 1
