"""What this peer answers: methods by name, each with its limits.

The border of a call: whatever a handler raises ends that call and nothing else.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from p2ptrain.errors import LocalProtocolError, Refused
from p2ptrain.events import Events
from p2ptrain.ids import PeerId
from p2ptrain.net.bodies import Body
from p2ptrain.tasks import describe
from p2ptrain.wire.frames import MAX_BODY_BYTES, MAX_MESSAGE_BYTES, Open
from p2ptrain.wire.messages import Message

Request = TypeVar("Request", bound=Message)
Handler = Callable[[PeerId, Request, bytearray], Awaitable[Message | tuple[Message, Body]]]
AtOnce = Callable[[PeerId, Request], Message]
Admit = Callable[[PeerId, Request, int], None]
MessageHook = Callable[[str, str, PeerId], None]  # direction ("send", "receive"), method, the other peer


@dataclass(frozen=True, slots=True)
class _Method:
    request: type[Message]
    handler: Handler[Any]
    at_once: AtOnce[Any] | None  # the same, when it needs no waiting
    admit: Admit[Any] | None
    max_body_bytes: int


class Handlers:
    """The registry, and the service that sessions call."""

    def __init__(self, events: Events, on_message: MessageHook) -> None:
        self._events, self._on_message = events, on_message
        self._methods: dict[str, _Method] = {}
        self.num_refused = 0

    def add(
        self, request: type[Request], handler: Handler[Request], admit: Admit[Request] | None, max_body_bytes: int
    ) -> None:
        if not 0 <= max_body_bytes <= MAX_BODY_BYTES:
            raise LocalProtocolError(
                f"{request.method}: a body of {max_body_bytes} bytes is above the protocol's limit"
            )
        self._add(_Method(request, handler, None, admit, max_body_bytes))

    def add_at_once(self, request: type[Request], function: AtOnce[Request]) -> None:
        async def handler(sender: PeerId, message: Request, _body: bytearray) -> Message:
            return function(sender, message)

        self._add(_Method(request, handler, function, None, 0))

    def _add(self, method: _Method) -> None:
        name = method.request.method
        if not name or name in self._methods:
            raise LocalProtocolError(f"{method.request.__name__}: method {name!r} has a handler, or no name")
        self._methods[name] = method

    def answers_at_once(self, opened: Open) -> bool:
        """Return whether the answer needs no waiting."""
        method = self._methods.get(opened.method_name)
        return method is not None and method.at_once is not None

    def admit(self, sender: PeerId, opened: Open) -> Message:
        """Return the request, checked; Refused when it will not be served, ValueError when it is malformed."""
        method = self._methods.get(opened.method_name)
        if method is None:
            raise self._refused("unknown-method", f"this build knows no method {opened.method_name!r}")
        if opened.body_bytes > method.max_body_bytes:
            limit = f"the limit is {method.max_body_bytes}"
            raise self._refused("too-large", f"{opened.method_name} with {opened.body_bytes} bytes; {limit}")
        request = method.request.decode(opened.message)
        self._on_message("receive", opened.method_name, sender)
        if method.admit is not None:
            self._guard(opened.method_name, method.admit, sender, request, opened.body_bytes)
        return request

    def answer(self, sender: PeerId, request: Message) -> bytes:
        """Return the encoded reply to a request that is answered at once; Refused when there is none."""
        function = self._methods[request.method].at_once
        assert function is not None  # whoever asks has asked `answers_at_once`
        try:
            return encode(function(sender, request))
        except Refused:
            self.num_refused += 1
            raise
        except Exception as error:  # the border: a bug in a handler ends its call, not the connection
            raise self._failed(request.method, error) from error

    async def respond(self, sender: PeerId, request: Message, body: bytearray) -> tuple[bytes, Body]:
        """Return the encoded reply and its body; Refused when there is none."""
        handler = self._methods[request.method].handler
        try:
            answer = await handler(sender, request, body)
            message, reply_body = answer if isinstance(answer, tuple) else (answer, b"")
            return encode(message), reply_body
        except Refused:
            self.num_refused += 1
            raise
        except Exception as error:  # the border, as above
            raise self._failed(request.method, error) from error

    def _guard(self, method: str, function: Callable[..., None], *args: Any) -> None:
        try:
            function(*args)
        except Refused:
            self.num_refused += 1
            raise
        except Exception as error:  # the border, as above
            raise self._failed(method, error) from error

    def _failed(self, method: str, error: Exception) -> Refused:
        self._events.emit("task-failed", task=f"handle {method}", error=describe(error))
        return self._refused("failed", f"{method} failed at the other end")

    def _refused(self, code: str, message: str) -> Refused:
        self.num_refused += 1
        return Refused(code, message)


def encode(message: Message) -> bytes:
    """Return an encoded message; LocalProtocolError when it is too large to be one."""
    encoded = message.encode()
    if len(encoded) > MAX_MESSAGE_BYTES:
        kind = message.method or type(message).__name__
        raise LocalProtocolError(
            f"{kind}: a message of {len(encoded)} bytes; the limit is {MAX_MESSAGE_BYTES}, more travels as a body"
        )
    return encoded
