"""Stories that a scenario file cannot tell: they depend on what exactly has just happened."""

import asyncio

import pytest

from p2ptrain.config import RunConfig, load_run_config
from p2ptrain.errors import IdentityInUseError, P2PTrainError
from p2ptrain.events import Event
from p2ptrain.fragments.chain import Commit
from p2ptrain.sim.swarm import SimSwarm

STEP_SECONDS = 1.0


def config_with(**changes: dict[str, object]) -> RunConfig:
    config = load_run_config("sim-quadratic")
    changes = {"fragments": {"count": 2}, **changes}
    return config.model_copy(
        update={name: getattr(config, name).model_copy(update=keys) for name, keys in changes.items()}
    )


def make_swarm(seed: int, **changes: dict[str, object]) -> SimSwarm:
    print(f"seed {seed}")
    return SimSwarm(config_with(**changes), seed=seed, step_seconds=STEP_SECONDS)


async def start(swarm: SimSwarm, num_peers: int) -> None:
    await swarm.host()
    for _ in range(num_peers - 1):
        await swarm.join()


async def goes_on(swarm: SimSwarm, num_peers: int) -> None:
    """Commits are made, then everything is merged and all agree."""
    await swarm.commits(2)
    await swarm.settle()
    assert swarm.heads_agree() and len(swarm.peers) == num_peers


@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_the_leader_dies_before_during_and_after_the_commit(moment: str) -> None:
    """Before: it asks nobody any more to hold the update. During: held, not signed. After: signed, not announced."""
    swarm = make_swarm(1)
    victims: list[str] = []
    held_by: list[str] = []

    def kill(host: str) -> None:
        if not victims:
            victims.append(host)
            swarm.kill(host)

    def hear_message(host: str, direction: str, method: str) -> None:
        if method == "round.hold" and not held_by:
            if moment == "before" and direction == "send":
                kill(host)
            elif moment == "during" and direction == "receive":
                held_by.append(host)
                leader = next(leader for leader, members in swarm.open_rounds() if leader != host)
                asyncio.get_running_loop().call_later(0.3, kill, leader)

    def hear_event(host: str, event: Event) -> None:
        me = swarm.peers[host].peer_id if host in swarm.peers else ""
        if (
            moment == "after"
            and event.kind == "adopted"
            and event.fields["leader"] == me
            and event.fields["version"] > 2
        ):
            kill(host)

    async def story() -> int:
        await start(swarm, 5)
        await swarm.commits(2)
        for host in swarm.host_names:
            swarm.compute(host).call_seconds = 0.5  # so that signing takes long enough to die in it
        swarm.on_message, swarm.on_event = hear_message, hear_event
        await swarm.until(lambda: bool(victims))
        leader = swarm.identity(victims[0]).peer_id
        num_led = sum(commit.leader == leader for commit in swarm.history.commits.values())
        began_at = asyncio.get_running_loop().time()
        await swarm.commits(1)
        assert asyncio.get_running_loop().time() - began_at < 3 * swarm.interval
        num_led_later = sum(commit.leader == leader for commit in swarm.history.commits.values())
        await swarm.restart(victims[0])
        await goes_on(swarm, 5)
        return num_led_later - num_led

    assert swarm.run(story()) == 0  # what it signed or not, nobody ever adopted a commit of a dead leader


def test_a_commit_whose_bytes_vanish_is_left_alone() -> None:
    """Leader and holder die right after the commit was announced, before anybody else has the update."""
    swarm = make_swarm(2)
    vanished: list[Commit] = []
    dead: list[str] = []

    def hear_event(host: str, event: Event) -> None:
        if event.kind == "round-committed" and event.fields["version"] > 2 and not vanished:
            vanished.append(swarm.peers[host].chains.followers[event.fields["fragment"]].archive.head)

    def hear_message(host: str, direction: str, method: str) -> None:
        if direction == "receive" and method == "chain.announce" and vanished and not dead:
            fragment, update = vanished[0].fragment, vanished[0].update
            for name, peer in list(swarm.peers.items()):
                if peer.chains.followers[fragment].archive.update(update) is not None:
                    dead.append(name)
                    swarm.kill(name)

    async def story() -> None:
        await start(swarm, 6)
        await swarm.commits(2)
        swarm.on_event, swarm.on_message = hear_event, hear_message
        await swarm.until(lambda: bool(dead))
        assert len(dead) == 2  # the leader and the one that held it
        await swarm.commits(1)
        for victim in dead:
            await swarm.restart(victim)
        await goes_on(swarm, 6)
        assert vanished[0].digest.hex() not in {
            one.digest for head in swarm.heads() for one in swarm.history.chain(head)
        }

    swarm.run(story())
    assert any(event["commit"] == vanished[0].digest.hex() for event in swarm.of_kind("head-dropped"))


