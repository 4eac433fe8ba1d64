"""The connections that are up: at most one of each kind ("control", "bulk") for a pair of peers.

Two peers often dial each other at the same moment. Both ends then keep the same connection, without asking: the one
dialled by the smaller peer id, and of several by one dialler the newest. The surplus one is retired, so that calls on
it end in peace.

A small swarm is a full mesh. In a large one a peer has some neighbours and meets many others for a moment: what it
dialled and does not use it gives back while it has enough connections, and those that stay are asked less often whether
somebody is there. When all slots are taken, the idle connection that was not used for longest makes room. Neither
happens to connections that are held: between a leader and its members, who wait for a call that comes late.
"""

import asyncio
import math
from collections.abc import Callable
from typing import Final

from p2ptrain.errors import NetworkError
from p2ptrain.ids import PeerId
from p2ptrain.net.session import PING_INTERVAL, Session, Upkeep

PeerCallback = Callable[[PeerId], None]
Lane = str

ENOUGH_CONNECTIONS: Final = 16  # a random graph of this degree is connected, whatever the swarm's size
IDLE_TIMEOUT: Final = 90.0  # s without a call before a connection is given back
IDLE_BULK_TIMEOUT: Final = 120.0  # the same for bulk, which takes a while to come up to speed
LONG_PING_INTERVAL: Final = 60.0  # s of silence before a neighbour is asked who has many like it
MAX_RETIRING: Final = 16  # connections above the limit while they end; the reserve of file descriptors covers them


class Pool:
    """Sessions by peer and lane."""

    def __init__(self, own_id: PeerId, max_connections: int) -> None:
        self._own_id, self._max_connections = own_id, max_connections
        self._sessions: dict[PeerId, list[Session]] = {}
        self._arrivals: dict[tuple[PeerId, Lane], asyncio.Future[None]] = {}
        self._on_connected: list[PeerCallback] = []
        self._on_disconnected: list[PeerCallback] = []
        self._on_parted: list[PeerCallback] = []
        self._best: dict[tuple[PeerId, Lane], Session] = {}  # as it was found last
        self._connected: list[PeerId] | None = None  # sorted; None once it may have changed
        self.is_held: Callable[[PeerId], bool] = lambda peer: False
        """Whether a connection is waited on, however silent it is."""
        self.num_coming = 0
        """Connections whose handshake will end well as far as we are concerned: they have a slot already."""
        self._ended_bytes = [0, 0]  # sent, received: of sessions that are gone

    def on_connected(self, callback: PeerCallback) -> None:
        self._on_connected.append(callback)

    def on_disconnected(self, callback: PeerCallback) -> None:
        self._on_disconnected.append(callback)

    def on_parted(self, callback: PeerCallback) -> None:
        self._on_parted.append(callback)

    @property
    def sessions(self) -> list[Session]:
        return [session for sessions in self._sessions.values() for session in sessions]

    @property
    def connected(self) -> list[PeerId]:
        if self._connected is None:
            self._connected = sorted(peer for peer in self._sessions if self.is_connected(peer))
        return list(self._connected)

    def is_connected(self, peer: PeerId) -> bool:
        return any(session.lane == "control" for session in self._sessions.get(peer, ()))

    def best(self, peer: PeerId, lane: Lane) -> Session | None:
        """Return the connection for new calls, if there is one."""
        session = self._best.get((peer, lane))
        if session is None or session.is_retired:
            session = max(self._usable(peer, lane), key=self._rank, default=None)
            if session is not None:
                self._best[peer, lane] = session
        return session

    def of_other_process(self, peer: PeerId, nonce: bytes) -> list[Session]:
        """Return the sessions with another process that uses this identity."""
        return [session for session in self._sessions.get(peer, []) if session.hello.nonce != nonce]

    def arrival(self, peer: PeerId, lane: Lane) -> asyncio.Future[None]:
        """Return a future that is resolved when the next connection of this kind comes up."""
        key = (peer, lane)
        if key not in self._arrivals:
            self._arrivals[key] = asyncio.Future()
        return self._arrivals[key]

    def add(self, session: Session) -> None:
        """Take a new session in and start it."""
        peer = session.peer
        for other in self.of_other_process(peer, session.hello.nonce):
            other.end(NetworkError("the peer was started anew"))  # the handshake has made sure that it does not answer
        was_connected = self.is_connected(peer)
        self._sessions.setdefault(peer, []).append(session)
        self._best.pop((peer, session.lane), None)
        self._connected = None
        session.start(self._remove, self._upkeep)
        best = self.best(peer, session.lane)
        for other in self._usable(peer, session.lane):
            if other is not best:
                other.retire()
        if arrival := self._arrivals.pop((peer, session.lane), None):
            arrival.set_result(None)
        if self.is_connected(peer) and not was_connected:
            _tell(self._on_connected, peer)

    def make_room(self) -> bool:
        """Return whether one more connection fits, after retiring the idlest one if need be."""
        sessions = self.sessions
        usable = [session for session in sessions if not session.is_retired]
        if len(usable) + self.num_coming < self._max_connections:
            return True
        idle = [session for session in usable if session.is_idle and not self.is_held(session.peer)]
        if not idle or len(sessions) - len(usable) >= MAX_RETIRING:
            return False
        min(idle, key=lambda session: session.used_at).retire()
        return True

    def _upkeep(self, session: Session) -> Upkeep:
        if session.lane == "bulk":
            return Upkeep(PING_INTERVAL, IDLE_BULK_TIMEOUT)
        if len(self._sessions) <= ENOUGH_CONNECTIONS or self.is_held(session.peer):
            return Upkeep(PING_INTERVAL, math.inf)
        return Upkeep(LONG_PING_INTERVAL, IDLE_TIMEOUT if session.is_dialler else math.inf)

    def counters(self) -> dict[str, int]:
        sessions = self.sessions
        return {
            "bytes_sent": self._ended_bytes[0] + sum(session.num_sent_bytes for session in sessions),
            "bytes_received": self._ended_bytes[1] + sum(session.num_received_bytes for session in sessions),
            "num_connections": len(sessions),
        }

    def _usable(self, peer: PeerId, lane: Lane) -> list[Session]:
        sessions = self._sessions.get(peer, [])
        return [session for session in sessions if session.lane == lane and not session.is_retired]

    def _rank(self, session: Session) -> tuple[bool, int]:
        smaller_dialled = session.is_dialler == (self._own_id < session.peer)
        return smaller_dialled, session.dial

    def _remove(self, session: Session) -> None:
        sessions = self._sessions[session.peer]
        was_connected = self.is_connected(session.peer)
        sessions.remove(session)
        self._best.pop((session.peer, session.lane), None)
        self._connected = None
        if not sessions:
            del self._sessions[session.peer]
        self._ended_bytes[0] += session.num_sent_bytes
        self._ended_bytes[1] += session.num_received_bytes
        if was_connected and not self.is_connected(session.peer):
            _tell(self._on_parted if session.is_retired else self._on_disconnected, session.peer)


def _tell(callbacks: list[PeerCallback], peer: PeerId) -> None:
    for callback in callbacks:
        callback(peer)
