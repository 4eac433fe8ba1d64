"""One peer of the swarm lies. The others go on, with equal anchors, and it steers nobody."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from p2ptrain.config import load_run_config
from p2ptrain.errors import Refused
from p2ptrain.fragments.chain import Commit
from p2ptrain.fragments.messages import Announce, Done, GetCommits, GetSnapshot, GetUpdate, Head, Snapshot
from p2ptrain.fragments.pure import pack_snapshot
from p2ptrain.fragments.state import FragmentState
from p2ptrain.ids import Digest, PeerId, digest
from p2ptrain.net.identity import Identity
from p2ptrain.peer import Peer
from p2ptrain.sim.swarm import SimSwarm
from p2ptrain.wire.codecs import CODECS

CONFIG = load_run_config("sim-quadratic")


class Liar:
    """A member of the swarm that says what it likes about fragment 0."""

    def __init__(self, swarm: SimSwarm, host: str) -> None:
        self.peer: Peer = swarm.peers[host]
        self.identity: Identity = swarm.identity(host)
        self.archive = self.peer.chains.followers[0].archive

    def answer(self, request: type, handler: object) -> None:
        """Answer a kind of request by a handler of ours from now on."""
        self.peer.transport._handlers._methods.pop(request.method, None)  # type: ignore[attr-defined]
        self.peer.transport.handle(request, handler)  # type: ignore[type-var, arg-type]

    async def announce(self, head: Commit | Digest, work: int, *, inline: bool = True) -> None:
        """Tell everybody of a head."""
        head_digest = head.digest if isinstance(head, Commit) else head
        data = head.to_bytes() if isinstance(head, Commit) and inline else b""
        message = Announce(head=Head(fragment=0, digest=head_digest, total_work=work), commit=data)
        for peer in self.peer.transport.connected():
            await self.peer.transport.call(peer, message, Done, timeout=5.0)

    def child(self, **changes: object) -> Commit:
        """Return a signed commit on our head, like the head but for these fields."""
        head = self.archive.head
        fields = {
            "parent": head.digest, "version": head.version + 1, "leader": self.peer.peer_id, "next": (self.peer.peer_id,),
            "committed_at": head.committed_at + 1.0, **changes,
        }  # fmt: skip
        return replace(head, **fields).signed_by(self.identity)


async def start(swarm: SimSwarm, num_peers: int = 4) -> Liar:
    """Start a swarm; its last peer lies, and takes no part in rounds any more."""
    await swarm.host()
    for _ in range(num_peers - 1):
        host = await swarm.join()
    await swarm.commits(2)
    liar = Liar(swarm, host)
    liar.peer.learner.pause()  # type: ignore[union-attr]
    return liar


async def honest_go_on(swarm: SimSwarm, liar: Liar) -> None:
    """The others make commits of every fragment, and in the end agree."""
    name = swarm.hosts[liar.peer.peer_id]
    await swarm.commits(3)
    swarm.kill(name)
    await swarm.commits(1)
    await swarm.settle()
    assert swarm.heads_agree() and len(swarm.peers) == 3


@pytest.mark.parametrize("committed_at", [1e308, 1e12])
def test_a_commit_from_the_end_of_time_stops_nobody(committed_at: float) -> None:
    swarm = SimSwarm(CONFIG, seed=1)

    async def story() -> None:
        liar = await start(swarm)
        forged = liar.child(committed_at=committed_at, total_work=liar.archive.head.total_work + 10**6)
        await liar.announce(forged, forged.total_work)
        await honest_go_on(swarm, liar)

    swarm.run(story())
    assert swarm.of_kind("head-dropped")


def test_claims_of_endless_work_that_nobody_can_fetch_stop_nobody() -> None:
    swarm = SimSwarm(CONFIG, seed=2)

    async def stall(_sender: PeerId, _request: GetCommits, _body: bytearray) -> Done:
        await asyncio.sleep(1e6)
        return Done()

    async def busy(_sender: PeerId, _request: GetSnapshot, _body: bytearray) -> Snapshot:
        raise Refused("busy", "come back in thirty years", retry_after=1e9)

    async def story() -> None:
        liar = await start(swarm)
        liar.answer(GetCommits, stall)
        liar.answer(GetSnapshot, busy)
        for number in range(20):
            await liar.announce(digest("nothing", bytes([number])), 2**59 + number)
        await honest_go_on(swarm, liar)

    swarm.run(story())


def test_a_chain_out_of_nowhere_is_not_believed_from_one_peer() -> None:
    swarm = SimSwarm(CONFIG, seed=3)

    async def story() -> None:
        liar = await start(swarm)
        state = liar.archive.state
        forged_state = FragmentState(np.full_like(state.anchor, 7.0), state.moments, state.ledger)
        forged = liar.child(
            parent=digest("commit", b"nowhere"),
            version=liar.archive.head.version + 18,
            state=forged_state.digest,
            total_work=2**58,
        )
        commit_bytes, data = pack_snapshot(forged, forged_state)

        async def serve(_sender: PeerId, _request: GetSnapshot, _body: bytearray) -> tuple[Snapshot, bytes]:
            return Snapshot(commit_bytes=commit_bytes), data

        liar.answer(GetSnapshot, serve)
        await liar.announce(forged, forged.total_work, inline=False)
        newcomer = await swarm.join()  # asks everybody, the liar too
        assert not np.any(swarm.peers[newcomer].anchors()[0].anchor == 7.0)
        swarm.kill(newcomer)
        await honest_go_on(swarm, liar)

    swarm.run(story())
    assert not swarm.of_kind("resync")


def test_a_leader_that_signs_a_false_state_is_not_followed_whatever_it_serves() -> None:
    swarm = SimSwarm(CONFIG, seed=4)

    async def story() -> None:
        liar = await start(swarm)
        head, state = liar.archive.head, liar.archive.state
        update = np.zeros_like(state.anchor)
        data = CODECS[CONFIG.codec.down].encode(update)
        envelope = replace(
            head.envelopes[0], base=head.digest, peer=liar.peer.peer_id, after_step=state.ledger.last_step(liar.peer.peer_id),
            last_step=state.ledger.last_step(liar.peer.peer_id) + 10, steps=10, tokens=10**6, oldest_version=head.version,
        ).signed_by(liar.identity)  # fmt: skip
        forged_state = FragmentState(np.full_like(state.anchor, 5.0), state.moments, state.ledger)
        forged = liar.child(
            envelopes=(envelope,), update=digest("update", data), state=forged_state.digest,
            total_work=head.total_work + state.ledger.work(envelope, head.committed_at + 1.0, CONFIG.limits),
        )  # fmt: skip
        commit_bytes, snapshot = pack_snapshot(forged, forged_state)

        async def serve_snapshot(_sender: PeerId, _request: GetSnapshot, _body: bytearray) -> tuple[Snapshot, bytes]:
            return Snapshot(commit_bytes=commit_bytes), snapshot

        async def serve_update(_sender: PeerId, _request: GetUpdate, _body: bytearray) -> tuple[Done, bytes]:
            return Done(), data

        liar.answer(GetSnapshot, serve_snapshot)
        liar.answer(GetUpdate, serve_update)
        await liar.announce(forged, forged.total_work)
        await asyncio.sleep(1.0)
        others = [peer for peer in swarm.peers.values() if peer is not liar.peer]
        assert not any(np.all(peer.anchors()[0].anchor == 5.0) for peer in others)
        await honest_go_on(swarm, liar)

    swarm.run(story())
    assert swarm.of_kind("state-mismatch") or swarm.of_kind("head-dropped")


def test_a_peer_that_was_cut_off_for_long_comes_back_to_the_others() -> None:
    swarm = SimSwarm(CONFIG, seed=5)

    async def story() -> None:
        await start(swarm)
        hosts = list(swarm.peers)
        swarm.world.network.partition(hosts[:1], hosts[1:])
        await asyncio.sleep(90.0)
        swarm.world.network.heal()
        await swarm.commits(3)
        await swarm.settle()
        assert swarm.heads_agree() and len(swarm.peers) == 4

    swarm.run(story())
    assert swarm.of_kind("resync")


def test_a_host_that_lost_one_fragments_file_keeps_the_others() -> None:
    swarm = SimSwarm(CONFIG, seed=6)

    async def story() -> None:
        host = await swarm.host()
        await asyncio.sleep(45.0)  # longer than between two saves
        swarm.kill(host)
        disk = swarm.disk(host)
        disk.delete(next(name for name in disk.names() if name.endswith("fragment-1.snapshot")))
        await swarm.resume(host)
        versions = swarm.versions()
        assert versions[1] == 0 and min(versions[0], versions[2], versions[3]) > 5

    swarm.run(story())


def test_a_peer_that_lost_its_step_numbers_contributes_again() -> None:
    swarm = SimSwarm(CONFIG, seed=7)

    async def story() -> None:
        await swarm.host()
        other = await swarm.join()
        await swarm.commits(3)
        swarm.kill(other)
        await asyncio.sleep(5.0)
        disk = swarm.disk(other)
        disk.delete(next(name for name in disk.names() if name.endswith("steps.msgpack")))
        await swarm.restart(other)
        await swarm.commits(3)
        me = swarm.peers[other].peer_id
        assert all(me in follower.archive.head.contributors for follower in swarm.peers[other].chains.followers)

    swarm.run(story())


def well_formed_child(liar: Liar, committed_at: float) -> tuple[Commit, bytes]:
    """Return a commit on the liar's head that breaks no rule but, perhaps, that of its time; and its update's bytes."""
    head, state, me = liar.archive.head, liar.archive.state, liar.peer.peer_id
    data = CODECS[CONFIG.codec.down].encode(np.zeros_like(state.anchor))
    after = state.ledger.last_step(me)
    envelope = replace(
        head.envelopes[0], base=head.digest, peer=me, after_step=after, last_step=after + 10, steps=10, tokens=10**6,
        oldest_version=head.version,
    ).signed_by(liar.identity)  # fmt: skip
    work = head.total_work + state.ledger.work(envelope, committed_at, CONFIG.limits)
    draft = liar.child(envelopes=(envelope,), update=digest("update", data), total_work=work, committed_at=committed_at)
    after_state = state.after(draft, np.zeros_like(state.anchor), CONFIG.outer)
    return replace(draft, state=after_state.digest).signed_by(liar.identity), data


@pytest.mark.parametrize("lie", ["none", "state", "time"])
def test_in_a_quiet_swarm_only_what_is_false_is_refused(lie: str) -> None:
    swarm = SimSwarm(CONFIG, seed=8)

    async def story() -> None:
        liar = await start(swarm)
        await swarm.settle()  # nobody trains any more: the head stays where it is, and the update is replayed
        now = liar.archive.head.committed_at
        forged, data = well_formed_child(liar, now + (10_000.0 if lie == "time" else 1.0))
        if lie == "state":
            forged = replace(forged, state=digest("state", b"another")).signed_by(liar.identity)

        async def serve(_sender: PeerId, _request: GetUpdate, _body: bytearray) -> tuple[Done, bytes]:
            return Done(), data

        liar.answer(GetUpdate, serve)
        await liar.announce(forged, forged.total_work)
        await asyncio.sleep(0.5)
        others = [peer for peer in swarm.peers.values() if peer is not liar.peer]
        adopted = [peer.chains.followers[0].archive.head.digest == forged.digest for peer in others]
        assert all(adopted) if lie == "none" else not any(adopted)

    swarm.run(story())
    assert bool(swarm.of_kind("state-mismatch")) == (lie == "state")
