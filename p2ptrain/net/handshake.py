"""The first words on a connection.

TLS has proven both keys. Each end now sends HELLO without waiting, judges the other's, and answers WELCOME or GOODBYE
with a reason. The connection is up when both WELCOMEs have arrived: a dialler whom the listener turns away learns why,
from the listener, in a sentence. What every version of the protocol can read (magic, versions, build) is checked
before the rest, so that a mismatch of versions is never reported as a broken message.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from p2ptrain.errors import (
    IdentityInUseError,
    IncompatibleError,
    LinkError,
    NetworkError,
    NoRoomError,
    P2PTrainError,
)
from p2ptrain.ids import RunId, format_run_id
from p2ptrain.runtime import SecureStream
from p2ptrain.wire.frames import (
    PREFIX_BYTES,
    Goodbye,
    Greeting,
    Hello,
    Kind,
    Welcome,
    encode_frame,
    parse_head,
    parse_prefix,
)
from p2ptrain.wire.messages import Message

MAGIC: Final = "p2ptrain"
MIN_PROTOCOL: Final = 1
MAX_PROTOCOL: Final = 1
HANDSHAKE_TIMEOUT: Final = 8.0  # s for both frames: a round trip, and the 3 s that an older connection is probed
MAX_HELLO_BYTES: Final = 4096

_CODES: Final[dict[str, type[P2PTrainError]]] = {
    "incompatible": IncompatibleError,
    "wrong-run": LinkError,
    "identity-in-use": IdentityInUseError,
    "no-room": NoRoomError,
    "refused": NetworkError,
}

Judge = Callable[[Hello], Awaitable[None]]


async def shake_hands(stream: SecureStream, own: Hello, judge: Judge) -> Hello:
    """Return the other end's HELLO once both ends have accepted each other.

    `judge` raises what is wrong with the other end. Raises IncompatibleError, LinkError, IdentityInUseError or
    NetworkError, whichever end found the reason; the stream is then of no further use.
    """
    try:
        async with asyncio.timeout(HANDSHAKE_TIMEOUT):
            await stream.write(encode_frame(own))
            hello = await _read_hello(stream, own)
            await _judge_or_part(stream, own, hello, judge)
            await _say(stream, Welcome())
            await _read_welcome(stream)
            return hello
    except TimeoutError:
        raise NetworkError(f"{stream.remote} said no HELLO within {HANDSHAKE_TIMEOUT:g} s") from None


async def _judge_or_part(stream: SecureStream, own: Hello, hello: Hello, judge: Judge) -> None:
    try:
        _check_run(stream, own, hello)
        await judge(hello)
    except P2PTrainError as error:
        code = next(code for code, kind in _CODES.items() if isinstance(error, kind))
        await _say(stream, Goodbye(code=code, message=str(error)[:512]))
        raise


async def _say(stream: SecureStream, head: Message) -> None:
    with suppress(NetworkError):  # the other end may have parted first; its reason can still be read
        await stream.write(encode_frame(head))


async def _read_hello(stream: SecureStream, own: Hello) -> Hello:
    kind, data = await _read_frame(stream)
    try:
        greeting = Greeting.decode(data) if kind is Kind.HELLO else None
        if greeting is None or greeting.magic != MAGIC:
            raise ValueError("no HELLO")
    except ValueError as error:
        raise IncompatibleError(f"{stream.remote} is not a p2ptrain port that this build knows ({error})") from None
    if greeting.min_protocol > own.max_protocol or greeting.max_protocol < own.min_protocol:
        raise IncompatibleError(
            f"{stream.remote} speaks p2ptrain protocol {greeting.min_protocol}-{greeting.max_protocol} "
            f"(build {greeting.build}), this build {own.min_protocol}-{own.max_protocol} (build {own.build})"
        )
    try:
        return Hello.decode(data)
    except ValueError as error:
        raise IncompatibleError(f"{stream.remote} sent a broken HELLO: {error}") from None


def _check_run(stream: SecureStream, own: Hello, hello: Hello) -> None:
    if hello.run_id != own.run_id:
        theirs, ours = format_run_id(RunId(hello.run_id)), format_run_id(RunId(own.run_id))
        raise LinkError(f"{stream.remote} trains run {theirs}, not {ours}")


async def _read_welcome(stream: SecureStream) -> None:
    kind, data = await _read_frame(stream)
    if kind is Kind.WELCOME:
        return
    head = _parsed(stream, kind, data)
    if isinstance(head, Goodbye):
        raise _CODES.get(head.code, NetworkError)(head.message)
    raise IncompatibleError(f"{stream.remote} sent {kind.name} in place of WELCOME")


async def _read_frame(stream: SecureStream) -> tuple[Kind, bytes]:
    buffer = memoryview(bytearray(MAX_HELLO_BYTES))
    await stream.read_into(buffer[:PREFIX_BYTES])
    try:
        prefix = parse_prefix(buffer[:PREFIX_BYTES])
        if prefix.piece_bytes or prefix.head_bytes > MAX_HELLO_BYTES:
            raise ValueError(f"a {prefix.kind.name} frame of {prefix.head_bytes} bytes before the handshake's end")
    except ValueError as error:
        raise IncompatibleError(f"{stream.remote} does not speak p2ptrain ({error})") from None
    head = buffer[: prefix.head_bytes]
    await stream.read_into(head)
    return prefix.kind, bytes(head)


def _parsed(stream: SecureStream, kind: Kind, data: bytes) -> Message:
    try:
        return parse_head(kind, data)
    except ValueError as error:
        raise IncompatibleError(f"{stream.remote} sent a broken {kind.name}: {error}") from None
