"""Each kind of fault does what it says, and what has `seconds` ends by itself."""

import asyncio
from typing import Any

import pytest
from pydantic import TypeAdapter

from p2ptrain.config import load_run_config
from p2ptrain.sim.faults import KINDS, Fault, apply, resolve
from p2ptrain.sim.swarm import SimSwarm

CONFIG = load_run_config("sim-quadratic")
READ: TypeAdapter[Any] = TypeAdapter(Fault)


def fault(**fields: Any) -> Any:
    return READ.validate_python(fields)


class Story:
    """Three peers, and something to do with them."""

    def __init__(self, seed: int = 1, num_peers: int = 3) -> None:
        print(f"seed {seed}")
        self.swarm = SimSwarm(CONFIG, seed=seed, step_seconds=2.0)
        self.num_peers = num_peers

    def tell(self, middle: Any) -> None:
        async def whole() -> None:
            await self.swarm.host()
            for _ in range(self.num_peers - 1):
                await self.swarm.join()
            await asyncio.sleep(10.0)
            await middle(self.swarm)

        self.swarm.run(whole())


def test_every_kind_is_known_by_its_name() -> None:
    assert {
        "kill", "power-cut", "lose-unsynced", "crash-at-message", "freeze", "thaw", "leave", "join", "start", "slow-down", "hang",
        "clock-skew", "clock-step", "disk-full", "disk-slow", "disk-lies", "partition", "heal", "cut-link", "reset-connections",
        "bandwidth", "latency", "hide",
    } == set(KINDS)  # fmt: skip


@pytest.mark.parametrize("kind", ["kill", "power-cut"])
def test_a_process_ends_and_comes_back(kind: str) -> None:
    async def middle(swarm: SimSwarm) -> None:
        await apply(fault(kind=kind, peers=[2], restart_after=10.0), swarm)
        assert swarm.host_names[1] not in swarm.peers
        await asyncio.sleep(9.0)
        assert swarm.host_names[1] not in swarm.peers
        await asyncio.sleep(8.0)
        assert swarm.host_names[1] in swarm.peers

    Story().tell(middle)


def test_a_power_cut_is_noticed_later_than_a_kill() -> None:
    noticed: dict[str, float] = {}

    def middle_of(kind: str) -> Any:
        async def middle(swarm: SimSwarm) -> None:
            began_at = asyncio.get_running_loop().time()
            await apply(fault(kind=kind, peers=[2]), swarm)
            await swarm.until(lambda: bool(swarm.of_kind("peer-down")))
            noticed[kind] = asyncio.get_running_loop().time() - began_at

        return middle

    for kind in ("kill", "power-cut"):
        Story().tell(middle_of(kind))
    assert noticed["kill"] < 8.0 < noticed["power-cut"]


