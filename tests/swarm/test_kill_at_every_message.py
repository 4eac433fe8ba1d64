"""Killing the sender or the receiver at any kind of message leaves the survivors with equal anchors.

A kill happens before the message is sent (sender) or before it is handled (receiver), at the first, the third or the
tenth message of its kind; the victim comes back five virtual seconds later. The checkers watch all along.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine

import pytest

from p2ptrain.averaging import messages as averaging
from p2ptrain.config import load_run_config
from p2ptrain.discovery import messages as discovery
from p2ptrain.errors import P2PTrainError
from p2ptrain.fragments import messages as fragments
from p2ptrain.peer import GetManifest
from p2ptrain.sim.swarm import SimSwarm
from p2ptrain.wire.messages import Message

CONFIG = load_run_config("sim-quadratic")
LARGE = CONFIG.model_copy(update={"model": CONFIG.model.model_copy(update={"dim": 128})})
"""Its updates have more than 32 KiB: enough for a connection of their own."""


def methods_of(module: object) -> set[str]:
    return {
        one.method for one in vars(module).values() if isinstance(one, type) and issubclass(one, Message) and one.method
    }


METHODS = sorted(
    methods_of(averaging)
    | methods_of(fragments)
    | methods_of(discovery) - {"kademlia.call"}
    | {GetManifest.method, "transport.open-bulk"}
)  # the DHT is beside the path of a round, and has tests of its own


async def nothing_special(swarm: SimSwarm) -> None:
    """Training is enough."""


async def somebody_joins(swarm: SimSwarm) -> None:
    with contextlib.suppress(P2PTrainError, StopIteration):  # it may be the victim, or its donor
        await swarm.join()


async def somebody_has_only_a_peer_that_nobody_can_dial(swarm: SimSwarm) -> None:
    """Who is cut off from all others gets the updates from it, and has to ask it for a bulk connection."""
    hidden = await swarm.join(hidden=True)
    await asyncio.sleep(2.0)
    cut_off = await swarm.join(train=False)  # it is new and never leads, so nobody has fetched or brought it anything
    await asyncio.sleep(1.0)
    swarm.world.network.partition([cut_off], [host for host in swarm.peers if host not in (cut_off, hidden)])
    await asyncio.sleep(8.0)
    swarm.world.network.heal()


async def somebody_misses_commits(swarm: SimSwarm) -> None:
    cut_off = list(swarm.peers)[-1]
    swarm.world.network.partition([cut_off], [host for host in swarm.peers if host != cut_off])
    await asyncio.sleep(8.0)
    swarm.world.network.heal()


async def everybody_drains(swarm: SimSwarm) -> None:
    for peer in swarm.peers.values():
        peer.drain()


NEEDED: dict[str, Callable[[SimSwarm], Coroutine[None, None, None]]] = {
    GetManifest.method: somebody_joins,
    fragments.GetSnapshot.method: somebody_joins,
    fragments.GetCommits.method: somebody_misses_commits,
    averaging.Decline.method: everybody_drains,
    discovery.DialBack.method: somebody_joins,
    "transport.open-bulk": somebody_has_only_a_peer_that_nobody_can_dial,
}


@pytest.mark.parametrize("victim", ["send", "receive"])
@pytest.mark.parametrize("method", METHODS)
def test_the_survivors_have_equal_anchors(method: str, victim: str) -> None:
    seed = METHODS.index(method) * 2 + (victim == "send")
    print(f"seed {seed}")
    swarm = SimSwarm(LARGE if method == "transport.open-bulk" else CONFIG, seed=seed)
    countdown = 1 if method in NEEDED else random.Random(seed).choice([1, 3, 10])
    killed: list[str] = []

    def kill_at_the_message(host: str, direction: str, seen: str) -> None:
        nonlocal countdown
        if seen == method and direction == victim and not killed:
            countdown -= 1
            if countdown <= 0:
                killed.append(host)
                swarm.kill(host)

    async def story() -> None:
        await swarm.host()
        for _ in range(3):
            await swarm.join()
        await swarm.commits(1)
        swarm.on_message = kill_at_the_message
        await NEEDED.get(method, nothing_special)(swarm)
        await swarm.until(lambda: bool(killed))
        await asyncio.sleep(5.0)
        await swarm.restart(killed[0])
        if method != averaging.Decline.method:
            await swarm.commits(2)
        await swarm.settle()
        assert swarm.heads_agree() and len(swarm.peers) >= 4

    swarm.run(story())
