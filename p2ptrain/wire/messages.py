"""The base of every message that peers exchange.

A message is a msgpack map, checked strictly when it arrives: no coercion, no NaN, no duplicate key, no map keys but
text and bytes, nothing nested deeper than its fields ask for. Unknown fields are ignored, so that a newer peer may say
more. Requests name their method; replies have none. Each service defines its messages beside its code:

    class HeadRequest(Message):
        method: ClassVar[str] = "chain.head"
        fragment: int

Sequences are tuples, since a message is frozen and msgpack's arrays arrive as tuples. Tensors never travel in a
message: they are the body of a call.
"""

from typing import Any, ClassVar, Self

import msgpack
from pydantic import BaseModel, ConfigDict, ValidationError


class Message(BaseModel):
    """What a call says and what it answers. Float fields are finite; allow more with `Annotated[float, AllowInfNan()]`."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)

    method: ClassVar[str] = ""

    def encode(self) -> bytes:
        """Return the message as a msgpack map."""
        encoded: bytes = msgpack.packb(self.__dict__, default=_fields)
        return encoded

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview) -> Self:
        """Return the message that `data` spells; ValueError says in one line what is wrong with it."""
        fields = unpack(data)
        if not isinstance(fields, dict):
            raise ValueError(f"{cls.__name__} is a map, not {type(fields).__name__}")
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"])[:60]
            raise ValueError(f"{cls.__name__}.{where}: {first['msg'][:120]}") from None


def _fields(value: object) -> dict[str, Any]:
    """Return the fields of a message inside a message."""
    if isinstance(value, Message):
        return value.__dict__
    raise TypeError(f"{type(value).__name__} is nothing that a message holds")


def unpack(data: bytes | bytearray | memoryview) -> Any:
    """Return the one msgpack value in `data`, with arrays as tuples; ValueError for anything else.

    msgpack itself raises TypeError, OverflowError and several classes of its own on hostile input, and accepts
    duplicate keys, extension types and time stamps, for which p2ptrain has no use.
    """
    try:
        return msgpack.unpackb(data, use_list=False, object_pairs_hook=_distinct, ext_hook=_no_extension)
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.exceptions.UnpackException) as error:
        raise ValueError(f"not a msgpack message: {type(error).__name__} {str(error)[:80]}") from None


def _distinct(pairs: list[tuple[str | bytes, Any]]) -> dict[str | bytes, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key stands twice")
    return fields


def _no_extension(code: int, data: bytes) -> Any:
    raise ValueError(f"extension type {code}")
