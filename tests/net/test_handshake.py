"""The first words: versions, and whatever else comes in place of a HELLO."""

import asyncio
from typing import Any

import msgpack
import pytest

from p2ptrain.errors import IncompatibleError, NetworkError
from p2ptrain.net.handshake import MAX_HELLO_BYTES, shake_hands
from p2ptrain.net.identity import Identity
from p2ptrain.runtime import Address, RawStream, SecureStream
from p2ptrain.sim.ports import SimWorld
from p2ptrain.wire.frames import Hello, Kind, Ping, encode_frame

HELLO: dict[str, Any] = {
    "magic": "p2ptrain",
    "min_protocol": 1,
    "max_protocol": 1,
    "build": "0.1",
    "run_id": b"r" * 32,
    "nonce": b"n" * 16,
    "lane": "control",
    "dial": 1,
}


def hello_frame(**changes: Any) -> bytes:
    head = msgpack.packb(HELLO | changes)
    return bytes([Kind.HELLO, 0]) + len(head).to_bytes(2, "big") + bytes(4) + head


async def accept(hello: Hello) -> None:
    """Judge that there is nothing to object."""


async def streams(world: SimWorld) -> tuple[SecureStream, SecureStream]:
    dialler, listener = world.runtime("10.0.0.1"), world.runtime("10.0.0.2")
    accepted: asyncio.Queue[RawStream] = asyncio.Queue()
    port = await listener.network.listen(Address("10.0.0.2", 0), accepted.put_nowait)
    raw = await dialler.network.connect(port.address)
    return await asyncio.gather(
        dialler.network.secure(raw, Identity.generate(dialler.entropy), server=False),
        listener.network.secure(await accepted.get(), Identity.generate(listener.entropy), server=True),
    )


def outcome_against(words: bytes) -> BaseException | Hello:
    """Return what a handshake comes to against an end that says these words."""

    async def story() -> BaseException | Hello:
        near, far = await streams(world)
        await far.write(words)
        (outcome,) = await asyncio.gather(shake_hands(near, Hello(**HELLO), accept), return_exceptions=True)
        return outcome

    world = SimWorld(seed=1)
    return world.run(story())


def test_two_ends_accept_each_other():
    async def story():
        near, far = await streams(world)
        own = Hello(**HELLO)
        assert await asyncio.gather(shake_hands(near, own, accept), shake_hands(far, own, accept)) == [own, own]

    world = SimWorld(seed=1)
    world.run(story())


@pytest.mark.parametrize(("theirs", "ours"), [((3, 4), (1, 1)), ((1, 1), (2, 5))])
def test_both_ends_name_both_versions(theirs, ours):  # BUG-T18
    def hello(versions: tuple[int, int]) -> Hello:
        return Hello(**HELLO | {"min_protocol": versions[0], "max_protocol": versions[1]})

    async def story():
        near, far = await streams(world)
        errors = await asyncio.gather(
            shake_hands(near, hello(ours), accept), shake_hands(far, hello(theirs), accept), return_exceptions=True
        )
        for error in errors:
            assert isinstance(error, IncompatibleError)
        spans = [f"{first}-{last}" for first, last in (theirs, ours)]
        assert f"speaks p2ptrain protocol {spans[0]}" in str(errors[0])
        assert f"this build {spans[1]}" in str(errors[0])
        assert f"speaks p2ptrain protocol {spans[1]}" in str(errors[1])

    world = SimWorld(seed=1)
    world.run(story())


def test_overlapping_versions_and_unknown_fields_are_accepted():  # BUG-T18
    words = hello_frame(max_protocol=9, colour="blue") + encode_frame_welcome()
    assert isinstance(outcome_against(words), Hello)


def encode_frame_welcome() -> bytes:
    return bytes([Kind.WELCOME, 0, 0, 1, 0, 0, 0, 0, 0x80])


@pytest.mark.parametrize("version", [0, -1, 1 << 63, "1", None, 1.0, [1]])
def test_a_garbage_version_is_incompatible(version):  # BUG-T18
    outcome = outcome_against(hello_frame(min_protocol=version))
    assert isinstance(outcome, IncompatibleError)
    assert "10.0.0.2" in str(outcome)


@pytest.mark.parametrize(
    "words",
    [
        hello_frame(magic="bittorrent"),
        hello_frame(run_id=b"short"),
        hello_frame(lane="carrier pigeon"),
        encode_frame(Ping(token=1)),
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        bytes([Kind.HELLO, 0]) + (MAX_HELLO_BYTES + 1).to_bytes(2, "big") + bytes(4),
        hello_frame() + encode_frame(Ping(token=1)),
    ],
)
def test_what_is_no_hello_is_incompatible(words):
    assert isinstance(outcome_against(words), IncompatibleError)


def test_silence_has_a_limit():  # BUG-X03
    outcome = outcome_against(b"\x01")
    assert isinstance(outcome, NetworkError)
    assert "said no HELLO within" in str(outcome)
