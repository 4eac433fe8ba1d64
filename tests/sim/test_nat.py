"""NAT boxes: who can be dialled behind which, what the world sees, and hole punching."""

import asyncio
import ipaddress
import random

import pytest

from p2ptrain.errors import NetworkError
from p2ptrain.runtime import Address, RawStream
from p2ptrain.sim.nat import NatKind, SimNat
from p2ptrain.sim.network import SimHost
from p2ptrain.sim.ports import SimWorld
from p2ptrain.sim.profiles import HostProfile
from p2ptrain.sim.streams import SimStream

SERVER, STRANGER = "11.9.0.1", "11.9.0.2"
PORT = 4001
KINDS: list[NatKind] = ["full-cone", "address-restricted", "port-restricted", "symmetric"]


class Machine:
    """A host that listens, and dials from its listening port."""

    def __init__(self, world: SimWorld, name: str) -> None:
        self.name, self.accepted = name, asyncio.Queue[RawStream]()
        network = world.runtime(name).network
        assert isinstance(network, SimHost)
        self.network = network

    async def listen(self) -> "Machine":
        await self.network.listen(Address(self.name, PORT), self.accepted.put_nowait)
        return self

    async def dial(self, address: Address, *, local_port: int | None = PORT) -> SimStream:
        stream = await self.network.connect(address, local_port=local_port)
        assert isinstance(stream, SimStream)
        return stream


async def machine(world: SimWorld, name: str) -> Machine:
    return await Machine(world, name).listen()


async def behind(world: SimWorld, kind: NatKind, **options: object) -> Machine:
    name = world.network.allocate(HostProfile(nat_kind=kind, **options))  # type: ignore[arg-type]
    return await machine(world, name)


async def seen_by(server: Machine, inner: Machine) -> Address:
    """Return the address under which a server sees a machine that dials it from its listening port."""
    await inner.dial(Address(server.name, PORT))
    return (await server.accepted.get()).remote


async def reason(dial: object) -> str:
    try:
        await dial  # type: ignore[misc]
    except NetworkError as error:
        return error.reason
    return "connected"


def test_the_world_sees_the_address_of_the_box():
    world = SimWorld(seed=1)

    async def story():
        server, inner = await machine(world, SERVER), await behind(world, "port-restricted")
        near = await inner.dial(Address(SERVER, PORT))
        far = await server.accepted.get()
        assert isinstance(far, SimStream)
        assert near.local == Address(inner.name, PORT) and inner.network.local_hosts() == [inner.name]
        assert ipaddress.ip_address(inner.name).is_private
        assert far.remote == Address(world.network.outer_host(inner.name), PORT)  # the port is kept while it is free
        assert ipaddress.ip_address(far.remote.host).is_global
        await far.write(b"through")
        data = bytearray(7)
        await near.read_into(memoryview(data))
        assert data == b"through"

    world.run(story())


@pytest.mark.parametrize(
    ("kind", "from_the_dialled_host", "from_a_stranger"),
    [
        ("full-cone", "connected", "connected"),
        ("address-restricted", "connected", "timed out"),
        ("port-restricted", "timed out", "timed out"),
        ("symmetric", "timed out", "timed out"),
    ],
)
def test_each_kind_lets_in_whom_it_should(kind, from_the_dialled_host, from_a_stranger):
    world = SimWorld(seed=1)

    async def story():
        server, stranger, inner = (
            await machine(world, SERVER),
            await machine(world, STRANGER),
            await behind(world, kind),
        )
        mapped = await seen_by(server, inner)
        assert await reason(stranger.dial(mapped)) == from_a_stranger
        assert await reason(server.dial(mapped, local_port=5000)) == from_the_dialled_host
        assert world.network.nat_of(inner.name).let_in(mapped.port, Address(SERVER, PORT)) == Address(inner.name, PORT)

    world.run(story())


