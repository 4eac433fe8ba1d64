"""The handshake of the simulated network: a proved key, a round trip, little CPU."""

import asyncio
from dataclasses import dataclass

import pytest

from p2ptrain.errors import IncompatibleError, NetworkError
from p2ptrain.net.identity import Identity
from p2ptrain.runtime import Address, RawStream, Signer
from p2ptrain.sim.ports import SimWorld

ONE, OTHER = "10.0.0.1", "10.0.0.2"


@dataclass(frozen=True)
class Impostor:
    """Claims a public key that is not of its private key."""

    public_key: bytes
    private_key: bytes


async def raw_ends(world: SimWorld) -> tuple[RawStream, RawStream]:
    accepted: asyncio.Queue[RawStream] = asyncio.Queue()
    port = await world.runtime(OTHER).network.listen(Address(OTHER, 4001), accepted.put_nowait)
    near = await world.runtime(ONE).network.connect(port.address)
    return near, await accepted.get()


def identity(world: SimWorld, host: str) -> Identity:
    return Identity.generate(world.runtime(host).entropy)


async def secured(world: SimWorld, client: Signer, server: Signer) -> list[object]:
    near, far = await raw_ends(world)
    network = world.network.host(ONE)
    return await asyncio.gather(
        network.secure(near, client, server=False), network.secure(far, server, server=True), return_exceptions=True
    )


def test_a_handshake_costs_a_round_trip_and_the_time_to_compute():
    world = SimWorld(seed=1, latency=0.1)

    async def story():
        near, far = await raw_ends(world)
        keys, network = (identity(world, ONE), identity(world, OTHER)), world.network.host(ONE)
        began_at = asyncio.get_running_loop().time()

        async def client() -> float:
            await network.secure(near, keys[0], server=False)
            return asyncio.get_running_loop().time() - began_at

        async def server() -> float:
            await network.secure(far, keys[1], server=True)
            return asyncio.get_running_loop().time() - began_at

        assert await asyncio.gather(client(), server()) == pytest.approx([0.202, 0.302], abs=0.0005)

    world.run(story())


@pytest.mark.parametrize("who", ["client", "server"])
def test_a_key_that_somebody_claims_and_does_not_hold_is_turned_away(who):
    world = SimWorld(seed=1)

    async def story():
        victim, thief, honest = (identity(world, host) for host in (ONE, OTHER, "10.0.0.3"))
        impostor = Impostor(victim.public_key, thief.private_key)
        results = await secured(world, *((impostor, honest) if who == "client" else (honest, impostor)))
        judge = results[1 if who == "client" else 0]
        assert isinstance(judge, IncompatibleError) and "does not hold the key" in str(judge)
        await asyncio.sleep(1)
        assert world.network.num_connections[ONE] == world.network.num_connections[OTHER] == 0

    world.run(story())


def test_a_proof_that_was_overheard_is_worth_nothing_for_another_challenge():
    world = SimWorld(seed=1)
    keys, owner = world.network.keys, identity(world, ONE)
    challenge = keys.challenge()
    proof = keys.prove(owner, challenge)
    assert keys.is_proved(owner.public_key, challenge, proof)
    assert not keys.is_proved(owner.public_key, keys.challenge(), proof)
    assert not keys.is_proved(identity(world, OTHER).public_key, challenge, proof)


def test_who_speaks_something_else_is_told_so_at_once():
    world = SimWorld(seed=1)

    async def story():
        near, far = await raw_ends(world)
        await near.write(b"GET / HTTP/1.1\r\n\r\n")  # type: ignore[attr-defined]
        with pytest.raises(IncompatibleError, match=r"does not speak TLS 1\.3"):
            await world.network.host(OTHER).secure(far, identity(world, OTHER), server=True)
        assert asyncio.get_running_loop().time() < 1

    world.run(story())


@pytest.mark.parametrize("server", [False, True])
def test_who_says_nothing_is_given_up_after_five_seconds(server):
    world = SimWorld(seed=1)

    async def story():
        near, far = await raw_ends(world)
        began_at = asyncio.get_running_loop().time()
        with pytest.raises(NetworkError, match="no TLS answer within 5 s"):
            await world.network.host(OTHER).secure(far if server else near, identity(world, OTHER), server=server)
        assert asyncio.get_running_loop().time() - began_at == pytest.approx(5.0)

    world.run(story())


def test_a_key_is_checked_once_however_often_it_is_proved():
    world = SimWorld(seed=1)

    async def story():
        client, server = identity(world, ONE), identity(world, OTHER)
        await secured(world, client, server)
        checked = dict(world.network.keys._public_keys)
        assert len(checked) == 2

    world.run(story())
