"""libp2p's daemon, in memory: what hivemind asks of its `P2P` object, over a network of plain delays.

Only for hivemind's own averaging (matchmaking.py). Messages are handed over as they are, without being serialised, so
they cost next to nothing; bandwidth is unlimited and nothing is lost. A handler runs with the clock and the chance of
the peer that serves it. A peer that dies does so without a word: whoever called it waits for its own time-out.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from hivemind.p2p import P2PContext, P2PDaemonError, PeerID

from p2ptrain.discovery.kademlia.ports import Surroundings

_END: Final = object()


class Wire:
    """Delays between pairs of peers, and who is there."""

    def __init__(self, latency: tuple[float, float], chance: random.Random) -> None:
        """`latency`: between which one-way delays (s) that of each pair is drawn."""
        self.num_messages = 0
        self.peers: dict[bytes, Daemon] = {}
        self._latency, self._chance = latency, chance
        self._delays: dict[tuple[bytes, bytes], float] = {}

    def delay(self, one: bytes, other: bytes) -> float:
        pair = (one, other) if one < other else (other, one)
        delay = self._delays.get(pair)
        if delay is None:
            delay = self._delays[pair] = self._chance.uniform(*self._latency)
        return delay

    async def reach(self, caller: "Daemon", callee: bytes) -> "Daemon":
        """Travel to a peer; for ever, when it is not there."""
        if caller.surroundings.is_closed:
            raise P2PDaemonError("this peer is dead")
        self.num_messages += 1
        await asyncio.sleep(self.delay(caller.id, callee))
        daemon = self.peers.get(callee)
        if daemon is None:
            await asyncio.Event().wait()
        assert daemon is not None
        return daemon


class Daemon:
    """One peer's end. Its coroutines are named and called as those of `hivemind.P2P`."""

    def __init__(self, wire: Wire, peer_id: PeerID, surroundings: Surroundings) -> None:
        self.peer_id, self.surroundings = peer_id, surroundings
        self.id: bytes = peer_id.to_bytes()
        self._wire = wire
        self._handlers: dict[str, Callable[..., Any]] = {}
        wire.peers[self.id] = self

    async def add_protobuf_handler(self, name: str, handler: Callable[..., Any], *args: Any, **options: Any) -> None:
        self._handlers[name] = handler

    async def remove_protobuf_handler(self, name: str, *args: Any, **options: Any) -> None:
        self._handlers.pop(name, None)

    async def call_protobuf_handler(self, peer: PeerID, name: str, request: Any, response_class: Any) -> Any:
        callee = await self._wire.reach(self, peer.to_bytes())
        with callee.surroundings.entered():
            response = await callee._handler(name)(request, self._context_at(callee, name))
        if callee.surroundings.is_closed:
            await asyncio.Event().wait()
        self._wire.num_messages += 1
        await asyncio.sleep(self._wire.delay(self.id, callee.id))
        return response

    async def iterate_protobuf_handler(self, peer: PeerID, name: str, request: Any, response_class: Any) -> "Answers":
        return Answers(self, peer.to_bytes(), name, request)

    def vanish(self) -> None:
        """Be dead: from now on nothing arrives here, and nothing leaves."""
        self._wire.peers.pop(self.id, None)

    def _handler(self, name: str) -> Callable[..., Any]:
        if name not in self._handlers:
            raise P2PDaemonError(f"nobody handles {name}")
        return self._handlers[name]

    def _context_at(self, callee: "Daemon", name: str) -> P2PContext:
        return P2PContext(handle_name=name, local_id=callee.peer_id, remote_id=self.peer_id)


class Answers:
    """The answers of a streaming call, as the caller sees them."""

    def __init__(self, caller: Daemon, callee: bytes, name: str, request: Any) -> None:
        self._caller, self._callee, self._name, self._request = caller, callee, name, request
        self._arrived: asyncio.Queue[Any] = asyncio.Queue()
        self._serving: asyncio.Task[None] | None = None
        self._travelling = asyncio.create_task(self._travel())
        caller.surroundings.own(self._travelling)

    def __aiter__(self) -> "Answers":
        return self

    async def __anext__(self) -> Any:
        answer = await self._arrived.get()
        if answer is _END:
            raise StopAsyncIteration
        return answer

    async def aclose(self) -> None:
        """Tell the other end that no answer is wanted any more; it hears so one way later."""
        self._travelling.cancel()
        if self._serving is not None and not self._serving.done():
            delay = self._wire.delay(self._caller.id, self._callee)
            asyncio.get_running_loop().call_later(delay, self._serving.cancel)

    @property
    def _wire(self) -> Wire:
        return self._caller._wire

    async def _travel(self) -> None:
        callee = await self._wire.reach(self._caller, self._callee)
        with callee.surroundings.entered():
            self._serving = asyncio.create_task(self._serve(callee))
        callee.surroundings.own(self._serving)

    async def _serve(self, callee: Daemon) -> None:
        loop, delay = asyncio.get_running_loop(), self._wire.delay(self._caller.id, self._callee)
        answers: AsyncIterator[Any] = callee._handler(self._name)(
            self._request, self._caller._context_at(callee, self._name)
        )
        try:
            async for answer in answers:
                if not callee.surroundings.is_closed:
                    self._wire.num_messages += 1
                    loop.call_later(delay, self._arrived.put_nowait, answer)
        finally:
            await answers.aclose()  # type: ignore[attr-defined]
        if not callee.surroundings.is_closed:
            loop.call_later(delay, self._arrived.put_nowait, _END)
