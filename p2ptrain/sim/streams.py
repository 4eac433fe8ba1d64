"""The two ends of a simulated connection, and the listeners that they come from."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from p2ptrain.errors import NetworkError
from p2ptrain.runtime import Address, RawStream
from p2ptrain.sim.agenda import WORLD
from p2ptrain.sim.nat import Passage
from p2ptrain.sim.pipes import SEND_BUFFER_BYTES, Data, Pipe

if TYPE_CHECKING:
    from p2ptrain.sim.network import SimHost

CLOSE_TIMEOUT: Final = 2.0  # s to send what is queued, as in the real network
CLOSED: Final = "closed by the other end"
RESET: Final = "reset by the other end"


class SimStream:
    """One end of a connection, before (RawStream) and after (SecureStream) the keys are known."""

    __slots__ = ("_ended", "_local", "_passage", "_remote", "incoming", "outgoing", "owner", "remote_public_key")

    def __init__(
        self, owner: "SimHost", incoming: Pipe, outgoing: Pipe, local: Address, remote: Address, passage: Passage | None
    ) -> None:
        """`passage` is what the connection holds in the NAT boxes on its way, given back when it ends."""
        self.owner, self.incoming, self.outgoing = owner, incoming, outgoing
        self._local, self._remote, self._passage = local, remote, passage
        self._ended: str | None = None
        self.remote_public_key = b""
        incoming.far = outgoing.near = self

    @property
    def remote(self) -> Address:
        return self._remote

    @property
    def local(self) -> Address:
        return self._local

    @property
    def other(self) -> "SimStream":
        """The other end of the connection."""
        return self.outgoing.far

    @property
    def is_open(self) -> bool:
        """Whether neither end has ended it, as far as this one knows."""
        return self._ended is None and self.incoming.ended is None

    def check(self) -> None:
        """Raise the NetworkError of an ended connection."""
        ended = self._ended or self.incoming.ended
        if ended is not None:
            raise NetworkError(ended)

    async def read_into(self, view: memoryview) -> None:
        if self._ended is not None:
            raise NetworkError(self._ended)
        await self.incoming.read_into(view)

    async def write(self, *buffers: bytes | bytearray | memoryview) -> None:
        if self._ended is not None or self.incoming.ended is not None:
            self.check()
        outgoing = self.outgoing
        if len(buffers) == 1 and type(buffers[0]) is bytes:
            data: Data = buffers[0]
            outgoing.write(data, len(data))
        else:
            parts = [_kept(buffer) for buffer in buffers]
            outgoing.write(parts, sum(map(len, parts)))
        if outgoing.flow is not None:
            await outgoing.drained()

    def write_soon(self, data: bytes) -> bool:
        if self._ended is not None or self.incoming.ended is not None:
            self.check()
        outgoing = self.outgoing
        if outgoing.flow is not None and outgoing.unsent_bytes > SEND_BUFFER_BYTES:
            return False
        outgoing.write(data, len(data))
        return True

    async def close(self) -> None:
        if self._ended is not None:
            return
        self._end(CLOSED, drop=False)
        if self.outgoing.flow is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT):
                    await self.outgoing.emptied()
            if self.outgoing.flow is not None:
                self.outgoing.finish(RESET, drop=True)

    def abort(self) -> None:
        if self._ended is None:
            self._end(RESET, drop=True)

    def reset(self) -> None:
        """End both ends at once, as a box between them does."""
        for end in (self, self.other):
            end.vanish(RESET)

    def vanish(self, reason: str = "this connection was closed") -> None:
        """End this end without telling the other one."""
        if self._ended is None:
            self._ended = reason
            self.outgoing.drop()
            self.incoming.break_off(self._ended)
            self._forget()

    def remote_ended(self, reason: str) -> None:
        """Take note of the other end's last word."""
        self.incoming.break_off(reason)
        self.outgoing.drop()
        self._forget()

    def was_not_heard(self) -> None:
        """Go on trying until the machine that lost its connections is back, and says that it knows of none."""
        if self.is_open:
            self.owner.network.ask_for_reset(self, self.other.owner.name)

    def _end(self, reason: str, *, drop: bool) -> None:
        self._ended = "this connection was closed"
        self.incoming.break_off(self._ended)
        self.outgoing.finish(reason, drop=drop)
        self._forget()

    def _forget(self) -> None:
        passage, self._passage = self._passage, None
        if passage is not None:
            passage.release()
        self.owner.network.forget(self)


class SimListener:
    """A port in use."""

    def __init__(self, owner: "SimHost", address: Address, on_stream: Callable[[RawStream], None]) -> None:
        self.owner, self._address, self._on_stream = owner, address, on_stream

    @property
    def address(self) -> Address:
        return self._address

    def accept(self, stream: SimStream) -> None:
        """Hand a stream to the listening process, in its own context: a frozen one gets it when it is thawed."""
        process = self.owner.process
        context = process.context if process is not None else WORLD
        asyncio.get_running_loop().call_soon(self._hand_over, stream, context=context)

    async def close(self) -> None:
        self.owner.network.remove_listener(self)

    def _hand_over(self, stream: SimStream) -> None:
        if self.owner.alive:
            self._on_stream(stream)
        else:
            stream.abort()


def _kept(buffer: bytes | bytearray | memoryview) -> bytes | memoryview:
    """Return the same bytes, safe from changes; a view of bytes is kept as it is."""
    if isinstance(buffer, bytes):
        return buffer
    if isinstance(buffer, memoryview) and type(buffer.obj) is bytes and buffer.c_contiguous:
        return buffer.cast("B")
    return bytes(buffer)
