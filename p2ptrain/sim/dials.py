"""How a simulated connection comes up: SYN, answer, and what stands in the way.

A SYN that is lost, at a box, a partition or a dark machine, is sent again after one second and after three, as TCP does;
after five the dialler gives up. If both ends dial each other at once, from and to the addresses that their boxes gave
them, the SYN of one meets the dial of the other and both get the connection (simultaneous open): so hole punching works
where it works in the world.
"""

import asyncio
from typing import TYPE_CHECKING, Final

from p2ptrain.errors import NetworkError
from p2ptrain.runtime import Address

if TYPE_CHECKING:
    from p2ptrain.sim.network import SimHost
    from p2ptrain.sim.streams import SimStream

CONNECT_TIMEOUT: Final = 5.0  # s, as in the real network
REPEAT_AT: Final = (1.0, 3.0)  # s after the first SYN
ROUNDING: Final = 1e-6  # s: what began late in virtual time and is due in a second is due a little earlier


class Dial:
    """One call of `connect`."""

    def __init__(self, host: "SimHost", local: Address, remote: Address) -> None:
        self._host, self._network, self._local, self._remote = host, host.network, local, remote
        self._answer: asyncio.Future[SimStream] = asyncio.get_running_loop().create_future()
        self._began_at = self._network.agenda.now()
        self._passage = self._network.passage(local, remote)
        self._is_joined = False

    async def answered(self) -> "SimStream":
        """Return this end of the connection; NetworkError with a short reason."""
        dials, key = self._network.dials, (self._local, self._remote)
        if key in dials:
            raise NetworkError("this address is being dialled from that port already")
        dials[key] = self
        try:
            self._send(None)
            return await self._answer
        except BaseException:
            if self._answer.done() and not self._answer.cancelled() and self._answer.exception() is None:
                self._answer.result().abort()  # it came up for somebody who waits no more
            elif self._passage is not None:
                self._passage.release()
            raise
        finally:
            del dials[key]

    def _send(self, _: None) -> None:
        """Send a SYN."""
        network, home = self._network, self._network.home_of(self._remote.host)
        if self._answer.done() or self._is_joined:
            return
        latency, source = network.latency(self._host.name, home), network.site(self._host.name)
        loss = 1.0 - ((1.0 - source.loss) * (1.0 - network.site(home).loss)) ** 2  # of the SYN or its answer
        if (
            self._passage is None
            or network.is_cut(self._host.name, home)
            or (loss and source.chance.random() < loss)
            or 2 * latency >= CONNECT_TIMEOUT
        ):
            self._send_again()
        else:
            network.agenda.at(network.agenda.now() + latency, self._arrive)

    def _send_again(self) -> None:
        agenda = self._network.agenda
        elapsed = agenda.now() - self._began_at
        for seconds in REPEAT_AT:
            if seconds > elapsed + ROUNDING:
                agenda.at(self._began_at + seconds, self._send)
                return
        agenda.at(self._began_at + CONNECT_TIMEOUT, self._fail, "timed out")

    def _arrive(self, _: None) -> None:
        """Let the SYN reach what is there."""
        network, passage = self._network, self._passage
        if self._answer.done() or self._is_joined or passage is None:
            return
        landing = network.land(self._host.name, passage.source, self._remote)
        if isinstance(landing, str):
            if landing == "lost":
                self._send_again()
            else:
                self._refuse(self._remote.host)
            return
        if network.is_cut(landing.host, self._host.name) or network.is_cut(self._host.name, landing.host):
            self._send_again()
            return
        meeting = network.dials.get((landing, passage.source))
        if meeting is not None and meeting is not self and not meeting._answer.done():
            self._meet(meeting)
            return
        listener = network.listener_at(landing)
        if not self._host.alive or listener is None:
            self._refuse(landing.host)
            return
        addresses = (self._local, self._remote), (listener.address, passage.source)
        near, far = network.join(self._host, listener.owner, *addresses, (passage, None))
        self._established_later(near)
        listener.accept(far)

    def _meet(self, other: "Dial") -> None:
        assert self._passage is not None and other._passage is not None
        addresses = (self._local, self._remote), (other._local, other._remote)
        ends = self._network.join(self._host, other._host, *addresses, (self._passage, other._passage))
        self._established_later(ends[0])
        other._established_later(ends[1])

    def _established_later(self, stream: "SimStream") -> None:
        self._is_joined = True
        agenda = self._network.agenda
        agenda.at(agenda.now() + stream.incoming.rtt / 2, self._establish, stream)

    def _establish(self, stream: "SimStream") -> None:
        if self._answer.done():  # given up meanwhile
            stream.abort()
        else:
            self._answer.set_result(stream)

    def _refuse(self, host: str) -> None:
        agenda = self._network.agenda
        delay = self._network.latency(self._network.home_of(host), self._host.name)
        agenda.at(agenda.now() + delay, self._fail, "refused")

    def _fail(self, reason: str) -> None:
        if not self._answer.done() and not self._is_joined:
            self._answer.set_exception(NetworkError(reason))
