"""Frames: what a connection carries.

A frame is a prefix of eight bytes, a head and, in a DATA frame only, a piece of a body:

    kind u8 | zero u8 | head length u16 | body length u32 | head: a msgpack map | body: raw bytes

So a head has at most 65,535 bytes and a piece at most 256 KiB: both lengths are checked before anything is allocated
or read. Whatever is larger is a body, cut into pieces and received straight into its place.

    HELLO, WELCOME      the first two frames in each direction (net/handshake.py)
    OPEN                begins a stream: a request, and how long its body will be
    ANSWER, REFUSAL     end it, with a reply (whose body follows as DATA) or with a reason
    DATA, CREDIT        pieces of bodies, and leave to send more of them
    RESET               ends a stream at once: the sender wants nothing more of it
    PING, PONG          is somebody there?
    RETIRE              no further stream will be opened by the sender on this connection
    GOODBYE             the connection ends, and why
"""

from enum import IntEnum
from struct import Struct
from typing import Annotated, Final, NamedTuple

from pydantic import Field

from p2ptrain.wire.messages import Message

PREFIX_BYTES: Final = 8
MAX_HEAD_BYTES: Final = 0xFFFF
MAX_PIECE_BYTES: Final = 256 * 1024  # large enough for few frames per second, small enough to interleave
MAX_MESSAGE_BYTES: Final = MAX_HEAD_BYTES - 1024  # leaves room for the rest of an OPEN or ANSWER
MAX_BODY_BYTES: Final = 1 << 40  # the largest that a frame can declare; what a method accepts is far less
MAX_RECORD_BYTES: Final = 2048  # a signed address record in a HELLO (discovery allows 1,024)

_PREFIX: Final = Struct(">BBHI")


class Kind(IntEnum):
    """The first byte of a frame. A number is never given a second meaning."""

    HELLO = 1
    WELCOME = 2
    OPEN = 3
    ANSWER = 4
    REFUSAL = 5
    DATA = 6
    CREDIT = 7
    RESET = 8
    PING = 9
    PONG = 10
    RETIRE = 11
    GOODBYE = 12


class Prefix(NamedTuple):
    """The checked first eight bytes of a frame."""

    kind: Kind
    head_bytes: int
    piece_bytes: int


StreamId = Annotated[int, Field(ge=1, lt=1 << 62)]
BodyBytes = Annotated[int, Field(ge=0, le=MAX_BODY_BYTES)]
Code = Annotated[str, Field(max_length=64)]
Sentence = Annotated[str, Field(max_length=512)]


class Greeting(Message):
    """The part of a HELLO that every version of the protocol can read."""

    magic: str
    min_protocol: Annotated[int, Field(ge=1, le=0xFFFF)]
    max_protocol: Annotated[int, Field(ge=1, le=0xFFFF)]
    build: Annotated[str, Field(max_length=64)]


class Hello(Greeting):
    """Who speaks: the run, this start of the process, and what the connection is for."""

    run_id: Annotated[bytes, Field(min_length=32, max_length=32)]
    nonce: Annotated[bytes, Field(min_length=16, max_length=16)]  # random, once per start of a process
    lane: Annotated[
        str, Field(pattern="^(control|bulk|probe|)$")
    ]  # what the dialler wants of it; empty from the listener
    dial: Annotated[int, Field(ge=0, lt=1 << 62)]  # the dialler's count of its dials; 0 from the listener
    record: Annotated[bytes, Field(max_length=MAX_RECORD_BYTES)] = b""


class Welcome(Message):
    """The other end's HELLO was accepted."""


class Open(Message):
    """A request. Its body waits for CREDIT; the reply's body may have `max_reply_bytes`."""

    stream: StreamId
    method_name: Annotated[str, Field(min_length=1, max_length=64)]
    body_bytes: BodyBytes
    max_reply_bytes: BodyBytes
    message: bytes


class Answer(Message):
    """A reply; `body_bytes` of DATA follow."""

    stream: StreamId
    body_bytes: BodyBytes
    message: bytes


class Refusal(Message):
    """No, and why; see errors.Refused."""

    stream: StreamId
    code: Code
    message: Sentence
    retry_after: Annotated[float, Field(ge=0)] | None = None


class Data(Message):
    """The next piece of the stream's body in this direction."""

    stream: StreamId


class Credit(Message):
    """Leave to send so many more bytes of the body."""

    stream: StreamId
    more_bytes: Annotated[int, Field(ge=1, le=1 << 30)]


class Reset(Message):
    """The stream ended at its sender."""

    stream: StreamId


class Ping(Message):
    """Asks for a PONG with the same token."""

    token: Annotated[int, Field(ge=0, lt=1 << 62)]


class Pong(Message):
    """The answer to a PING."""

    token: Annotated[int, Field(ge=0, lt=1 << 62)]


class Retire(Message):
    """The sender opens no further stream on this connection."""


class Goodbye(Message):
    """The connection ends."""

    code: Code
    message: Sentence


HEADS: Final[dict[Kind, type[Message]]] = {
    Kind.HELLO: Greeting,
    Kind.WELCOME: Welcome,
    Kind.OPEN: Open,
    Kind.ANSWER: Answer,
    Kind.REFUSAL: Refusal,
    Kind.DATA: Data,
    Kind.CREDIT: Credit,
    Kind.RESET: Reset,
    Kind.PING: Ping,
    Kind.PONG: Pong,
    Kind.RETIRE: Retire,
    Kind.GOODBYE: Goodbye,
}


def encode_frame(head: Message, piece_bytes: int = 0) -> bytes:
    """Return prefix and head; a piece of `piece_bytes` is to follow as it is."""
    kind, encoded = _KIND_OF[type(head)], head.encode()
    if len(encoded) > MAX_HEAD_BYTES or piece_bytes > MAX_PIECE_BYTES:
        raise ValueError(f"a {kind.name} frame of {len(encoded)} + {piece_bytes} bytes is above the protocol's limit")
    return _PREFIX.pack(kind, 0, len(encoded), piece_bytes) + encoded


def parse_prefix(data: bytes | bytearray | memoryview) -> Prefix:
    """Return what the eight bytes announce; ValueError when the protocol does not allow it."""
    number, zero, head_bytes, piece_bytes = _PREFIX.unpack(data)
    kind = _KINDS.get(number)
    if zero != 0 or kind is None:
        raise ValueError(f"frame kind {number}.{zero} is unknown")
    if piece_bytes > MAX_PIECE_BYTES:
        raise ValueError(f"a piece of {piece_bytes} bytes; the limit is {MAX_PIECE_BYTES}")
    if (kind is Kind.DATA) != (piece_bytes > 0):
        raise ValueError(f"a {kind.name} frame with a body of {piece_bytes} bytes")
    if head_bytes == 0:
        raise ValueError(f"a {kind.name} frame without a head")
    return Prefix(kind, head_bytes, piece_bytes)


def parse_head(kind: Kind, data: bytes | bytearray | memoryview) -> Message:
    """Return the checked head of a frame; ValueError says what is wrong with it."""
    return HEADS[kind].decode(data)


_KINDS: Final = {int(kind): kind for kind in Kind}
_KIND_OF: Final = {head: kind for kind, head in HEADS.items()} | {Hello: Kind.HELLO}
