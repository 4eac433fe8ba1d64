"""One direction of a simulated TCP connection.

What fits into the open window and passes the links quickly is sent at once: one event, the arrival. The rest becomes a
flow (flows.py), whose rate follows from the links and from TCP: a window that begins at ten segments, doubles each round
trip, and is bounded by the receiver's buffer and by loss, since no window survives the loss of a segment for long
(rate <= MSS/RTT * sqrt(3/(2p)), Mathis et al. 1997). Small messages notice loss as a late arrival now and then.

Bytes arrive in order, whatever the jitter. What arrives at a partition waits there, as TCP's retransmissions do, and
goes on when it heals.
"""

import asyncio
from collections import deque
from dataclasses import dataclass
from math import inf, log, sqrt
from random import Random
from typing import TYPE_CHECKING, Final

from p2ptrain.errors import NetworkError
from p2ptrain.sim.flows import Flow, Link, Traffic

if TYPE_CHECKING:
    from p2ptrain.sim.streams import SimStream

SEND_BUFFER_BYTES: Final = 256 * 1024  # the port's bound for written, unsent bytes
WINDOW_BYTES: Final = 4 * 1024 * 1024  # sent, unread bytes: a usual TCP receive window
SEGMENT_BYTES: Final = 1460
INITIAL_WINDOW_BYTES: Final = 10 * SEGMENT_BYTES  # RFC 6928
RETRANSMISSION_SECONDS: Final = 0.2  # least time-out of Linux, on top of a round trip
SMALL_WAIT: Final = 0.02  # s that a message may take on the links without becoming a flow
SMALL_WAIT_BESIDE: Final = 0.1  # the same beside flows: it passes as one of them

Data = bytes | list[bytes | memoryview]


class Meter:
    """What has gone out of a machine, and come in."""

    __slots__ = ("num_delivered_bytes", "num_sent_bytes")

    def __init__(self) -> None:
        self.num_sent_bytes = self.num_delivered_bytes = 0


@dataclass(slots=True, kw_only=True)
class Route:
    """How one direction of a connection travels."""

    up: Link
    down: Link
    latency: float  # s
    jitter: float  # mean of what each message takes longer (s)
    loss: float  # of a segment, as a probability
    chance: Random
    sender: Meter
    receiver: Meter


