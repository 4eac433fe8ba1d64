"""Stories of a swarm in virtual time. Every peer is watched by the checkers of p2ptrain/sim/checkers.py."""

import asyncio
import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

from p2ptrain.config import RunConfig, load_run_config
from p2ptrain.errors import LinkError, UnreachableError
from p2ptrain.fragments.follower import Adopted
from p2ptrain.fragments.layout import make_layout
from p2ptrain.fragments.outer import outer_step
from p2ptrain.ids import PeerId, RunId, digest
from p2ptrain.sim.swarm import STEP_SECONDS, SimSwarm
from p2ptrain.training.cursor import WindowCursor
from p2ptrain.training.learner import gather
from p2ptrain.training.schedule import learning_rate
from p2ptrain.training.task import make_task

CONFIG = load_run_config("sim-quadratic")
EXACT = CONFIG.model_copy(update={"codec": CONFIG.codec.model_copy(update={"up": "fp32", "down": "fp32"})})


def with_rounds(config: RunConfig = CONFIG, **changes: object) -> RunConfig:
    return config.model_copy(update={"rounds": config.rounds.model_copy(update=changes)})


async def start(swarm: SimSwarm, num_peers: int) -> None:
    await swarm.host()
    for _ in range(num_peers - 1):
        await swarm.join()


def test_four_peers_train_together_and_agree() -> None:
    swarm = SimSwarm(CONFIG, seed=1)

    async def story() -> None:
        await start(swarm, 4)
        await swarm.commits(8)
        await swarm.settle()
        assert swarm.heads_agree()

    swarm.run(story())
    commits = [event for event in swarm.of_kind("round-committed") if 3 < event["version"] <= 8]
    assert np.mean([len(event["contributors"]) for event in commits]) > 3.5
    assert not swarm.of_kind("fork") and not swarm.of_kind("reorg")
    losses = [event["loss"] for event in swarm.of_kind("validation")]
    assert losses[-1] < losses[0] / 2


def test_a_lone_peer_is_not_delayed() -> None:  # BUG-A01
    swarm = SimSwarm(CONFIG, seed=2)

    async def story() -> None:
        await swarm.host()
        await swarm.commits(1)
        began_at = asyncio.get_running_loop().time()
        await swarm.commits(10)
        seconds = asyncio.get_running_loop().time() - began_at
        assert seconds < 1.3 * 10 * CONFIG.rounds.inner_steps * STEP_SECONDS

    swarm.run(story())


