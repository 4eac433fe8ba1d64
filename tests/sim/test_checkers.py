"""Each checker complains when its rule is broken on purpose, and is silent while it is kept."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest

from p2ptrain.averaging.leader import Leader
from p2ptrain.config import load_run_config
from p2ptrain.explore.lies import LIES, Liar
from p2ptrain.fragments.archive import MAX_COMMITS
from p2ptrain.fragments.chain import Ledger
from p2ptrain.fragments.state import FragmentState
from p2ptrain.ids import Digest, digest
from p2ptrain.peer import Peer
from p2ptrain.sim.checkers import GRACE, LOOK_INTERVAL, Violation
from p2ptrain.sim.swarm import SimSwarm
from p2ptrain.training.accounts import FragmentAccount

CONFIG = load_run_config("sim-quadratic")
LONG = GRACE + 2 * LOOK_INTERVAL

Breaking = Callable[[SimSwarm, Peer], Coroutine[None, None, None]]


def run(breaking: Breaking, *, seed: int = 5, num_commits: int = 3) -> SimSwarm:
    """Let four peers make some commits, break something of one of them, and let them go on."""
    swarm = SimSwarm(CONFIG, seed=seed)

    async def story() -> None:
        await swarm.host()
        for _ in range(3):
            await swarm.join()
        await swarm.commits(num_commits)
        await breaking(swarm, list(swarm.peers.values())[2])

    swarm.run(story())
    return swarm


def violation_of(breaking: Breaking, rule: str, *, seed: int = 5) -> Violation:
    with pytest.raises(Violation) as caught:
        run(breaking, seed=seed)
    assert caught.value.rule == rule, caught.value
    return caught.value


def host_of(swarm: SimSwarm, peer: Peer) -> str:
    return swarm.hosts[peer.peer_id]


def test_nothing_is_wrong_with_a_swarm_in_which_peers_die_leave_and_are_cut_off() -> None:
    async def trouble(swarm: SimSwarm, peer: Peer) -> None:
        host, other = host_of(swarm, peer), list(swarm.peers)[3]
        swarm.kill(host)
        await swarm.leave(other)
        await swarm.join()
        await asyncio.sleep(LONG)
        await swarm.restart(host)
        cut = swarm.world.network.partition([host], [one for one in swarm.peers if one != host])
        await asyncio.sleep(8.0)
        swarm.world.network.heal(cut)
        await swarm.commits(2)
        await swarm.settle()

    swarm = run(trouble)
    assert swarm.checkers.violation is None and swarm.checkers.num_adoptions > 50


def test_bytes_in_memory_that_change_are_seen() -> None:
    async def corrupt(swarm: SimSwarm, peer: Peer) -> None:
        for other in swarm.peers.values():  # one is looked at each time, by chance
            for state in other.anchors():
                state.anchor.setflags(write=True)
                state.anchor[7] += 1.0
        await asyncio.sleep(LOOK_INTERVAL + 0.1)

    violation = violation_of(corrupt, "anchor")
    assert "seed 5" in str(violation) and "said last" in str(violation) and "adopted" in str(violation)


def test_a_violation_ends_the_story_at_once() -> None:
    ended_at: list[float] = []

    async def corrupt(swarm: SimSwarm, peer: Peer) -> None:
        try:
            assert peer.learner is not None
            peer.learner.accounts[0]._trained += 1
            await asyncio.sleep(1e6)
        finally:
            ended_at.append(asyncio.get_running_loop().time())

    violation = violation_of(corrupt, "tokens")
    assert ended_at[0] - violation.at < 0.1 and violation.at < 20.0 and f"{violation.at:.3f} s" in str(violation)


def test_a_head_that_becomes_lighter_is_seen() -> None:
    async def go_back(swarm: SimSwarm, peer: Peer) -> None:
        follower = peer.chains.followers[0]
        before = follower.archive.head, follower.archive.state
        await swarm.commits(1)
        genesis = swarm.peers[swarm.host_names[0]].manifest.genesis_commit(0)
        follower.archive.head = genesis
        follower.adopt(*before)

    violation_of(go_back, "weight")


def tell_lie(lie: str) -> Breaking:
    async def telling(swarm: SimSwarm, peer: Peer) -> None:
        host = host_of(swarm, peer)
        swarm.checkers.tell_lies(host)
        liar = Liar(peer, swarm.identity(host), CONFIG, random.Random(1))
        liar.begin(lie)
        await asyncio.sleep(10.0)
        liar.stop()
        await swarm.commits(1)
        await swarm.settle()

    return telling


@pytest.mark.parametrize("lie", LIES)
def test_lies_of_a_peer_harm_nobody(lie: str) -> None:
    swarm = run(tell_lie(lie))
    refusals = {
        "replay": "contribution-refused",
        "state": "head-dropped",
        "twice": "head-dropped",
        "work": "head-dropped",
    }
    assert swarm.checkers.violation is None
    assert lie not in refusals or swarm.of_kind(refusals[lie])


@pytest.mark.parametrize("lie", ["twice", "replay"])
def test_steps_that_a_chain_counts_twice_are_seen(lie: str) -> None:
    with patch.object(Ledger, "refusal", lambda self, envelope: None):
        violation_of(tell_lie(lie), "ledger")


def test_a_chain_out_of_nowhere_is_seen() -> None:
    async def adopt(swarm: SimSwarm, peer: Peer) -> None:
        follower = peer.chains.followers[0]
        head, state = follower.archive.head, follower.archive.state
        forged = replace(head, parent=digest("commit", b"nowhere"), total_work=2**50)
        follower.adopt(forged, state)

    assert "parent" in violation_of(adopt, "ledger").what


def test_a_commit_whose_bytes_only_its_leader_has_is_seen() -> None:
    async def hold(self: Leader, *_arguments: object) -> bool:
        return True

    async def wait(swarm: SimSwarm, peer: Peer) -> None:
        await swarm.commits(3)

    with patch.object(Leader, "_let_hold", hold):
        violation_of(wait, "holder")


def test_tokens_that_the_chain_does_not_have_are_seen_when_all_is_settled() -> None:
    async def boast(swarm: SimSwarm, peer: Peer) -> None:
        assert peer.learner is not None
        peer.learner.accounts[1]._trained += 128
        peer.learner.accounts[1]._merged += 128
        await swarm.settle()

    assert "the chain holds" in violation_of(boast, "tokens").what


def test_a_residual_that_vanishes_is_seen() -> None:
    async def reset(swarm: SimSwarm, peer: Peer) -> None:
        assert peer.learner is not None and peer.learner.accounts[0].residual is not None
        peer.learner.accounts[0].residual = None
        await asyncio.sleep(2 * LOOK_INTERVAL)

    violation_of(reset, "work")


def test_work_that_an_adoption_loses_is_seen() -> None:
    merge = FragmentAccount._merge

    def lossy(self: FragmentAccount, hand_over: object, work: np.ndarray) -> np.ndarray:
        return merge(self, hand_over, work) * np.float32(0.9)  # type: ignore[arg-type]

    async def wait(swarm: SimSwarm, peer: Peer) -> None:
        await swarm.commits(2)

    with patch.object(FragmentAccount, "_merge", lossy):
        violation_of(wait, "work")


def kill_with(leave_behind: Callable[[SimSwarm, str], object]) -> Breaking:
    async def killing(swarm: SimSwarm, peer: Peer) -> None:
        host = host_of(swarm, peer)
        process = swarm.world.process(host)
        kept = leave_behind(swarm, host)
        swarm.kill(host)
        if kept is not None:
            swarm.world.network.site(host).streams[kept] = None  # type: ignore[index]
        await asyncio.sleep(LONG)
        assert not process.alive

    return killing


def a_task(swarm: SimSwarm, host: str) -> None:
    asyncio.create_task(asyncio.sleep(1e5), context=swarm.world.process(host).context, name="forgotten")


def a_timer(swarm: SimSwarm, host: str) -> None:
    asyncio.get_running_loop().call_later(1e5, print, context=swarm.world.process(host).context)


def a_connection(swarm: SimSwarm, host: str) -> object:
    return swarm.world.network.connections(host)[0]


@pytest.mark.parametrize(
    ("left_behind", "words"), [(a_task, "forgotten"), (a_timer, "timer"), (a_connection, "1 connections")]
)
def test_what_outlives_its_process_is_seen(left_behind: Callable[[SimSwarm, str], object], words: str) -> None:
    violation = violation_of(kill_with(left_behind), "leaks")
    assert words in violation.what and "after its end" in violation.what


def test_what_ends_within_a_while_is_no_leak() -> None:
    def a_short_task(swarm: SimSwarm, host: str) -> None:
        asyncio.create_task(asyncio.sleep(GRACE / 2), context=swarm.world.process(host).context)

    run(kill_with(a_short_task))


def test_an_archive_without_bounds_is_seen() -> None:
    async def hoard(swarm: SimSwarm, peer: Peer) -> None:
        archive = peer.chains.followers[0].archive
        for number in range(MAX_COMMITS + 1):
            archive._commits[Digest(digest("commit", str(number).encode()))] = archive.head
        await asyncio.sleep(LOOK_INTERVAL + 0.1)

    assert f"at most {MAX_COMMITS}" in violation_of(hoard, "bounds").what


def test_two_heads_after_the_end_are_seen() -> None:
    async def part(swarm: SimSwarm, peer: Peer) -> None:
        hosts = list(swarm.peers)
        swarm.checkers.check_convergence(list(swarm.peers.values())[:1], 0.0)
        swarm.world.network.partition(hosts[:2], hosts[2:])
        await asyncio.sleep(15.0)
        swarm.checkers.check_convergence(list(swarm.peers.values()), 15.0)

    violation = violation_of(part, "convergence")
    assert "15 s after the last fault" in violation.what and "on version" in violation.what


def test_a_state_is_digested_from_its_bytes_whatever_is_cached() -> None:
    state = FragmentState(np.zeros(4, np.float32), np.zeros(0, np.float32), Ledger(0.0, {}))
    cached = state.digest
    state.anchor.setflags(write=True)
    state.anchor[0] = 1.0
    assert digest("state", *state.to_buffers()) != cached == state.digest