@pytest.mark.parametrize(
    ("fields", "read"),
    [
        ({"kind": "slow-down", "factor": 10.0}, lambda swarm, host: swarm.compute(host).straggler),
        ({"kind": "hang"}, lambda swarm, host: swarm.compute(host)._hangs is not None),
        ({"kind": "clock-skew", "skew": -90.0}, lambda swarm, host: swarm.clock(host).wall_skew),
        ({"kind": "clock-step", "step": 600.0}, lambda swarm, host: swarm.clock(host).wall_skew),
        ({"kind": "disk-full"}, lambda swarm, host: swarm.disk(host).full),
        ({"kind": "disk-slow", "write_seconds": 3.0}, lambda swarm, host: swarm.disk(host).write_seconds),
        ({"kind": "disk-lies"}, lambda swarm, host: swarm.disk(host).lies_for),
        ({"kind": "freeze"}, lambda swarm, host: swarm.world.process(host).frozen),
        ({"kind": "cut-link"}, lambda swarm, host: swarm.world.network.is_cut(host, swarm.host_names[0])),
        ({"kind": "bandwidth", "up_mbit": 1.0}, lambda swarm, host: swarm.world.network.site(host).up.bytes_per_second),
        ({"kind": "latency", "latency_ms": 200.0}, lambda swarm, host: swarm.world.network.latency(host, swarm.host_names[0])),
        ({"kind": "hide"}, lambda swarm, host: swarm.world.network.is_reachable(host)),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else "",
)  # fmt: skip
def test_a_state_begins_for_one_peer_and_ends_by_itself(fields: dict[str, Any], read: Any) -> None:
    async def middle(swarm: SimSwarm) -> None:
        hit, other = swarm.host_names[1], swarm.host_names[2]
        before = read(swarm, hit)
        await apply(fault(peers=[2], seconds=30.0, **fields), swarm)
        assert read(swarm, hit) != before == read(swarm, other)
        await asyncio.sleep(29.0)
        assert read(swarm, hit) != before
        await asyncio.sleep(2.0)
        assert read(swarm, hit) == before

    Story().tell(middle)


def test_a_one_way_partition_stops_one_direction_and_heals_alone() -> None:
    async def middle(swarm: SimSwarm) -> None:
        one, two, three = swarm.host_names
        network = swarm.world.network
        await apply(fault(kind="partition", left=[1], one_way=True, seconds=20.0), swarm)
        await apply(fault(kind="partition", left=[2], right=[3]), swarm)
        assert network.is_cut(one, two) and not network.is_cut(two, one)
        await asyncio.sleep(21.0)
        assert not network.is_cut(one, two) and network.is_cut(two, three)
        await apply(fault(kind="heal"), swarm)
        assert not network.is_cut(two, three)

    Story().tell(middle)


def test_a_crash_at_the_second_message_of_a_kind() -> None:
    seen: list[str] = []

    async def middle(swarm: SimSwarm) -> None:
        def hear(host: str, direction: str, method: str) -> None:
            if (direction, method) == ("receive", "round.contribute"):
                seen.append(host)

        swarm.on_message = hear
        crash = fault(kind="crash-at-message", method="round.contribute", direction="receive", nth=2, restart_after=5.0)
        await apply(crash, swarm)
        await swarm.until(lambda: bool(swarm.of_kind("crashed-at-message")), every=0.001)
        assert len(swarm.peers) == 2 and seen[1] not in swarm.peers and seen.count(seen[1]) >= 1
        await asyncio.sleep(20.0)
        assert len(swarm.peers) == 3 and not swarm.hooks

    Story().tell(middle)


def test_connections_are_reset_again_and_again() -> None:
    async def middle(swarm: SimSwarm) -> None:
        ends: list[int] = []
        await apply(fault(kind="reset-connections", peers=[1], seconds=10.0, every=3.0), swarm)
        for _ in range(20):
            ends.append(len(swarm.world.network.connections(swarm.host_names[0])))
            await asyncio.sleep(1.0)
        assert ends.count(0) >= 1 and ends[-1] >= 2  # they come up again each time

    Story().tell(middle)


def test_newcomers_join_and_others_leave_and_return() -> None:
    async def middle(swarm: SimSwarm) -> None:
        await apply(fault(kind="join", count=2, hidden=True), swarm)
        await asyncio.sleep(5.0)
        assert len(swarm.peers) == 5
        await apply(fault(kind="leave", peers=[2], return_after=10.0), swarm)
        await asyncio.sleep(4.0)
        assert len(swarm.peers) == 4 and swarm.of_kind("left")
        await asyncio.sleep(15.0)
        assert len(swarm.peers) == 5
        swarm.kill(swarm.host_names[4])
        await apply(fault(kind="start", peers=[5]), swarm)
        await asyncio.sleep(5.0)
        assert len(swarm.peers) == 5

    Story().tell(middle)


def test_who_is_meant_follows_from_the_moment() -> None:
    async def middle(swarm: SimSwarm) -> None:
        assert await resolve("bootstrap", swarm) == swarm.host_names[:1]
        assert await resolve("all", swarm) == swarm.host_names
        assert await resolve([3, 1, 9], swarm) == [swarm.host_names[2], swarm.host_names[0]]
        assert len(await resolve("any", swarm, 2)) == 2
        (leader,) = await resolve("leader", swarm)
        assert leader in [host for host, _ in swarm.open_rounds()]
        (member,) = await resolve("member", swarm)
        called = {peer for _, members in swarm.open_rounds() for peer in members}
        assert swarm.peers[member].peer_id in called
        (newcomer,) = await resolve("newcomer", swarm)
        assert newcomer == swarm.host_names[3] and newcomer in swarm.starting

    Story().tell(middle)


def test_the_same_seed_hits_the_same_peers() -> None:
    def victims(seed: int) -> list[str]:
        found: list[str] = []

        async def middle(swarm: SimSwarm) -> None:
            for _ in range(6):
                found.extend(await resolve("any", swarm))
                found.extend(await resolve("leader", swarm))

        Story(seed, num_peers=4).tell(middle)
        return found

    assert victims(1) == victims(1) != victims(2)
