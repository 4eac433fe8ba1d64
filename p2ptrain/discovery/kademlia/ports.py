"""hivemind's time, chance and tasks: those of the peer that it works for.

hivemind reads the machine's clock and the global `random`, starts tasks that nobody owns, orders some sets by salted
hashes, and computes the base58 of a peer id each time it meets one, which is a third of its CPU time. Here it gets what
it needs from the peer whose task runs. So it runs in virtual time, too, with clocks that differ from peer to peer, and
none of its tasks outlives its peer. Whoever enters hivemind says for whom; the tasks that it starts inherit that:

    surroundings = Surroundings(runtime.clock.wall, runtime.entropy.random)
    with surroundings.entered():
        await node.store(...)

Outside of such a block it has the machine's clock and chance, as without us. The names in hivemind's modules are
replaced one by one, since they took the functions by value when they were imported.
"""

import asyncio
import random
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from types import ModuleType
from typing import Any, Final

import base58
from hivemind.dht import protocol
from hivemind.dht.routing import DHTID
from hivemind.p2p import PeerID
from hivemind.utils import timed_storage

MAX_NAMES: Final = 1 << 14  # peer ids of which the base58 is remembered

_CURRENT: Final[ContextVar["Surroundings | None"]] = ContextVar("hivemind_surroundings", default=None)
_machine_time: Final = timed_storage.get_dht_time


class Surroundings:
    """What hivemind has of one peer: its clock, its chance, and a place for its tasks."""

    def __init__(self, wall: Callable[[], float], chance: random.Random) -> None:
        self.wall, self.chance = wall, chance
        self._tasks: dict[asyncio.Task[Any], None] = {}  # in order of creation
        self.is_closed = False

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Let hivemind work for this peer in this block, and in tasks that it starts there."""
        before = _CURRENT.get()
        _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.set(before)  # not by token: a coroutine may be closed in another context than its own

    def own(self, task: asyncio.Task[Any]) -> None:
        self._tasks[task] = None
        task.add_done_callback(self._forget)
        if self.is_closed:
            task.cancel()

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)

    async def close(self) -> None:
        """Cancel every task that hivemind started for this peer, and wait for its end."""
        self.is_closed = True
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def take_ports() -> None:
    """Replace what hivemind takes from the machine, and what takes most of its time; its results stay as they are."""
    replaced = (
        ("get_dht_time", _machine_time, _wall_time), ("random", random, _Chance()), ("asyncio", asyncio, _asyncio())
    )  # fmt: skip
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "hivemind" and isinstance(module, ModuleType):
            held = vars(module)
            held.update((name, ours) for name, theirs, ours in replaced if held.get(name) is theirs)
    PeerID.__init__, PeerID.__hash__ = _init_peer_id, _hash_peer_id
    protocol.PeerID = lru_cache(maxsize=MAX_NAMES)(PeerID)
    DHTID.from_bytes = staticmethod(lru_cache(maxsize=MAX_NAMES)(DHTID.from_bytes))
    DHTID.xor_distance = _xor_distance


def _wall_time() -> float:
    surroundings = _CURRENT.get()
    return float(_machine_time()) if surroundings is None else surroundings.wall()


class _Chance:
    """Stands for the module `random`: its functions are those of a peer's own generator, its classes its own."""

    def __getattr__(self, name: str) -> Any:
        surroundings = _CURRENT.get()
        if surroundings is not None and hasattr(surroundings.chance, name):
            return getattr(surroundings.chance, name)
        return getattr(random, name)


def _asyncio() -> ModuleType:
    """Return a copy of asyncio whose tasks are owned."""
    ours = ModuleType("asyncio")
    vars(ours).update(vars(asyncio))
    ours.create_task = _create_task  # type: ignore[attr-defined]
    return ours


def _create_task(coroutine: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:
    task = asyncio.create_task(coroutine, **options)  # noqa: TID251 - owned by the surroundings
    surroundings = _CURRENT.get()
    if surroundings is not None:
        surroundings.own(task)
    return task


@lru_cache(maxsize=MAX_NAMES)
def _base58(raw: bytes) -> str:
    return base58.b58encode(raw).decode()


def _init_peer_id(peer: Any, peer_id_bytes: bytes) -> None:
    peer._bytes = peer_id_bytes
    peer._b58_str = _base58(bytes(peer_id_bytes))
    peer._hash = int.from_bytes(peer_id_bytes[-8:], "big")


def _hash_peer_id(peer: Any) -> int:
    number: int = peer._hash
    return number


def _xor_distance(query: DHTID, other: Any) -> Any:
    if isinstance(other, int):
        return int(query) ^ int(other)
    return [int(query) ^ int(one) for one in other]