def test_two_machines_with_one_identity_are_told_apart() -> None:
    swarm = make_swarm(3)

    async def story() -> None:
        await start(swarm, 3)
        await swarm.commits(1)
        original = swarm.host_names[1]
        copy = swarm.new_host()
        swarm.copy_identity(copy, original)
        with pytest.raises(IdentityInUseError, match="in use"):
            await swarm.restart(copy)
        assert original in swarm.peers and copy not in swarm.peers
        await swarm.commits(1)
        swarm.kill(original)
        await asyncio.sleep(30.0)
        await swarm.restart(copy)  # the original is gone: now the copy is that peer, and counts on from its steps
        await goes_on(swarm, 3)
        assert copy in swarm.merged_tokens()

    swarm.run(story())


def test_who_wakes_up_to_find_his_identity_in_use_is_alone_until_it_is_free() -> None:
    """Its user hears that it is isolated. The ledger's checker watches that no step of either counts twice."""
    swarm = make_swarm(4)

    async def story() -> None:
        await start(swarm, 4)
        await swarm.commits(1)
        original = swarm.host_names[1]
        copy = swarm.new_host()
        swarm.copy_identity(copy, original)
        swarm.freeze(original)
        await asyncio.sleep(120.0)
        await swarm.restart(copy)
        await swarm.commits(1)
        swarm.thaw(original)
        await asyncio.sleep(120.0)
        others = [host for host in swarm.peers if host != original]
        assert len(others) == 4 and swarm.peers[original].members.isolated_since is not None
        await swarm.until(lambda: swarm.heads_agree(others))
        assert not swarm.heads_agree()
        swarm.kill(copy)
        await swarm.until(swarm.heads_agree, timeout=300.0)
        assert swarm.peers[original].members.isolated_since is None

    swarm.run(story())
    assert [host for host, event in swarm.events if event.kind == "isolated"] == [swarm.host_names[1]]


def test_two_equal_halves_that_parted_for_too_long_stay_apart_and_say_so() -> None:
    """Neither half can know that it is wrong: beyond `max_reorg` only people can decide, and both halves hear of it."""
    swarm = make_swarm(5, limits={"max_reorg": 3})

    async def story() -> None:
        await start(swarm, 4)
        await swarm.commits(2)
        cut = swarm.world.network.partition(swarm.host_names[:2], swarm.host_names[2:])
        await asyncio.sleep(300.0)
        swarm.world.network.heal(cut)
        await asyncio.sleep(200.0)
        assert not swarm.heads_agree()
        assert swarm.heads_agree(swarm.host_names[:2]) or swarm.heads_agree(swarm.host_names[2:])

    swarm.run(story())
    refusals = [event["reason"] for event in swarm.of_kind("head-dropped")]
    assert any("deep reorganisation refused" in reason and "2 of 3 peers" in reason for reason in refusals)


def test_of_a_fork_that_is_long_but_allowed_the_lighter_half_saves_its_latest_work() -> None:
    """The values of four merged hand-overs are kept, and work whose base is older than `max_staleness` is given up.

    So what a side merged in more commits than that is lost when the other side wins; every token of it is accounted for.
    """
    swarm = make_swarm(6, limits={"max_reorg": 64})

    async def story() -> list[float]:
        await start(swarm, 4)
        await swarm.commits(2)
        cut = swarm.world.network.partition(swarm.host_names[:2], swarm.host_names[2:])
        await asyncio.sleep(15 * swarm.interval)
        swarm.world.network.heal(cut)
        await goes_on(swarm, 4)
        tallies = [peer.learner.tallies()[0] for peer in swarm.peers.values() if peer.learner is not None]
        return [tally.merged / tally.trained for tally in tallies]

    shares = sorted(swarm.run(story()))
    assert shares[0] < 0.7 and shares[-1] == 1.0  # two lost most of what they did apart, two lost nothing
    reasons = {event["reason"] for event in swarm.of_kind("dropped")}
    assert reasons & {"reorganised", "stale"}


def test_a_peer_that_cannot_start_is_an_event_and_not_the_end_of_the_story() -> None:
    swarm = make_swarm(7)

    async def story() -> None:
        await start(swarm, 2)
        other = swarm.new_host()
        swarm.disk(other).full = True
        with pytest.raises(P2PTrainError, match="No space left on device"):
            await swarm.restart(other)
        bringing = swarm.spawn(swarm.bring_back(other))
        await asyncio.sleep(60.0)
        swarm.disk(other).full = False
        await bringing
        await goes_on(swarm, 3)

    swarm.run(story())
    assert len(swarm.of_kind("start-failed")) >= 3


def test_a_process_that_is_killed_while_it_starts_leaves_nothing_behind() -> None:
    swarm = make_swarm(8)

    async def story() -> None:
        await start(swarm, 2)
        name = swarm.new_host()
        starting = asyncio.create_task(swarm.restart(name))
        for after in (0.1, 0.5, 0.9):
            await asyncio.sleep(after)
            swarm.kill(name)
            with pytest.raises(P2PTrainError, match="killed while it started"):
                await starting
            starting = asyncio.create_task(swarm.restart(name))
        await starting
        await goes_on(swarm, 3)

    swarm.run(story())
