"""The order in which frames leave."""

import asyncio

from p2ptrain.net.bodies import OutgoingBody, flat
from p2ptrain.net.outbox import MAX_WAITING_FRAMES, MIN_PIECE_BYTES, Outbox
from p2ptrain.sim.loop import run
from p2ptrain.wire.frames import MAX_PIECE_BYTES, PREFIX_BYTES, Data, Ping, parse_head, parse_prefix
from p2ptrain.wire.messages import Message


def body_of(byte: bytes, size: int, credit_bytes: int = 1 << 30) -> OutgoingBody:
    return OutgoingBody(flat(byte * size), credit_bytes)


def next_head(outbox: Outbox) -> Message | None:
    buffers, _ = outbox.take()
    if not buffers:
        return None
    frame = bytes(buffers[0])
    return parse_head(parse_prefix(frame[:PREFIX_BYTES]).kind, frame[PREFIX_BYTES:])


def test_control_frames_leave_before_bodies_however_late_they_come():
    async def story():
        outbox = Outbox()
        outbox.add_body(1, body_of(b"a", 1 << 20))
        assert next_head(outbox) == Data(stream=1)
        outbox.put(Ping(token=5))
        assert next_head(outbox) == Ping(token=5)
        assert next_head(outbox) == Data(stream=1)

    run(story())


def test_bodies_take_turns():
    async def story():
        outbox = Outbox()
        for stream in (1, 3, 5):
            outbox.add_body(stream, body_of(b"a", 1 << 20))
        heads = [next_head(outbox) for _ in range(6)]
        assert heads == [Data(stream=stream) for stream in (1, 3, 5, 1, 3, 5)]

    run(story())


def test_a_body_without_credit_waits_and_goes_on_with_it():
    async def story():
        outbox = Outbox()
        outbox.add_body(1, body_of(b"a", 100, credit_bytes=0))
        assert next_head(outbox) is None
        outbox.add_credit(1, 50)
        assert sum(map(len, outbox.take()[0][1:])) == 50
        assert next_head(outbox) is None
        outbox.drop_body(1)
        outbox.add_credit(1, 50)
        assert next_head(outbox) is None

    run(story())


def test_whoever_waits_for_a_body_is_told_with_its_last_piece():
    async def story():
        outbox, written = Outbox(), asyncio.Future()
        outbox.add_body(1, body_of(b"a", 3 * MAX_PIECE_BYTES), written)
        told = []
        while (taken := outbox.take())[0]:
            told.append(taken[1])
        assert told[-1] is written
        assert set(told[:-1]) == {None}

    run(story())


def test_pieces_follow_the_speed_of_the_connection():
    async def story():
        outbox = Outbox()
        outbox.add_body(1, body_of(b"a", 64 << 20))

        def piece_bytes_at(now: float, bytes_per_second: int) -> int:
            outbox.adapt(now, bytes_per_second)  # one second's worth
            return sum(map(len, outbox.take()[0][1:]))

        assert piece_bytes_at(1.0, 25_000) == MIN_PIECE_BYTES
        assert piece_bytes_at(2.0, 1_000_000) == 100_000
        assert piece_bytes_at(3.0, 100_000_000) == MAX_PIECE_BYTES

    run(story())


def test_too_many_waiting_frames_are_noticed():  # BUG-X04
    async def story():
        outbox = Outbox()
        for token in range(MAX_WAITING_FRAMES + 1):
            assert not outbox.is_overfull
            outbox.put(Ping(token=token))
        assert outbox.is_overfull

    run(story())
