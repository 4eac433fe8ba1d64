"""hivemind's clock, chance and tasks are those of the peer that it works for; without one, all is as hivemind has it."""

import asyncio
import random
import subprocess
import sys
import time

import base58
from hivemind.dht import node, protocol
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.p2p import PeerID
from hivemind.utils import timed_storage

from p2ptrain.discovery.kademlia.ports import Surroundings
from p2ptrain.sim.loop import run

RAW = b"\x00\x24\x08\x01\x12\x20" + bytes(range(32))


def surroundings(now: float, seed: int = 0) -> Surroundings:
    return Surroundings(lambda: now, random.Random(seed))


def test_every_module_of_hivemind_reads_the_clock_of_the_peer_that_it_works_for() -> None:
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("hivemind")]
    clocks = [vars(module)["get_dht_time"] for module in modules if "get_dht_time" in vars(module)]
    assert len(clocks) > 10
    with surroundings(12.5).entered():
        assert {clock() for clock in clocks} == {12.5}
        with surroundings(70.0).entered():
            assert node.get_dht_time() == 70.0
        assert node.get_dht_time() == 12.5
    assert time.time() - 3600.0 < node.get_dht_time() < time.time() + 3600.0


def test_what_it_stores_expires_by_that_clock() -> None:
    storage = DictionaryDHTValue()
    with surroundings(100.0).entered():
        assert not storage.store("subkey", b"too late", 99.0)
        assert storage.store("subkey", b"value", 110.0)
    with surroundings(111.0).entered():
        assert timed_storage.get_dht_time() == 111.0 and "subkey" not in storage


def test_its_chance_is_the_peers_own_and_its_classes_are_the_modules() -> None:
    assert node.random.Random is random.Random
    with surroundings(0.0, seed=5).entered():
        drawn = DHTID.generate()
    with surroundings(0.0, seed=5).entered():
        assert DHTID.generate() == drawn
    with surroundings(0.0, seed=6).entered():
        assert DHTID.generate() != drawn


def test_tasks_inherit_the_clock_and_end_with_their_peer() -> None:
    async def story() -> None:
        own = surroundings(33.0)
        seen: list[float] = []

        async def read_for_ever() -> None:
            while True:
                seen.append(node.get_dht_time())
                await asyncio.sleep(1.0)

        with own.entered():
            task = node.asyncio.create_task(read_for_ever())
        await asyncio.sleep(3.5)
        await own.close()
        assert task.cancelled() and seen == [33.0] * 4
        with own.entered():
            late = protocol.asyncio.create_task(read_for_ever())
        await asyncio.sleep(0.0)
        assert late.cancelled() or late.cancelling()

    run(story())


def test_peer_ids_and_distances_are_what_hivemind_makes_them() -> None:
    peer = PeerID(RAW)
    assert peer.to_base58() == base58.b58encode(RAW).decode()
    assert peer.to_bytes() == RAW
    assert PeerID.from_base58(peer.to_base58()) == peer == protocol.PeerID(RAW)
    assert len({peer, PeerID(RAW), protocol.PeerID(RAW), PeerID(RAW[:-1] + b"x")}) == 2
    one, other, third = (DHTID.generate(name) for name in ("one", "other", "third"))
    assert one.xor_distance(other) == int(one) ^ int(other)
    assert one.xor_distance([other, third]) == [int(one) ^ int(other), int(one) ^ int(third)]
    assert DHTID.from_bytes(one.to_bytes()) == one and isinstance(DHTID.from_bytes(one.to_bytes()), DHTID)


def test_a_simulation_without_the_dht_does_not_import_hivemind() -> None:
    story = (
        "import sys; from p2ptrain.config import load_run_config; from p2ptrain.sim.swarm import SimSwarm\n"
        "swarm = SimSwarm(load_run_config('sim-quadratic'), seed=1)\n"
        "async def story():\n"
        "    await swarm.host(); await swarm.join(); await swarm.commits(1)\n"
        "swarm.run(story())\n"
        "import p2ptrain.cli\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('hivemind', 'torch')])"
    )
    done = subprocess.run([sys.executable, "-c", story], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
