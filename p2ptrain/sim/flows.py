"""How transfers share links: as fluids, at the max-min fair rates.

A flow is a connection's direction that has more to send than goes out at once. Its rate is the smallest of three: the
share of the sender's uplink, the share of the receiver's downlink, and what TCP's window lets through per round trip.
A link gives each of its flows an equal share, and what some of them cannot use to the others; so a link's share
depends on the other ends' shares. Whenever flows come, go or change, links are computed again, each from what its
neighbours offer, until nothing changes any more (distributed max-min, as in Charny, Clark and Jain 1995).

Bytes move in chunks as long as a twentieth of a second, so the number of events does not depend on the size of packets.
"""

from collections import deque
from math import inf
from typing import TYPE_CHECKING, Final

from p2ptrain.sim.agenda import Agenda

if TYPE_CHECKING:
    from p2ptrain.sim.pipes import Data, Pipe

CHUNK_SECONDS: Final = 0.05  # how long a chunk takes, within the two bounds below
MIN_CHUNK_BYTES: Final = 4 * 1024
MAX_CHUNK_BYTES: Final = 256 * 1024
TOLERANCE: Final = 0.01  # a smaller relative change of a share is not passed on
MAX_UPDATES: Final = 400  # links computed at one instant; the rest follows a little later
SETTLE_INTERVAL: Final = 0.001  # s


class Link:
    """One direction of a machine's access to the network."""

    __slots__ = ("_free_at", "_stolen_bytes", "bytes_per_second", "flows", "seconds_per_byte", "share")

    def __init__(self, bytes_per_second: float | None = None) -> None:
        self.flows: dict[Flow, None] = {}
        self.share = inf  # what it offers to each of its flows (bytes/s)
        self._free_at = 0.0  # when the small messages that were sent so far have passed
        self._stolen_bytes = 0.0  # small messages that passed between the bytes of the flows, not yet paid for
        self.limit(bytes_per_second)

    def limit(self, bytes_per_second: float | None) -> None:
        """Set the rate; None for no limit."""
        self.bytes_per_second = bytes_per_second
        self.seconds_per_byte = 1 / bytes_per_second if bytes_per_second else 0.0

    def backlog(self, now: float) -> float:
        """Return for how long small messages keep the link busy (s)."""
        return max(0.0, self._free_at - now)

    def pass_small(self, num_bytes: int, now: float) -> float:
        """Let a small message pass between the flows; return how long that takes (s)."""
        free_at = self._free_at if self._free_at > now else now
        seconds = num_bytes * self.seconds_per_byte
        self._free_at = free_at = free_at + seconds
        if not self.flows:
            return free_at - now
        self._stolen_bytes += num_bytes
        return free_at - now + seconds * len(self.flows)

    def pay(self, num_bytes: float) -> float:
        """Return how many bytes of small messages a flow that has sent so many bytes makes up for."""
        paid = min(self._stolen_bytes, num_bytes)
        self._stolen_bytes -= paid
        return paid

    def forgive(self) -> None:
        """Forget what nobody is left to make up for."""
        if not self.flows:
            self._stolen_bytes = 0.0

    def fair_share(self) -> float:
        """Return the share at which the flows, each bounded elsewhere, fill the link; infinite when they cannot."""
        left = self.bytes_per_second
        if left is None:
            return inf
        count = len(self.flows)
        for bound in sorted([flow.bound_beside(self) for flow in self.flows]):
            if bound * count >= left:
                return left / count
            left -= bound
            count -= 1
        return inf