@pytest.mark.parametrize("refuses", [False, True])
def test_a_port_that_nobody_dialled_from_is_closed(refuses):
    world = SimWorld(seed=1)

    async def story():
        server, inner = await machine(world, SERVER), await behind(world, "full-cone", refuses=refuses)
        outer = Address(world.network.outer_host(inner.name), PORT)
        assert await reason(server.dial(outer)) == ("refused" if refuses else "timed out")
        assert await reason(server.dial(Address(inner.name, PORT))) == "timed out"  # nobody routes private addresses

    world.run(story())


def test_a_symmetric_box_shows_each_server_another_port():
    world = SimWorld(seed=1)

    async def story():
        one, other = await machine(world, SERVER), await machine(world, STRANGER)
        cone, symmetric = await behind(world, "port-restricted"), await behind(world, "symmetric")
        assert await seen_by(one, cone) == await seen_by(other, cone)
        first, second = await seen_by(one, symmetric), await seen_by(other, symmetric)
        assert first.host == second.host and first.port != second.port

    world.run(story())


def test_mappings_are_given_back():
    world = SimWorld(seed=1)

    async def story():
        server, inner = await machine(world, SERVER), await behind(world, "port-restricted", carrier_kind="symmetric")
        box = world.network.nat_of(inner.name)
        assert box.behind is not None
        streams = [await inner.dial(Address(SERVER, PORT), local_port=None) for _ in range(10)]
        failed = inner.dial(Address(SERVER, 9), local_port=None)
        assert await reason(failed) == "refused"
        assert box.num_mappings == box.behind.num_mappings == 10
        for stream in streams[:5]:
            stream.abort()
        for _ in range(5):
            (await server.accepted.get()).abort()
        await asyncio.sleep(1)
        assert box.num_mappings == box.behind.num_mappings == 5

    world.run(story())


def test_a_forwarded_port_is_open_to_everybody():
    world = SimWorld(seed=1)

    async def story():
        server, inner = await machine(world, SERVER), await behind(world, "port-restricted")
        box = world.network.nat_of(inner.name)
        box.forward(7000, Address(inner.name, PORT))
        near = await server.dial(Address(box.outer_host, 7000))
        assert near.remote == Address(box.outer_host, 7000)
        assert (await inner.accepted.get()).remote == Address(SERVER, PORT)

    world.run(story())


@pytest.mark.parametrize("hairpin", [False, True])
def test_machines_behind_one_box_meet_inside_and_by_hairpin_outside(hairpin):
    world = SimWorld(seed=1)

    async def story():
        server, one = await machine(world, SERVER), await behind(world, "full-cone", hairpin=hairpin, latency=0.01)
        other = await machine(world, world.network.allocate(HostProfile(nat_kind="full-cone"), beside=one.name))
        assert world.network.nat_of(one.name) is world.network.nat_of(other.name)
        began_at = asyncio.get_running_loop().time()
        assert await reason(other.dial(Address(one.name, PORT))) == "connected"
        assert asyncio.get_running_loop().time() - began_at < 0.002  # over the LAN
        mapped = await seen_by(server, one)
        assert await reason(other.dial(mapped, local_port=6000)) == ("connected" if hairpin else "timed out")

    world.run(story())


def test_machines_behind_one_box_share_its_links():
    world = SimWorld(seed=1)

    async def story():
        server, one = await machine(world, SERVER), await behind(world, "port-restricted", up=1e6, down=1e6)
        other = await machine(world, world.network.allocate(HostProfile(nat_kind="port-restricted"), beside=one.name))

        async def send(source: Machine) -> float:
            near = await source.dial(Address(SERVER, PORT), local_port=None)
            await near.write(bytes(1_000_000))
            await near.close()
            return asyncio.get_running_loop().time()

        ended = await asyncio.gather(send(one), send(other))
        assert max(ended) == pytest.approx(2.0, abs=0.4)
        assert server.accepted.qsize() == 2

    world.run(story())