def test_one_peer_equals_its_own_inner_loop_and_the_outer_step_bit_for_bit() -> None:  # BUG-A02
    config = with_rounds(
        EXACT.model_copy(update={"fragments": EXACT.fragments.model_copy(update={"count": 1})}), adopt="overwrite"
    )
    swarm = SimSwarm(config, seed=3)

    merged_steps: list[int] = []
    anchors: list[np.ndarray] = []

    def note(adopted: Adopted) -> None:
        merged_steps.append(adopted.commit.envelopes[0].steps)
        anchors.append(adopted.state.anchor)

    async def story() -> tuple[RunId, PeerId]:
        peer = swarm.peers[await swarm.host()]
        peer.chains.followers[0].on_adopted(note)
        await swarm.commits(5)
        return peer.run_id, peer.peer_id

    run_id, me = swarm.run(story())

    reference = make_task(config, None)
    fragment = make_layout(reference.shapes(), 1).fragments[0]
    cursor = WindowCursor(run_id=run_id, me=me, num_windows=reference.num_windows)
    anchor = gather(reference.read, fragment)
    momentum = np.zeros_like(anchor)
    overwritten_steps = [event["tokens"] // config.model.context for event in swarm.of_kind("dropped")]

    def steps(count: int, version: int) -> None:
        for _ in range(count):
            reference.train_step(
                cursor.next_windows(1, ()), learning_rate(config.rounds.inner_steps * version, config.inner)
            )

    for version, (merged, overwritten) in enumerate(zip(merged_steps, [*overwritten_steps, 0], strict=False)):
        steps(merged, version)
        update = anchor - gather(reference.read, fragment)
        anchor, momentum = outer_step(anchor, momentum, update, config.outer, step=version + 1)
        np.testing.assert_array_equal(anchors[version], anchor)
        steps(overwritten, version)  # made while the round was under way; `overwrite` drops them
        for piece in fragment.pieces:
            reference.write(piece.tensor.name, anchor[piece.place])
    assert len(merged_steps) >= 5 and all(
        np.abs(after - before).max() > 0 for before, after in itertools.pairwise(anchors)
    )


def test_a_late_joiner_takes_part_within_two_rounds() -> None:
    swarm = SimSwarm(CONFIG, seed=4)

    async def story() -> None:
        await start(swarm, 3)
        await swarm.commits(5)
        late = await swarm.join()
        began_at = {
            head.fragment: head.version for head in (one.archive.head for one in swarm.peers[late].chains.followers)
        }
        await swarm.commits(3)  # of the two that it saw begin, it may have come too late for one
        merged = {
            event.fields["fragment"]
            for host, event in swarm.events
            if host == late and event.kind == "adopted" and event.fields["included"]
            and event.fields["version"] <= began_at[event.fields["fragment"]] + 2
        }  # fmt: skip
        assert merged == set(range(CONFIG.fragments.count))
        await swarm.settle()

    swarm.run(story())


@pytest.mark.parametrize("seed", range(3))
def test_random_kills_stop_nobody_else(seed: int) -> None:  # BUG-A08
    print(f"seed {seed}")
    swarm, chance = SimSwarm(CONFIG, seed=seed), random.Random(seed)

    async def story() -> None:
        await start(swarm, 5)
        for _ in range(8):
            await asyncio.sleep(chance.uniform(1.0, 4.0))
            victim = chance.choice(sorted(swarm.peers))
            swarm.kill(victim)
            await asyncio.sleep(5.0)
            await swarm.restart(victim)
        await swarm.commits(3)
        await swarm.settle()
        assert swarm.heads_agree() and len(swarm.peers) == 5

    swarm.run(story())
    assert max(event["version"] for event in swarm.of_kind("adopted")) >= 20


def test_the_hosts_death_stops_nobody_and_its_link_is_not_the_only_one() -> None:
    swarm = SimSwarm(CONFIG, seed=6)

    async def story() -> None:
        await start(swarm, 3)
        await swarm.commits(2)
        swarm.kill(next(iter(swarm.peers)))
        await swarm.commits(2)
        await swarm.join()  # by the link that another peer prints
        await swarm.commits(2)
        await swarm.settle()
        assert swarm.heads_agree()

    swarm.run(story())


def test_the_leader_of_an_open_round_dies_and_its_deputy_takes_over() -> None:
    swarm = SimSwarm(CONFIG, seed=7)
    killed: list[str] = []

    async def story() -> None:
        await start(swarm, 4)
        await swarm.commits(2)
        swarm.on_message = lambda host, direction, method: (
            kill(host) if (direction, method) == ("receive", "round.contribute") else None
        )
        await swarm.until(lambda: bool(killed))
        began_at = asyncio.get_running_loop().time()
        await swarm.commits(1)
        interval = CONFIG.rounds.inner_steps * STEP_SECONDS
        assert asyncio.get_running_loop().time() - began_at < 2 * interval + 3.0
        await swarm.settle()

    def kill(host: str) -> None:
        if not killed:
            killed.append(host)
            swarm.kill(host)

    swarm.run(story())


def test_two_halves_that_were_parted_come_back_to_one_chain() -> None:
    swarm = SimSwarm(CONFIG, seed=8)

    async def story() -> None:
        await start(swarm, 6)
        await swarm.commits(2)
        hosts = list(swarm.peers)
        swarm.world.network.partition(hosts[:3], hosts[3:])
        await asyncio.sleep(20.0)
        assert not swarm.heads_agree()
        swarm.world.network.heal()
        await swarm.commits(2)
        await swarm.settle()
        assert swarm.heads_agree()

    swarm.run(story())
    assert swarm.of_kind("fork") and swarm.of_kind("reorg")


def test_a_fork_deeper_than_allowed_is_refused_loudly() -> None:
    config = CONFIG.model_copy(update={"limits": CONFIG.limits.model_copy(update={"max_reorg": 2})})
    swarm = SimSwarm(config, seed=9)

    async def story() -> None:
        await start(swarm, 6)
        await swarm.commits(2)
        hosts = list(swarm.peers)
        swarm.world.network.partition(hosts[:3], hosts[3:])
        await asyncio.sleep(60.0)
        swarm.world.network.heal()
        await asyncio.sleep(20.0)
        assert not swarm.heads_agree()

    swarm.run(story())
    assert any("deep reorganisation refused" in event["reason"] for event in swarm.of_kind("head-dropped"))


def test_a_peer_ten_times_slower_contributes_what_it_has_and_delays_nobody() -> None:
    swarm = SimSwarm(CONFIG, seed=10)

    async def story() -> None:
        await start(swarm, 3)
        slow = await swarm.join(step_seconds=10 * STEP_SECONDS)
        await swarm.commits(1)
        began_at = asyncio.get_running_loop().time()
        await swarm.commits(10)
        interval = CONFIG.rounds.inner_steps * STEP_SECONDS
        assert asyncio.get_running_loop().time() - began_at < 1.6 * 10 * interval
        me = swarm.peers[slow].peer_id
        merged = [event for event in swarm.of_kind("round-committed") if me in event["contributors"]]
        assert len(merged) >= 10
        await swarm.settle()

    swarm.run(story())


def test_peers_draw_different_windows() -> None:  # BUG-DA03
    swarm = SimSwarm(CONFIG, seed=11)

    async def story() -> None:
        await start(swarm, 4)
        await swarm.commits(5)

    swarm.run(story())
    drawn: dict[str, list[int]] = {}
    for host, event in swarm.events:
        if event.kind == "progress":
            drawn.setdefault(host, []).extend(event.fields["drawn"])
    everything = [position for positions in drawn.values() for position in positions]
    assert len(drawn) == 4 and min(map(len, drawn.values())) > 50
    assert len(set(everything)) == len(everything)


def test_a_restart_keeps_the_identity_and_never_uses_a_step_twice() -> None:
    swarm = SimSwarm(CONFIG, seed=12)

    async def story() -> None:
        await start(swarm, 3)
        await swarm.commits(3)
        victim = list(swarm.peers)[1]
        before = swarm.peers[victim]
        highest = max(follower.archive.state.ledger.last_step(before.peer_id) for follower in before.chains.followers)
        swarm.kill(victim)
        await asyncio.sleep(5.0)
        await swarm.restart(victim)
        after = swarm.peers[victim]
        assert after.peer_id == before.peer_id and after.first_step > highest
        await swarm.commits(2)
        await swarm.settle()

    swarm.run(story())


def test_the_whole_swarm_goes_dark_and_the_host_resumes_the_run() -> None:
    swarm = SimSwarm(CONFIG, seed=13)

    async def story() -> None:
        host = await swarm.host()
        await swarm.join()
        await asyncio.sleep(40.0)  # longer than between two saves
        run_id, version = swarm.peers[host].run_id, min(swarm.versions())
        for name in list(swarm.peers):
            swarm.kill(name)
        await swarm.resume(host)
        assert swarm.peers[host].run_id == run_id
        assert min(swarm.versions()) > version // 2
        await swarm.commits(2)

    swarm.run(story())


def test_clocks_that_differ_by_minutes_do_not_matter() -> None:
    swarm = SimSwarm(CONFIG, seed=14)

    async def story() -> None:
        await swarm.host()
        for skew in (-120.0, 90.0, 200.0):
            await swarm.join(wall_skew=skew)
        await swarm.commits(5)
        await swarm.settle()
        assert swarm.heads_agree()

    swarm.run(story())


@pytest.mark.parametrize(("adopt", "merge"), [("overwrite", "rda"), ("rebase", "mean")])
def test_every_rule_of_adoption_and_merging_keeps_the_books(adopt: str, merge: str) -> None:
    swarm = SimSwarm(with_rounds(adopt=adopt, merge=merge), seed=15)

    async def story() -> None:
        await start(swarm, 3)
        await swarm.commits(5)
        await swarm.settle()
        assert swarm.heads_agree()

    swarm.run(story())


def test_a_link_to_another_run_is_refused_with_a_sentence() -> None:  # BUG-S14
    swarm = SimSwarm(CONFIG, seed=16)

    async def story() -> None:
        host = await swarm.host()
        link = swarm.peers[host].join_link()
        foreign = replace(link, run_id=RunId(digest("run", b"another")))
        with pytest.raises((LinkError, UnreachableError), match="trains"):
            await swarm.start_with_link(foreign)

    swarm.run(story())


def test_a_newcomer_whose_link_names_only_dead_peers_is_told_each_reason() -> None:  # BUG-D02
    swarm = SimSwarm(CONFIG, seed=17)

    async def story() -> None:
        host = await swarm.host()
        link = swarm.peers[host].join_link()
        swarm.kill(host)
        with pytest.raises(UnreachableError, match="refused"):
            await swarm.start_with_link(link)

    swarm.run(story())


def test_the_same_seed_tells_the_same_story() -> None:
    def trace() -> list[tuple[str, str, float, str]]:
        swarm = SimSwarm(CONFIG, seed=18)

        async def story() -> None:
            await start(swarm, 4)
            await swarm.commits(3)
            swarm.kill(list(swarm.peers)[2])
            await swarm.commits(2)

        swarm.run(story())
        return [(host, event.kind, event.at, str(sorted(event.fields.items()))) for host, event in swarm.events]

    first = trace()
    assert first == trace() and len(first) > 100