class Flow:
    """A pipe's transfer: what waits to be sent, and at what rate it goes."""

    __slots__ = (
        "_chunk_bytes", "_grow_at", "_head_offset", "_remaining", "_started_at", "_version", "backlog", "backlog_bytes",
        "burst", "cap", "down", "is_stalled", "pipe", "rate", "up",
    )  # fmt: skip

    def __init__(self, pipe: "Pipe", up: Link, down: Link, burst: float) -> None:
        """`burst` bytes go out at once, as far as the links let them: the window that is open already."""
        self.pipe, self.up, self.down = pipe, up, down
        self.backlog: deque[bytes | memoryview] = deque()
        self.backlog_bytes = 0
        self.burst = burst
        self.cap = inf if burst > 0 else pipe.window_rate()
        self.rate = 0.0
        self.is_stalled = False  # the window is full: not on the links until the reader has read
        self._grow_at = 0.0
        self._chunk_bytes = 0  # under way now
        self._head_offset = 0  # of the first buffer, already sent
        self._remaining = 0.0  # bytes of the chunk, and small messages to make up for
        self._started_at = 0.0  # when `_remaining` was true
        self._version = 0  # of the event that ends the chunk; older ones are void

    def bound_beside(self, link: Link) -> float:
        """Return how fast it could go if it were not for one of its links."""
        other = self.down if link is self.up else self.up
        return min(other.share, self.cap)

    def add(self, data: "Data", num_bytes: int) -> None:
        if isinstance(data, bytes):
            self.backlog.append(data)
        else:
            self.backlog.extend(data)
        self.backlog_bytes += num_bytes

    def progress(self, agenda: Agenda, rate: float) -> None:
        """Go on at another rate."""
        now = agenda.now()
        if self._chunk_bytes and 0 < self.rate < inf:
            if abs(rate - self.rate) <= TOLERANCE * self.rate:
                return
            self._remaining -= self.rate * (now - self._started_at)
        self.rate = rate
        if not self._chunk_bytes:
            self._begin_chunk(agenda, now)
        else:
            self._plan(agenda, now)

    def stop(self) -> None:
        """Void the chunk under way."""
        self._version += 1
        self._chunk_bytes = 0

    def _begin_chunk(self, agenda: Agenda, now: float) -> None:
        room = self.pipe.room()
        if room <= 0:
            self.is_stalled = True
            self.pipe.traffic.leave(self)
            return
        wanted = min(max(self.rate * CHUNK_SECONDS, MIN_CHUNK_BYTES), MAX_CHUNK_BYTES)
        if self.burst > 0:
            wanted = min(wanted, self.burst)
        elif self._grow_at > now:
            wanted = min(wanted, max(self.rate * (self._grow_at - now), MIN_CHUNK_BYTES))
        count = self.backlog_bytes if self.backlog_bytes <= wanted * 1.25 and not self.burst else int(wanted)
        self._chunk_bytes = max(1, min(count, self.backlog_bytes, room))
        self._remaining = float(self._chunk_bytes)
        self._plan(agenda, now)

    def _plan(self, agenda: Agenda, now: float) -> None:
        self._started_at = now
        self._version += 1
        if self.rate > 0:
            agenda.at(now + max(self._remaining, 0.0) / self.rate, self._end_chunk, self._version)

    def _end_chunk(self, version: int) -> None:
        if version != self._version:
            return
        pipe, agenda, count = self.pipe, self.pipe.traffic.agenda, self._chunk_bytes
        now = agenda.now()
        self._remaining = self.up.pay(count) + self.down.pay(count)
        if self._remaining >= 1:
            self._plan(agenda, now)
            return
        self._chunk_bytes = 0
        pipe.launch(self._take(count), count, now)
        pipe.progressed()
        if self.burst > 0:
            self.burst -= count
            grows = self.burst < 1
            self.burst = 0.0 if grows else self.burst
        else:
            grows = now >= self._grow_at and self.rate >= self.cap * (1 - TOLERANCE) and pipe.may_grow
        if not self.backlog_bytes:
            pipe.flow_ended(now)
        elif grows:
            self._grow(now)  # and goes on at its new rate, once that is known
        else:
            self._begin_chunk(agenda, now)

    def _grow(self, now: float) -> None:
        """Double TCP's window, once per round trip (slow start)."""
        self.cap = self.pipe.grow()
        self._grow_at = now + self.pipe.rtt
        self.pipe.traffic.changed(self)

    def _take(self, count: int) -> list[bytes | memoryview]:
        """Return the next so many bytes of what waits."""
        self.backlog_bytes -= count
        taken: list[bytes | memoryview] = []
        while count:
            head, offset = self.backlog[0], self._head_offset
            length = len(head) - offset
            if length > count:
                taken.append(memoryview(head)[offset : offset + count])
                self._head_offset = offset + count
                break
            taken.append(memoryview(head)[offset:] if offset else head)
            self.backlog.popleft()
            self._head_offset = 0
            count -= length
        return taken


class Traffic:
    """All flows of a network, and the links whose shares are to be computed again."""

    __slots__ = ("_changed", "_dirty", "_is_planned", "agenda")

    def __init__(self, agenda: Agenda) -> None:
        self.agenda = agenda
        self._dirty: dict[Link, None] = {}
        self._changed: dict[Flow, None] = {}
        self._is_planned = False

    def join(self, flow: Flow) -> None:
        flow.up.flows[flow] = None
        flow.down.flows[flow] = None
        self.changed(flow)

    def leave(self, flow: Flow) -> None:
        flow.stop()
        self._changed.pop(flow, None)
        for link in (flow.up, flow.down):
            if flow in link.flows:
                del link.flows[flow]
                link.forgive()
                self.link_changed(link)

    def changed(self, flow: Flow) -> None:
        """Compute again what follows from a flow that is new, or whose own bound is another."""
        self._changed[flow] = None
        self.link_changed(flow.up)
        self.link_changed(flow.down)

    def link_changed(self, link: Link) -> None:
        """Compute a link again, soon: all that changes at one instant is computed together."""
        if link.bytes_per_second is not None or link.share != inf:
            self._dirty[link] = None
        if not self._is_planned:
            self._is_planned = True
            self.agenda.at(self.agenda.now(), self._settle)

    def _settle(self, _: None) -> None:
        self._is_planned = False
        dirty, changed, num_updates = self._dirty, self._changed, 0
        while dirty and num_updates < MAX_UPDATES:
            num_updates += 1
            link = next(iter(dirty))
            del dirty[link]
            before, share = link.share, link.fair_share()
            if abs(share - before) <= TOLERANCE * before and before != inf:
                continue
            if share == before:
                continue
            link.share = share
            for flow in link.flows:
                other = flow.down if link is flow.up else flow.up
                beside = min(other.share, flow.cap)
                if min(before, share) < beside:
                    changed[flow] = None  # it may go at another rate, so the other link has more or less to give
                    if other.bytes_per_second is not None:
                        dirty[other] = None
        if dirty:
            self._is_planned = True
            self.agenda.at(self.agenda.now() + SETTLE_INTERVAL, self._settle)
        self._changed = {}
        for flow in changed:
            if not flow.is_stalled and flow.pipe.flow is flow:
                flow.progress(self.agenda, min(flow.up.share, flow.down.share, flow.cap))
