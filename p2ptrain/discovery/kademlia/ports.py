"""hivemind's time and chance: those of the peer that it works for.

hivemind reads the machine's clock and the global `random`, orders some sets by salted hashes, and computes the base58 of
a peer id each time it meets one, which is a third of its CPU time. Here it gets the ports of the peer whose task runs,
so it runs in virtual time as well, with clocks that differ from peer to peer. Whoever enters hivemind says for whom:

    with acting_for(runtime):
        await node.store(...)  # the tasks that hivemind starts in there inherit it

Outside of that it has the machine's clock and chance, as without us. The names that hivemind's modules hold are
replaced one by one, since they took the functions by value when they were imported.
"""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from types import ModuleType
from typing import Any, Final

import base58
from hivemind.p2p import PeerID
from hivemind.utils import timed_storage

from p2ptrain.runtime import Runtime

MAX_NAMES: Final = 1 << 14  # peer ids of which the base58 is remembered

_RUNTIME: Final[ContextVar[Runtime | None]] = ContextVar("hivemind_works_for", default=None)
_machine_time: Final = timed_storage.get_dht_time


@contextmanager
def acting_for(runtime: Runtime) -> Iterator[None]:
    """Let hivemind have the clock and the chance of one peer in this block, and in tasks that begin in it."""
    before = _RUNTIME.get()
    _RUNTIME.set(runtime)
    try:
        yield
    finally:
        _RUNTIME.set(before)  # not by token: a coroutine may be closed in another context than its own


def wall_time() -> float:
    """Return what hivemind calls DHT time (s since 1970)."""
    runtime = _RUNTIME.get()
    return float(_machine_time()) if runtime is None else runtime.clock.wall()


class _Chance:
    """Stands for the module `random`; its classes are the module's own."""

    def __getattr__(self, name: str) -> Any:
        runtime = _RUNTIME.get()
        if runtime is not None and hasattr(runtime.entropy.random, name):
            return getattr(runtime.entropy.random, name)
        return getattr(random, name)


@lru_cache(maxsize=MAX_NAMES)
def _base58(raw: bytes) -> str:
    return base58.b58encode(raw).decode()


def _init_peer_id(peer: Any, peer_id_bytes: bytes) -> None:
    peer._bytes = peer_id_bytes
    peer._b58_str = _base58(bytes(peer_id_bytes))


def _hash_peer_id(peer: Any) -> int:
    return int.from_bytes(peer._bytes[-8:], "big")


def _modules() -> Iterator[ModuleType]:
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "hivemind" and isinstance(module, ModuleType):
            yield module


def take_ports() -> None:
    """Replace what hivemind takes from the machine. Does nothing the second time."""
    chance = _Chance()
    for module in _modules():
        held = vars(module)
        if held.get("get_dht_time") is _machine_time:
            held["get_dht_time"] = wall_time
        if held.get("random") is random:
            held["random"] = chance
    PeerID.__init__, PeerID.__hash__ = _init_peer_id, _hash_peer_id
