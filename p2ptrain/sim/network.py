"""A network in memory: hosts, links, distances, NAT boxes, partitions, sudden deaths.

Hosts are IP addresses as text, one for each machine; a machine behind a NAT box has a private address, unique all the
same. Each process has a `SimHost`, its Network port. What a connection is, is told in streams.py; how its bytes travel,
in pipes.py and flows.py; how it comes up, in dials.py; through what boxes, in nat.py.

A host of which nothing was said can be dialled by everybody, has links without limit, and is `latency` seconds from any
other. `place` gives it the access of a profile (profiles.py). Everything follows from the loop's virtual clock, from what
was set here and from the seed, so a run can be repeated.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from p2ptrain.errors import AddressInUseError, ConfigError
from p2ptrain.ids import digest
from p2ptrain.runtime import Address, Listener, RawStream, SecureStream, Signer
from p2ptrain.sim.agenda import Agenda
from p2ptrain.sim.dials import Dial
from p2ptrain.sim.flows import Link, Traffic
from p2ptrain.sim.handshakes import Keys, secure
from p2ptrain.sim.nat import NatKind, Passage, SimNat, boxes_before
from p2ptrain.sim.pipes import Meter, Pipe, Route
from p2ptrain.sim.process import SimProcess
from p2ptrain.sim.profiles import HostProfile, Place, propagation
from p2ptrain.sim.streams import RESET, SimListener, SimStream

FIRST_EPHEMERAL_PORT: Final = 40_000
NUM_EPHEMERAL_PORTS: Final = 25_000
LAN_LATENCY: Final = 0.0005  # s between machines behind one box
NUM_HOMES_PER_CARRIER: Final = 64  # subscribers behind one address of a carrier; real ones put up to some hundreds
REFUSED: Final = "refused"
LOST: Final = "lost"


class Site:
    """A machine: how it is connected, and what is open on it."""

    def __init__(self, name: str, chance: random.Random) -> None:
        self.name, self.chance = name, chance
        self.up, self.down = Link(), Link()
        self.latency = self.jitter = self.loss = 0.0  # of its access: s, s, probability for each segment
        self.resets_per_hour = 0.0
        self.place: Place | None = None  # on the globe
        self.nat: SimNat | None = None
        self.is_off = False  # lost its power: says nothing, not even that it has no such port
        self.processes: list[SimHost] = []
        self.listeners: dict[Address, SimListener] = {}
        self.streams: dict[SimStream, None] = {}
        self.meter = Meter()
        self.wait_for_reset: dict[SimStream, None] = {}  # ends of others that talk to nobody since it lost its power
        self.plans_reset = False


@dataclass(frozen=True, eq=False)
class Cut:
    """A partition: nothing passes from left to right, nor back, unless it is one-way."""

    left: frozenset[str]
    right: frozenset[str]
    one_way: bool

    def stops(self, source: str, target: str) -> bool:
        return (source in self.left and target in self.right) or (
            not self.one_way and source in self.right and target in self.left
        )


class SimNetwork:
    """The world between the hosts."""

    def __init__(self, *, latency: float = 0.01, seed: int = 0) -> None:
        self._default_latency, self._seed = latency, seed
        self.agenda = Agenda()
        self.traffic = Traffic(self.agenda)
        self.keys = Keys(digest("sim-keys", str(seed).encode()))
        self.chance = self._chance("")
        self.dials: dict[tuple[Address, Address], Dial] = {}  # under way, by inner address and the one that is dialled
        self._sites: dict[str, Site] = {}
        self._boxes: dict[str, SimNat] = {}  # by outer host
        self._homes: dict[str, str] = {}  # some host behind each box, by outer host
        self._latencies: dict[tuple[str, str], float] = {}
        self._cuts: list[Cut] = []
        self._listeners: dict[Address, SimListener] = {}
        self._unreachable: set[str] = set()
        self._refusing: set[str] = set()
        self._next_port = 0
        self._num_public = self._num_private = self._num_homes = 0
        self._carriers: dict[NatKind, list[SimNat]] = {}  # the last of each kind takes the next subscribers

    def host(self, name: str, process: SimProcess | None = None) -> "SimHost":
        """Return the Network port of a (new) process on a host; streams are handed to it in the process's context."""
        site, port = self.site(name), SimHost(self, name, process)
        site.processes.append(port)
        site.is_off = False
        waiting, site.wait_for_reset = site.wait_for_reset, {}
        for stream in waiting:
            self._reset_later(stream)
        return port

    # How hosts are connected

    def allocate(self, profile: HostProfile, *, beside: str | None = None) -> str:
        """Make a machine of a profile, and return its name: a public address, or a private one behind a new box.

        `beside`: behind the box of this host, and on its links.
        """
        behind = profile.nat_kind is not None or (beside is not None and self.site(beside).nat is not None)
        name = self._private_host() if behind else self._public_host()
        self.place(name, profile, beside=beside)
        return name

    def place(self, host: str, profile: HostProfile, *, beside: str | None = None) -> None:
        """Give a host the access of a profile."""
        site = self.site(host)
        site.latency, site.jitter, site.loss = profile.latency, profile.jitter, profile.loss
        site.resets_per_hour, site.place = profile.resets_per_hour, profile.place
        if beside is not None:
            other = self.site(beside)
            site.nat, site.up, site.down, site.place = other.nat, other.up, other.down, other.place
        else:
            site.up.limit(profile.up)
            site.down.limit(profile.down)
            if profile.nat_kind is not None:
                carrier = self._carrier_box(profile.carrier_kind) if profile.carrier_kind is not None else None
                self.put_behind(
                    host,
                    SimNat(
                        profile.nat_kind,
                        self._carrier_host() if carrier is not None else self._public_host(),
                        behind=carrier,
                        hairpin=profile.hairpin,
                        refuses=profile.refuses,
                    ),
                )
        if profile.is_hidden:
            self._unreachable.add(host)
        self._reroute(site)

    def put_behind(self, host: str, nat: SimNat) -> None:
        """Put a host behind a box: others see the box's address, and reach the host as the box lets them."""
        self.site(host).nat = nat
        for box in boxes_before(nat):
            self._boxes[box.outer_host] = box
            self._homes.setdefault(box.outer_host, host)

    def set_latency(self, a: str, b: str, seconds: float) -> None:
        """Set the one-way delay between two hosts, in both directions, from the next byte on."""
        self._latencies[a, b] = self._latencies[b, a] = seconds
        self._reroute(self.site(a))

    def set_bandwidth(self, host: str, bytes_per_second: float | None, *, direction: str = "both") -> None:
        """Limit what a host sends ("up"), what it receives ("down"), or each of the two ("both"); None for no limit."""
        site = self.site(host)
        for link, name in ((site.up, "up"), (site.down, "down")):
            if direction in (name, "both"):
                link.limit(bytes_per_second)
                for flow in link.flows:
                    self.traffic.changed(flow)

    def set_access(
        self, host: str, *, latency: float | None = None, jitter: float | None = None, loss: float | None = None
    ) -> None:
        """Change the delay (s), the mean jitter (s) or the loss (a probability) of a host's own access."""
        site = self.site(host)
        site.latency = site.latency if latency is None else latency
        site.jitter = site.jitter if jitter is None else jitter
        site.loss = site.loss if loss is None else loss
        self._reroute(site)

    def set_resets(self, host: str, per_hour: float) -> None:
        """Reset the connections of a host now and then: each of them so often per hour, on average."""
        site = self.site(host)
        site.resets_per_hour = per_hour
        self._plan_reset(site)

    def hide(self, host: str, *, refuses: bool = False) -> None:
        """Let nobody dial a host, as behind a firewall; it can still dial others. Dials get no answer, or a refusal."""
        (self._refusing if refuses else self._unreachable).add(host)

    def show(self, host: str) -> None:
        """Let a hidden host be dialled again."""
        self._unreachable.discard(host)
        self._refusing.discard(host)

    # What goes wrong

    def partition(self, left: Iterable[str], right: Iterable[str], *, one_way: bool = False) -> Cut:
        """Cut all traffic between two sets of hosts; what is under way waits for `heal`, and dials time out.

        One-way: nothing passes from left to right. What the right ones send arrives until their windows are full, since
        no acknowledgement comes back.
        """
        cut = Cut(frozenset(left), frozenset(right), one_way)
        self._cuts.append(cut)
        self._apply(cut)
        return cut

    def heal(self, cut: Cut | None = None) -> None:
        """End a partition, or every one."""
        ended = list(self._cuts) if cut is None else [one for one in self._cuts if one is cut]
        self._cuts = [one for one in self._cuts if one not in ended]
        for one in ended:
            self._apply(one)

    def reset(self, a: str, b: str | None = None) -> int:
        """Reset the connections of a host (to another one) at both ends; return how many there were."""
        streams = [stream for stream in self.site(a).streams if b is None or stream.other.owner.name == b]
        for stream in streams:
            stream.reset()
        return len(streams)

    def kill(self, host: str, *, silent: bool = False) -> None:
        """Kill the processes on a host: its ports vanish and its connections are reset.

        Silent: the machine has lost its power. The other ends of its connections hear nothing, until they send
        something to a machine that is back.
        """
        site = self.site(host)
        for process in site.processes:
            process.alive = False
        site.processes.clear()
        site.is_off = silent
        for listener in list(site.listeners.values()):
            self.remove_listener(listener)
        for stream in list(site.streams):
            if silent:
                stream.incoming.is_unheard = True
                stream.vanish()
            else:
                stream.abort()

    # What can be seen

    @property
    def num_sent_bytes(self) -> dict[str, int]:
        """Bytes that have left each host."""
        return {name: site.meter.num_sent_bytes for name, site in self._sites.items()}

    @property
    def num_delivered_bytes(self) -> dict[str, int]:
        """Bytes that have reached each host."""
        return {name: site.meter.num_delivered_bytes for name, site in self._sites.items()}

    @property
    def num_connections(self) -> dict[str, int]:
        """Ends of connections that are open on each host."""
        return {name: len(site.streams) for name, site in self._sites.items()}

    def connections(self, host: str) -> list[SimStream]:
        """Return the ends of connections that are open on a host, the oldest first."""
        return list(self.site(host).streams)

    def outer_host(self, host: str) -> str:
        """Return the address that the world sees of a host."""
        boxes = boxes_before(self.site(host).nat)
        return boxes[-1].outer_host if boxes else host

    def nat_of(self, host: str) -> SimNat | None:
        """Return the box that a host is behind."""
        return self.site(host).nat

    def is_up(self, host: str) -> bool:
        """Whether a process runs on a host."""
        return bool(self.site(host).processes)

    def is_cut(self, source: str, target: str) -> bool:
        """Whether a partition stops what goes from one host to another."""
        return any(cut.stops(source, target) for cut in self._cuts)

    def is_reachable(self, host: str) -> bool:
        return host not in self._unreachable

    def latency(self, a: str, b: str) -> float:
        """Return the one-way delay between two hosts without jitter (s)."""
        if a == b:
            return 0.0
        if (a, b) in self._latencies:
            return self._latencies[a, b]
        one, other = self.site(a), self.site(b)
        if one.nat is not None and one.nat is other.nat:
            return LAN_LATENCY
        if one.place is None or other.place is None:
            return self._default_latency + one.latency + other.latency
        return propagation(one.place, other.place) + one.latency + other.latency

    # For dials, listeners and streams

    def site(self, host: str) -> Site:
        site = self._sites.get(host)
        if site is None:
            site = self._sites[host] = Site(host, self._chance(host))
        return site

    def home_of(self, host: str) -> str:
        """Return the host itself, or one behind the box with this address: where the way to it leads."""
        return self._homes.get(host, host)

    def passage(self, source: Address, remote: Address) -> Passage | None:
        """Send a dial out through the boxes before a host; None when no way leads to that address."""
        realm = self._realm(remote.host)
        boxes = boxes_before(self.site(source.host).nat)
        if realm is not None and realm not in boxes:
            return None
        return Passage(list(takewhile(lambda box: box is not realm, boxes)), source, remote)

    def land(self, dialler: str, source: Address, remote: Address) -> Address | str:
        """Return where a dial of an address ends; LOST or REFUSED when a box on the way does not let it in."""
        while (box := self._boxes.get(remote.host)) is not None:
            if not box.hairpin and box in boxes_before(self.site(dialler).nat):
                return LOST
            inner = box.let_in(remote.port, source)
            if inner is None:
                return REFUSED if box.refuses else LOST
            remote = inner
        if remote.host in self._refusing:
            return REFUSED
        site = self._sites.get(remote.host)
        if not self.is_reachable(remote.host) or (site is not None and site.is_off):
            return LOST
        return remote

    def port(self, host: str) -> int:
        """Return a port on which a host does not listen, for a dial or a listener."""
        while True:
            self._next_port = self._next_port % NUM_EPHEMERAL_PORTS + 1
            port = FIRST_EPHEMERAL_PORT + self._next_port
            if Address(host, port) not in self._listeners:
                return port

    def add_listener(self, listener: SimListener) -> None:
        if listener.address in self._listeners:
            raise AddressInUseError(f"{listener.address} is in use by another process")
        self._listeners[listener.address] = listener
        self.site(listener.address.host).listeners[listener.address] = listener

    def remove_listener(self, listener: SimListener) -> None:
        if self._listeners.get(listener.address) is listener:
            del self._listeners[listener.address]
            del self.site(listener.address.host).listeners[listener.address]

    def listener_at(self, address: Address) -> SimListener | None:
        return self._listeners.get(address)

    def join(
        self,
        near: "SimHost",
        far: "SimHost",
        near_addresses: tuple[Address, Address],
        far_addresses: tuple[Address, Address],
        passages: tuple[Passage | None, Passage | None] = (None, None),
    ) -> tuple[SimStream, SimStream]:
        """Return the two ends of a new connection, with the local and the remote address that each of them sees."""
        one, other = self.site(near.name), self.site(far.name)
        there = Pipe(self.traffic, self._route(one, other))
        back = Pipe(self.traffic, self._route(other, one))
        ends = (
            SimStream(near, back, there, *near_addresses, passages[0]),
            SimStream(far, there, back, *far_addresses, passages[1]),
        )
        one.streams[ends[0]] = None
        other.streams[ends[1]] = None
        if self._cuts:
            self._cut(ends[0])
        for site in (one, other):
            if site.resets_per_hour:
                self._plan_reset(site)
        return ends

    def forget(self, stream: SimStream) -> None:
        self.site(stream.owner.name).streams.pop(stream, None)

    def ask_for_reset(self, stream: SimStream, host: str) -> None:
        """Reset an end that talks to a machine that lost its power, once that is back."""
        if self.is_up(host):
            self._reset_later(stream)
        else:
            self.site(host).wait_for_reset[stream] = None

    def _reset_later(self, stream: SimStream) -> None:
        self.agenda.at(self.agenda.now() + stream.incoming.rtt / 2, stream.remote_ended, RESET)

    def _route(self, source: Site, target: Site) -> Route:
        is_local = source is target or (source.nat is not None and source.nat is target.nat)
        return Route(
            up=Link() if is_local else source.up,
            down=Link() if is_local else target.down,
            latency=self.latency(source.name, target.name),
            jitter=0.0 if is_local else source.jitter + target.jitter,
            loss=0.0 if is_local else 1.0 - (1.0 - source.loss) * (1.0 - target.loss),
            chance=source.chance,
            sender=source.meter,
            receiver=target.meter,
        )

    def _reroute(self, site: Site) -> None:
        """Let open connections of a host go on as it is connected now."""
        for stream in site.streams:
            other = self.site(stream.other.owner.name)
            stream.outgoing.set_route(self._route(site, other))
            stream.incoming.set_route(self._route(other, site))

    def _apply(self, cut: Cut) -> None:
        """Tell the connections across a partition whether they are cut now."""
        for host in sorted(cut.left) + sorted(cut.right):
            if host in self._sites:
                for stream in list(self._sites[host].streams):
                    self._cut(stream)

    def _cut(self, stream: SimStream) -> None:
        near, far = stream.owner.name, stream.other.owner.name
        there, back = self.is_cut(near, far), self.is_cut(far, near)
        stream.outgoing.cut(there, back and not there)
        stream.incoming.cut(back, there and not back)

    def _plan_reset(self, site: Site) -> None:
        if site.resets_per_hour and site.streams and not site.plans_reset:
            site.plans_reset = True
            seconds = site.chance.expovariate(site.resets_per_hour * len(site.streams) / 3600)
            self.agenda.at(self.agenda.now() + seconds, self._reset_one, site)

    def _reset_one(self, site: Site) -> None:
        site.plans_reset = False
        if site.streams and site.resets_per_hour:
            site.chance.choice(list(site.streams)).reset()
        self._plan_reset(site)

    def _realm(self, host: str) -> SimNat | None:
        """Return the box inside which an address means something; None for the whole world."""
        if host in self._boxes:
            return self._boxes[host].behind
        site = self._sites.get(host)
        return site.nat if site is not None else None

    def _chance(self, name: str) -> random.Random:
        return random.Random(digest("sim-network", f"{self._seed} {name}".encode()))

    def _public_host(self) -> str:
        """Return an address of a block that the internet does not route, but that counts as public."""
        self._num_public += 1
        return f"11.{self._num_public // 62_500}.{self._num_public // 250 % 250}.{self._num_public % 250 + 1}"

    def _private_host(self) -> str:
        self._num_private += 1
        return f"192.168.{self._num_private // 250}.{self._num_private % 250 + 2}"

    def _carrier_host(self) -> str:
        self._num_homes += 1
        return f"100.64.{self._num_homes // 250}.{self._num_homes % 250 + 2}"

    def _carrier_box(self, kind: NatKind) -> SimNat:
        """Return a carrier's box for one more subscriber."""
        boxes = self._carriers.setdefault(kind, [])
        if not boxes or boxes[-1].num_subscribers >= NUM_HOMES_PER_CARRIER:
            boxes.append(SimNat(kind, self._public_host()))
        return boxes[-1]


class SimHost:
    """The Network port of one process on a host."""

    def __init__(self, network: SimNetwork, name: str, process: SimProcess | None = None) -> None:
        self.network, self.name, self.process, self.alive = network, name, process, True

    async def listen(self, address: Address, on_stream: Callable[[RawStream], None]) -> Listener:
        if address.host not in (self.name, "0.0.0.0"):
            raise ConfigError(f"{address} is no address of this machine; use 0.0.0.0 to listen on all of them")
        bound = Address(self.name, address.port or self.network.port(self.name))
        listener = SimListener(self, bound, on_stream)
        self.network.add_listener(listener)
        return listener

    async def connect(self, address: Address, *, local_port: int | None = None) -> RawStream:
        """Dial; from a port of one's own when both ends dial each other at once through their boxes."""
        dial = Dial(self, Address(self.name, local_port or self.network.port(self.name)), address)
        return await dial.answered()

    async def secure(self, raw: RawStream, signer: Signer, *, server: bool) -> SecureStream:
        assert isinstance(raw, SimStream)
        return await secure(self.network.keys, raw, signer, server=server)

    def local_hosts(self) -> list[str]:
        return [self.name]
