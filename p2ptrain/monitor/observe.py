"""What can be seen of a running peer: its status at a moment, and the final account that a supervisor asks for."""

import math
from typing import Any

from p2ptrain.ids import digest, format_run_id
from p2ptrain.monitor.snapshot import MAX_MEMBERS_NAMED, HeadStatus, PeerStatus
from p2ptrain.peer import Peer

MAX_REASON = 1000  # characters: eight addresses with a reason each


def status_of(peer: Peer) -> PeerStatus:
    """Return the peer as it sees itself and the swarm now."""
    heads = [follower.archive.head for follower in peer.chains.followers]
    progress = peer.learner.progress if peer.learner else None
    tallies = peer.learner.tallies() if peer.learner else []
    counters = peer.transport.counters()
    loss, version = peer.latest_validation
    return PeerStatus(
        peer=peer.peer_id,
        run=format_run_id(peer.run_id),
        run_name=peer.manifest.config.name,
        role="trainer" if peer.learner else "bootstrap",
        phase=_phase(peer),
        link=str(peer.join_link()),
        trainers_alive=peer.num_live_trainers(),
        in_the_round=max(len(head.contributors) for head in heads),
        merged=min(len(head.contributors) for head in heads),
        heads=tuple(
            HeadStatus(
                fragment=head.fragment, version=head.version, digest=head.digest.hex(), total_work=head.total_work,
                contributors=len(head.contributors),
            )
            for head in heads
        ),
        inner_steps=progress.inner_steps if progress else 0,
        tokens=progress.tokens if progress else 0,
        tokens_merged=max(0, sum(tally.merged for tally in tallies) // max(1, len(tallies))),
        tokens_per_second=peer.members.own_record.tokens_per_second,
        loss=progress.loss if progress else math.nan,
        learning_rate=progress.learning_rate if progress else 0.0,
        utilisation=progress.utilisation if progress else 0.0,
        validation_loss=loss,
        validation_version=version,
        isolated_since=peer.members.isolated_since,
        num_connections=counters["num_connections"],
        bytes_sent=counters["bytes_sent"],
        bytes_received=counters["bytes_received"],
        members=tuple(map(str, peer.members.dialable()[:MAX_MEMBERS_NAMED])),
        undialable=_undialable(peer),
        can_be_dialled=peer.members.own_record.reachable,
        not_dialled_because=peer.members.reachability.verdict.why[:MAX_REASON],
    )  # fmt: skip


def _undialable(peer: Peer) -> tuple[str, ...]:
    """Return the others that are alive and that nobody can dial, so that whoever asks the swarm misses them by name."""
    hidden = [record.peer for record in peer.members.live() if record.reachable is False]
    return tuple(hidden[:MAX_MEMBERS_NAMED])


def _phase(peer: Peer) -> str:
    if peer.members.isolated_since is not None:
        return "isolated"
    if peer.learner is None:
        return "helping others to meet"
    return "draining" if peer.learner.is_paused else "training"


async def report(peer: Peer, *, rss_bytes: int) -> None:
    """Emit the event `report`: heads, books, and digests of the anchors recomputed from what is in memory now."""
    validation_loss = await peer.validate()
    learner = peer.learner
    progress = learner.progress if learner else None
    counters = peer.transport.counters()
    peer.events.emit(
        "report",
        peer=peer.peer_id,
        inner_steps=progress.inner_steps if progress else 0,
        tokens=progress.tokens if progress else 0,
        utilisation=progress.utilisation if progress else 0.0,
        heads=[_head(peer, index) for index in range(len(peer.chains.followers))],
        tallies=[
            {"trained": tally.trained, "merged": tally.merged, "pending": tally.pending, "dropped": tally.dropped}
            for tally in (learner.tallies() if learner else [])
        ],
        validation_loss=validation_loss,
        bytes_sent=counters["bytes_sent"],
        bytes_received=counters["bytes_received"],
        rss_bytes=rss_bytes,
    )


def _head(peer: Peer, index: int) -> dict[str, Any]:
    archive = peer.chains.followers[index].archive
    anchor = archive.state.to_buffers()[0]
    return {
        "fragment": index,
        "version": archive.head.version,
        "commit": archive.head.digest.hex(),
        "total_work": archive.head.total_work,
        "state": archive.state.recompute_digest().hex(),
        "anchor": digest("anchor", anchor).hex(),
    }