class Pipe:
    """`write`, `drained` and `finish` on one side, `read_into` on the other."""

    __slots__ = (
        "_allowance", "_epoch_ends_at", "_filled", "_finish_reason", "_last_arrival", "_outstanding_bytes", "_reader",
        "_route", "_target", "_unacknowledged_bytes", "_unread", "_unread_offset", "_window", "_writer", "acks_are_cut",
        "ended", "far", "flow", "held", "is_cut", "is_unheard", "near", "rtt", "traffic",
        "window_bound",
    )  # fmt: skip

    near: "SimStream"  # the end that writes
    far: "SimStream"  # the end that reads

    def __init__(self, traffic: Traffic, route: Route) -> None:
        self.traffic = traffic
        self.flow: Flow | None = None
        self.ended: str | None = None  # why the reader will get no more, once that is so
        self.held: list[Data | str] | None = None  # arrived at a partition
        self.is_cut = self.acks_are_cut = False  # by a partition: this direction; the other one alone
        self.is_unheard = False  # nobody is there to read
        self._unacknowledged_bytes = 0  # sent since acknowledgements do not come back
        self._unread: deque[bytes | memoryview] | None = None
        self._unread_offset = 0
        self._reader: asyncio.Future[None] | None = None
        self._target: memoryview | None = None
        self._filled = 0
        self._writer: asyncio.Future[None] | None = None
        self._finish_reason: str | None = None
        self._outstanding_bytes = 0  # sent, unread
        self._last_arrival = self._epoch_ends_at = 0.0
        self._window = float(INITIAL_WINDOW_BYTES)
        self._allowance = inf  # bytes that the window still lets through in this round trip
        self.set_route(route)

    def set_route(self, route: Route) -> None:
        """Travel by other links or with other delays from now on."""
        self._route, self.rtt = route, 2 * route.latency
        by_loss = SEGMENT_BYTES * sqrt(1.5 / route.loss) if route.loss else inf
        self.window_bound = max(min(WINDOW_BYTES, by_loss), SEGMENT_BYTES)
        self._window = min(self._window, self.window_bound)
        if self.flow is not None and not self.flow.burst:
            self.flow.cap = self.window_rate()
            self.traffic.changed(self.flow)

    # Sending

    @property
    def unsent_bytes(self) -> int:
        return self.flow.backlog_bytes if self.flow is not None else 0

    def write(self, data: Data, num_bytes: int) -> None:
        """Send bytes, now or as a flow."""
        if self.flow is None and not self.acks_are_cut:
            now = self.traffic.agenda.now()
            if now >= self._epoch_ends_at:
                self._begin_epoch(now)
            if num_bytes <= self._allowance and self._outstanding_bytes + num_bytes <= WINDOW_BYTES:
                route = self._route
                up, down = route.up, route.down
                if not (up.seconds_per_byte or down.seconds_per_byte):
                    self._allowance -= num_bytes
                    self.launch(data, num_bytes, now)
                    return
                if self._passes_quickly(up, num_bytes, now) and self._passes_quickly(down, num_bytes, now):
                    self._allowance -= num_bytes
                    self.launch(data, num_bytes, now + up.pass_small(num_bytes, now) + down.pass_small(num_bytes, now))
                    return
        self._enqueue(data, num_bytes)

    async def drained(self) -> None:
        """Wait until the send buffer has room; NetworkError when the connection ends before."""
        while self.unsent_bytes > SEND_BUFFER_BYTES:
            self._writer = asyncio.get_running_loop().create_future()
            try:
                await self._writer
            finally:
                self._writer = None
            self.near.check()

    async def emptied(self) -> None:
        """Wait until nothing is unsent."""
        while self.flow is not None:
            self._writer = asyncio.get_running_loop().create_future()
            try:
                await self._writer
            finally:
                self._writer = None

    def finish(self, reason: str, *, drop: bool) -> None:
        """Let the reader see the end, after what was written or (drop) after what has left already."""
        if drop:
            self.drop()
        if self.flow is not None:
            self._finish_reason = reason
        else:
            self.launch(reason, 0, self.traffic.agenda.now())

    def drop(self) -> None:
        """Forget what has not left the sender."""
        flow, self.flow = self.flow, None
        if flow is not None:
            self.traffic.leave(flow)
        self._wake_writer()

    def launch(self, data: Data | str, num_bytes: int, sent_at: float) -> None:
        """Put bytes (or the reason of the end) on their way: they have passed the links at `sent_at`."""
        route = self._route
        arrival = sent_at + route.latency
        if route.jitter:
            arrival -= route.jitter * log(1.0 - route.chance.random())
        if route.loss:
            arrival += self._retransmission_delay(num_bytes)
        if arrival < self._last_arrival:
            arrival = self._last_arrival
        self._last_arrival = arrival
        self._outstanding_bytes += num_bytes
        route.sender.num_sent_bytes += num_bytes
        if self.acks_are_cut:
            self._unacknowledged_bytes += num_bytes
        self.traffic.agenda.at(arrival, self._arrive, data)

    # What a flow asks and tells

    def progressed(self) -> None:
        """Note that a flow has less to send than before."""
        if self._writer is not None and self.unsent_bytes <= SEND_BUFFER_BYTES:
            self._wake_writer()

    def room(self) -> int:
        """Return how many bytes may be sent before the other end reads or acknowledges some."""
        room = WINDOW_BYTES - self._outstanding_bytes
        return min(room, int(self._window) - self._unacknowledged_bytes) if self.acks_are_cut else room

    @property
    def may_grow(self) -> bool:
        return self._window < self.window_bound

    def grow(self) -> float:
        """Double the window, within its bound; return the rate that it allows (bytes/s)."""
        if not self.acks_are_cut:
            self._window = min(2 * self._window, self.window_bound)
        return self.window_rate()

    def window_rate(self) -> float:
        return self._window / self.rtt if self.rtt else inf

    def flow_ended(self, now: float) -> None:
        """Note that everything written is sent."""
        flow, self.flow = self.flow, None
        if flow is not None:
            self.traffic.leave(flow)
        self._epoch_ends_at, self._allowance = now + self.rtt, 0.0
        self._wake_writer()
        if self._finish_reason is not None:
            self.launch(self._finish_reason, 0, now)

    # Partitions

    def cut(self, is_cut: bool, acks_are_cut: bool) -> None:
        """Begin or end a partition of this direction, or of the other one, by which acknowledgements come back."""
        self.is_cut, self.acks_are_cut = is_cut, acks_are_cut
        self._unacknowledged_bytes = 0
        if self.held is not None and not is_cut:
            held, self.held = self.held, None
            for data in held:
                self._arrive(data)
        self._resume()

    # Reading

    async def read_into(self, view: memoryview) -> None:
        count = len(view)
        if not count:
            return
        filled = self._take_unread(view, 0) if self._unread else 0
        if filled == count:
            return
        if self.ended is not None:
            raise NetworkError(self.ended)
        self._target, self._filled = view, filled
        self._reader = asyncio.get_running_loop().create_future()
        try:
            await self._reader
            if self._filled < count:
                raise NetworkError(self.ended or "closed by the other end")
        finally:
            self._reader = self._target = None

    def break_off(self, reason: str) -> None:
        """Let the reader get nothing more than what has arrived."""
        self.ended = self.ended or reason
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _arrive(self, data: Data | str) -> None:
        if self.is_cut or self.held is not None:
            self._hold(data)
        elif self.is_unheard:
            self.near.was_not_heard()
        elif self.ended is not None:
            return
        elif isinstance(data, bytes):
            self._route.receiver.num_delivered_bytes += len(data)
            self._receive(data)
        elif isinstance(data, str):
            self.far.remote_ended(data)
        else:
            for buffer in data:
                self._route.receiver.num_delivered_bytes += len(buffer)
                self._receive(buffer)

    def _receive(self, buffer: bytes | memoryview) -> None:
        """Copy into the view of a waiting reader, keep the rest."""
        reader, target = self._reader, self._target
        if reader is not None and target is not None and not reader.done():
            filled, count = self._filled, len(buffer)
            missing = len(target) - filled
            if count < missing:
                target[filled : filled + count] = buffer
                self._filled = filled + count
                self._consume(count)
                return
            target[filled:] = buffer if count == missing else memoryview(buffer)[:missing]
            self._filled = filled + missing
            self._consume(missing)
            reader.set_result(None)
            if count == missing:
                return
            buffer = memoryview(buffer)[missing:]
        if self._unread is None:
            self._unread = deque()
        self._unread.append(buffer)

    def _take_unread(self, view: memoryview, filled: int) -> int:
        """Fill a view from what has arrived; return up to where."""
        unread, wanted = self._unread, len(view)
        while unread and filled < wanted:
            head, offset = unread[0], self._unread_offset
            count = min(len(head) - offset, wanted - filled)
            is_rest = offset + count == len(head)
            view[filled : filled + count] = (
                head if is_rest and not offset else memoryview(head)[offset : offset + count]
            )
            filled += count
            self._consume(count)
            if is_rest:
                unread.popleft()
                self._unread_offset = 0
            else:
                self._unread_offset = offset + count
        if not unread:
            self._unread = None  # an idle connection holds no empty queue
        return filled

    def _consume(self, num_bytes: int) -> None:
        self._outstanding_bytes -= num_bytes
        if self.flow is not None:
            self._resume()

    # Within

    def _enqueue(self, data: Data, num_bytes: int) -> None:
        if self.flow is not None:
            self.flow.add(data, num_bytes)
            return
        burst = inf if not self.rtt else max(0.0, self._allowance)
        self.flow = Flow(self, self._route.up, self._route.down, burst)
        self.flow.add(data, num_bytes)
        self._allowance = 0.0
        self.traffic.join(self.flow)

    def _resume(self) -> None:
        """Let a flow go on that waited for room in the window."""
        flow = self.flow
        if flow is not None and flow.is_stalled and self.room() > 0:
            flow.is_stalled = False
            self.traffic.join(flow)

    def _begin_epoch(self, now: float) -> None:
        """Open the window anew, for one round trip."""
        if not self.rtt:
            self._allowance = inf
            return
        if now > self._epoch_ends_at + self.rtt + RETRANSMISSION_SECONDS:
            self._window = min(self._window, INITIAL_WINDOW_BYTES)  # an idle connection starts slowly again
        elif self._allowance < self._window / 2:
            self._window = min(2 * self._window, self.window_bound)
        self._epoch_ends_at, self._allowance = now + self.rtt, self._window

    def _passes_quickly(self, link: Link, num_bytes: int, now: float) -> bool:
        if not link.seconds_per_byte:
            return True
        seconds = num_bytes * link.seconds_per_byte
        if link.flows:
            return seconds * (len(link.flows) + 1) + link.backlog(now) <= SMALL_WAIT_BESIDE
        return seconds + link.backlog(now) <= SMALL_WAIT

    def _retransmission_delay(self, num_bytes: int) -> float:
        """Return how much later a message arrives because segments of it were lost; mostly 0."""
        loss, random = self._route.loss, self._route.chance.random
        if self.flow is not None:
            return 0.0  # its rate says it already
        delay, timeout = 0.0, self.rtt + RETRANSMISSION_SECONDS
        some_lost = 1.0 - (1.0 - loss) ** (num_bytes // SEGMENT_BYTES + 1)
        while random() < some_lost:
            delay, timeout, some_lost = delay + timeout, 2 * timeout, loss
        return delay

    def _hold(self, data: Data | str) -> None:
        if self.held is None:
            self.held = []
        self.held.append(data)

    def _wake_writer(self) -> None:
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)
