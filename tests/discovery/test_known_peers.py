"""Peers remembered on disk: a cache that never stops anything."""

from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.discovery import known_peers
from p2ptrain.discovery.known_peers import MAX_KNOWN_PEERS, STORAGE_NAME, decode, encode
from p2ptrain.ids import peer_id_from_public_key
from p2ptrain.link import LinkPeer
from p2ptrain.runtime import Address
from p2ptrain.sim.ports import SimWorld


def peer(number: int, port: int = 4001) -> LinkPeer:
    return LinkPeer(peer_id_from_public_key(number.to_bytes(32, "big")), Address("203.0.113.7", port))


def test_the_newest_address_of_each_peer_is_remembered_and_not_too_many() -> None:
    world = SimWorld(seed=1)

    async def story() -> list[LinkPeer]:
        runtime = world.runtime("10.0.0.1")
        before = await known_peers.save(runtime, [peer(number) for number in range(80)], [])
        await known_peers.save(runtime, [peer(70), peer(2, port=4002)], before)
        return await known_peers.load(runtime)

    known = world.run(story())
    assert known[:3] == [peer(70), peer(2, port=4002), peer(0)]
    assert len(known) == MAX_KNOWN_PEERS


def test_a_damaged_file_is_no_reason_to_stop() -> None:
    world = SimWorld(seed=2)

    async def story() -> list[LinkPeer]:
        runtime = world.runtime("10.0.0.1")
        runtime.storage.write(STORAGE_NAME, b"\xc1 damaged")
        return await known_peers.load(runtime)

    assert world.run(story()) == []


@given(st.binary())
def test_no_bytes_break_the_reader(data: bytes) -> None:
    assert isinstance(decode(data), list)


def test_what_is_written_is_read() -> None:
    assert decode(encode([peer(1), peer(2)])) == [peer(1), peer(2)]
