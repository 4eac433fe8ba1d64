"""Who leads follows who can be dialled: stories of a swarm in which most peers sit behind home routers."""

import asyncio

from p2ptrain.config import load_run_config
from p2ptrain.monitor.observe import status_of
from p2ptrain.monitor.view import plain_line
from p2ptrain.sim.ports import WALL_START
from p2ptrain.sim.swarm import SimSwarm

CONFIG = load_run_config("sim-quadratic")


def reachable(swarm: SimSwarm, host: str) -> bool | None:
    return swarm.peers[host].members.own_record.reachable


def leaders(swarm: SimSwarm, after: float = 0.0) -> set[str]:
    """Return the hosts that made a commit that others adopted, later than so many seconds."""
    adopted = [event for event in swarm.of_kind("adopted") if event["committed_at"] > WALL_START + after]
    return {swarm.hosts[event["leader"]] for event in adopted if event["version"] > 0}


def named(swarm: SimSwarm) -> set[str]:
    """Return the hosts that the present heads name as leaders and deputies."""
    heads = [follower.archive.head for peer in swarm.peers.values() for follower in peer.chains.followers]
    return {swarm.hosts[peer] for head in heads for peer in head.next}


def contributors(swarm: SimSwarm) -> set[str]:
    heads = [follower.archive.head for peer in swarm.peers.values() for follower in peer.chains.followers]
    return {swarm.hosts[peer] for head in heads for peer in head.contributors}


def test_hidden_peers_never_lead_and_public_ones_take_turns() -> None:
    swarm = SimSwarm(CONFIG, seed=1)

    async def story() -> None:
        public = [await swarm.host(), await swarm.join(), await swarm.join()]
        hidden = [await swarm.join(hidden=True) for _ in range(4)]
        await swarm.until(lambda: all(reachable(swarm, host) is not None for host in swarm.peers), 10.0)
        assert [host for host in swarm.peers if reachable(swarm, host)] == public
        await swarm.commits(10)
        assert leaders(swarm) == set(public)
        assert contributors(swarm) == {*public, *hidden}
        await swarm.settle()
        assert swarm.heads_agree()

    swarm.run(story())
    assert not swarm.of_kind("fork")


def test_where_only_the_bootstrap_can_be_dialled_it_leads_and_everybody_trains() -> None:
    swarm = SimSwarm(CONFIG, seed=2)

    async def story() -> None:
        host = await swarm.host()
        hidden = [await swarm.join(hidden=True) for _ in range(5)]
        await swarm.commits(3)  # whoever came last has made enough steps for a round
        together_from = max(swarm.versions())
        await swarm.commits(6)
        assert leaders(swarm) == named(swarm) == {host}
        assert contributors(swarm) == {host, *hidden}
        commits = [event for event in swarm.of_kind("round-committed") if event["version"] > together_from]
        assert min(len(event["contributors"]) for event in commits) >= 5
        await swarm.settle()
        assert swarm.heads_agree()

    swarm.run(story())
    assert not swarm.of_kind("fork")


def test_a_bootstrap_that_does_not_train_leads_for_peers_that_nobody_can_dial() -> None:
    swarm = SimSwarm(CONFIG, seed=3)

    async def story() -> None:
        host = await swarm.host(train=False)
        hidden = [await swarm.join(hidden=True) for _ in range(4)]
        await swarm.commits(6)
        assert leaders(swarm) == {host}
        assert contributors(swarm) == set(hidden)
        await swarm.settle()

    swarm.run(story())


def test_when_the_only_public_trainer_dies_the_bootstrap_leads_again() -> None:
    swarm = SimSwarm(CONFIG, seed=4)

    async def story() -> None:
        host = await swarm.host(train=False)
        trainer = await swarm.join()
        for _ in range(3):
            await swarm.join(hidden=True)
        await swarm.until(lambda: trainer in named(swarm), 30.0)
        await swarm.commits(2)
        swarm.kill(trainer)
        died_at = asyncio.get_running_loop().time()
        await swarm.commits(4)
        assert leaders(swarm, after=died_at) == {host}
        await swarm.settle()
        assert swarm.heads_agree()

    swarm.run(story())


def test_a_peer_that_becomes_hidden_is_not_named_any_more() -> None:
    swarm = SimSwarm(CONFIG, seed=5)

    async def story() -> None:
        public = [await swarm.host(), await swarm.join(), await swarm.join(), await swarm.join()]
        await swarm.commits(5)
        moved = public[2]
        assert moved in leaders(swarm)
        swarm.world.network.hide(moved)
        await swarm.until(lambda: reachable(swarm, moved) is False, 90.0)
        await swarm.until(lambda: moved not in named(swarm), 15.0)
        for _ in range(10):
            await swarm.commits(1)
            assert moved not in named(swarm)
        assert moved in contributors(swarm)
        swarm.world.network.show(moved)
        await swarm.until(lambda: moved in named(swarm), 200.0)
        await swarm.settle()

    swarm.run(story())


def test_a_link_names_who_can_be_dialled() -> None:
    swarm = SimSwarm(CONFIG, seed=6)

    async def story() -> None:
        host, other = await swarm.host(), await swarm.join()
        hidden = [await swarm.join(hidden=True) for _ in range(3)]
        await swarm.until(lambda: all(reachable(swarm, one) is False for one in hidden), 15.0)
        await asyncio.sleep(15.0)  # until views have been compared
        for name in hidden:
            assert {swarm.hosts[entry.peer] for entry in swarm.peers[name].join_link().peers} == {host, other}
        assert [swarm.hosts[entry.peer] for entry in swarm.peers[host].join_link().peers] == [host, other]
        for name in (host, other):
            swarm.kill(name)
        await asyncio.sleep(10.0)
        alone = swarm.peers[hidden[0]].join_link().peers
        assert [entry.peer for entry in alone] == [swarm.peers[hidden[0]].peer_id]  # better than no link

    swarm.run(story())


def test_the_status_says_who_can_be_dialled_and_why_not() -> None:
    swarm = SimSwarm(CONFIG, seed=7)

    async def story() -> None:
        host = await swarm.host()
        await swarm.join()
        hidden = await swarm.join(hidden=True)
        await swarm.until(lambda: reachable(swarm, hidden) is False, 15.0)
        await asyncio.sleep(1.0)
        public, behind = status_of(swarm.peers[host]), status_of(swarm.peers[hidden])
        assert plain_line(public).endswith("can be dialled: yes")
        address = swarm.peers[hidden].listening_at
        assert plain_line(behind).endswith(f"can be dialled: no ({address}: timed out)")
        assert public.undialable == (swarm.peers[hidden].peer_id,)
        assert len(public.members) == 1

    swarm.run(story())


def test_a_lone_peer_that_nobody_can_dial_trains_on() -> None:
    swarm = SimSwarm(CONFIG, seed=8)

    async def story() -> None:
        host = await swarm.host()
        hidden = await swarm.join(hidden=True)
        await swarm.until(lambda: reachable(swarm, hidden) is False, 15.0)
        swarm.kill(host)
        await swarm.commits(3)
        assert named(swarm) == {hidden}

    swarm.run(story())