def test_behind_a_carrier_a_full_cone_at_home_does_not_help():
    world = SimWorld(seed=1)

    async def story():
        server, stranger = await machine(world, SERVER), await machine(world, STRANGER)
        inner = await behind(world, "full-cone", carrier_kind="port-restricted")
        neighbour = await behind(world, "full-cone", carrier_kind="port-restricted")
        mapped = await seen_by(server, inner)
        assert mapped.host == world.network.outer_host(inner.name) == world.network.outer_host(neighbour.name)
        assert ipaddress.ip_address(world.network.nat_of(inner.name).outer_host) in ipaddress.ip_network(
            "100.64.0.0/10"
        )
        assert await reason(stranger.dial(mapped)) == "timed out"

    world.run(story())


def test_subscribers_share_carriers_of_their_kind():
    world, profiles = SimWorld(seed=1), [HostProfile(nat_kind="full-cone", carrier_kind=kind) for kind in KINDS[2:]]
    names = [world.network.allocate(profile) for _ in range(100) for profile in profiles]
    boxes = [world.network.nat_of(name).behind for name in names]
    assert [box.kind for box in boxes[:4]] == KINDS[2:] * 2
    assert len(set(boxes)) == 4  # 64 and 36 of each kind
    assert len(set(names)) == 200


PUNCHED = {
    ("full-cone", "full-cone"), ("full-cone", "address-restricted"), ("full-cone", "port-restricted"), ("full-cone", "symmetric"),
    ("address-restricted", "address-restricted"), ("address-restricted", "port-restricted"), ("address-restricted", "symmetric"),
    ("port-restricted", "port-restricted"),
}  # fmt: skip


@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("second", KINDS)
def test_punching_holes_works_where_it_does_in_a_laboratory_of_real_boxes(first, second):
    world = SimWorld(seed=1, latency=0.03)

    async def story():
        server = await machine(world, SERVER)
        one, other = await behind(world, first), await behind(world, second)
        addresses = await seen_by(server, one), await seen_by(server, other)
        results = await asyncio.gather(reason(one.dial(addresses[1])), reason(other.dial(addresses[0])))
        is_connected = "connected" in results
        assert is_connected == ((first, second) in PUNCHED or (second, first) in PUNCHED)

    world.run(story())


def test_a_simultaneous_open_gives_both_ends_one_connection():
    world = SimWorld(seed=1, latency=0.03)

    async def story():
        server = await machine(world, SERVER)
        one, other = await behind(world, "port-restricted"), await behind(world, "port-restricted")
        addresses = await seen_by(server, one), await seen_by(server, other)

        async def later() -> SimStream:
            await asyncio.sleep(0.01)
            return await other.dial(addresses[0])

        near, far = await asyncio.gather(one.dial(addresses[1]), later())
        assert near.other is far and one.accepted.empty() and other.accepted.empty()
        assert (near.remote, far.remote) == (addresses[1], addresses[0])
        await near.write(b"hole")
        data = bytearray(4)
        await far.read_into(memoryview(data))
        assert data == b"hole"

    world.run(story())


def test_a_box_that_refuses_breaks_a_punch_whose_dials_do_not_cross():
    world = SimWorld(seed=1, latency=0.03)

    async def story():
        server = await machine(world, SERVER)
        one, other = await behind(world, "port-restricted"), await behind(world, "port-restricted", refuses=True)
        addresses = await seen_by(server, one), await seen_by(server, other)
        assert await reason(one.dial(addresses[1])) == "refused"

    world.run(story())


def test_boxes_keep_mappings_apart_under_random_use():
    chance = random.Random(3)
    for kind in KINDS:
        box, held = SimNat(kind, "11.1.1.1"), []
        for _ in range(3000):
            if held and chance.random() < 0.45:
                mapping, remote = held.pop(chance.randrange(len(held)))
                box.release(mapping, remote)
            else:
                inner = Address(f"192.168.0.{chance.randrange(5)}", chance.randrange(4000, 4010))
                remote = Address(f"11.2.0.{chance.randrange(5)}", chance.randrange(1, 4))
                outer, mapping = box.dial_out(inner, remote)
                held.append((mapping, remote))
                assert box.let_in(outer.port, remote) == inner
            ports = [mapping.port for mapping in {id(mapping): mapping for mapping, _ in held}.values()]
            assert len(set(ports)) == len(ports) == box.num_mappings
