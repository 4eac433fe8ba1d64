"""Network profiles: what kinds of machines and connections a simulated swarm is made of.

A profile is a TOML file: `[[regions]]` where machines stand, `[[hosts]]` how they are connected, `[[devices]]` how fast
they compute, `[sessions]` how long they stay. Of each, machines draw their own from a seeded source of chance. Three
come with p2ptrain, in configs/networks/: datacenter, home-internet, hostile.

Quantities that differ from machine to machine are a number (all the same) or a median and a 90th percentile, between
which they are log-normal, as measured rates and delays are.
"""

import math
import random
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from p2ptrain.config import Section, load_config
from p2ptrain.sim.churn import SessionsConfig
from p2ptrain.sim.compute import DeviceClass
from p2ptrain.sim.nat import NatKind

BYTES_PER_MBIT: Final = 125_000
FIBRE_KM_PER_SECOND: Final = 200_000.0
DETOUR: Final = 1.6  # how much longer cables are than great circles, by published round-trip times between cities
EARTH_RADIUS_KM: Final = 6371.0
KM_PER_DEGREE: Final = 111.2
Z90: Final = 1.2816  # 90th percentile of the standard normal distribution
MAX_Z: Final = 2.5  # draws are cut here, so that no machine in a thousand has the link of a data centre


class Spread(Section):
    """A quantity that differs from machine to machine: log-normal, by its median and its 90th percentile."""

    median: Annotated[float, Field(ge=0.0, le=1e9)]
    p90: Annotated[float, Field(ge=0.0, le=1e9)] | None = None
    """Nine machines in ten have less than this; without it all have the median."""

    @model_validator(mode="after")
    def _rises(self) -> Self:
        if self.p90 is not None and not 0 < self.median <= self.p90:
            raise ValueError(f"p90 = {self.p90:g} must not be below median = {self.median:g}, which must be above 0")
        return self

    def draw(self, chance: random.Random) -> float:
        """Return one machine's value."""
        if self.p90 is None:
            return self.median
        sigma = math.log(self.p90 / self.median) / Z90
        return self.median * math.exp(sigma * max(-MAX_Z, min(MAX_Z, chance.gauss(0.0, 1.0))))


Quantity = Annotated[
    Spread, BeforeValidator(lambda value: {"median": value} if isinstance(value, (int, float)) else value)
]
Share = Annotated[float, Field(gt=0.0, le=1e6)]  # how many are of this kind, relative to the other kinds


class Region(Section):
    """A part of the world where machines stand."""

    name: Annotated[str, Field(min_length=1, max_length=40)]
    share: Share
    latitude: Annotated[float, Field(ge=-90.0, le=90.0)]
    longitude: Annotated[float, Field(ge=-180.0, le=180.0)]
    radius_km: Annotated[float, Field(ge=0.0, le=5000.0)] = 0.0
    """Machines stand this far from the middle, at most."""


class HostClass(Section):
    """A kind of access to the network."""

    name: Annotated[str, Field(min_length=1, max_length=40)]
    share: Share
    up_mbit: Quantity | None = None
    """Megabits per second that the machine can send; without it there is no limit."""
    down_mbit: Quantity | None = None
    latency_ms: Quantity = Spread(median=0.0)
    """One way between the machine and the next large network."""
    jitter_ms: Quantity = Spread(median=0.0)
    """How much later a message arrives for jitter, on average: exponential."""
    loss: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Fraction of segments that the access loses, each way."""
    resets_per_hour: Annotated[float, Field(ge=0.0, le=3600.0)] = 0.0
    """How often something on the way resets each connection."""
    reach: Literal["open", "no-incoming", "full-cone", "address-restricted", "port-restricted", "symmetric"] = "open"
    """Who can dial the machine. `open`: everybody (its own address, or a port that a router forwards, by hand or UPnP);
    `no-incoming`: nobody, though its address is public; the others: behind a box that translates addresses so."""
    carrier: Literal["full-cone", "address-restricted", "port-restricted", "symmetric"] | None = None
    """CGNAT: the box is itself behind a box of its carrier, of this kind, with others."""
    hairpin: bool = False
    """Whether machines behind the box reach each other by its outer address."""
    refuses: bool = False
    """Whether the box answers a dial that it does not let in, instead of saying nothing."""

    @model_validator(mode="after")
    def _carrier_has_a_box_before_it(self) -> Self:
        if self.carrier is not None and self.reach in ("open", "no-incoming"):
            raise ValueError(f'carrier = "{self.carrier}" goes with a box: reach must be one of the four kinds')
        return self


@dataclass(frozen=True, slots=True)
class Place:
    """A point on the globe, in degrees."""

    latitude: float
    longitude: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HostProfile:
    """How one machine is connected: rates in bytes/s (None: no limit), times in s."""

    class_name: str = ""
    up: float | None = None
    down: float | None = None
    latency: float = 0.0
    jitter: float = 0.0
    loss: float = 0.0
    resets_per_hour: float = 0.0
    nat_kind: NatKind | None = None
    carrier_kind: NatKind | None = None
    is_hidden: bool = False
    hairpin: bool = False
    refuses: bool = False
    place: Place | None = None

    @property
    def is_dialable(self) -> bool:
        """Whether everybody can dial it."""
        return self.nat_kind is None and not self.is_hidden


class NetworkProfile(Section):
    """configs/networks/*.toml."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")]
    regions: list[Region] = []
    hosts: Annotated[list[HostClass], Field(min_length=1)]
    devices: list[DeviceClass] = []
    sessions: SessionsConfig | None = None

    def draw_host(self, chance: random.Random) -> HostProfile:
        """Return the access of one machine."""
        kind = _draw(self.hosts, chance)
        return HostProfile(
            class_name=kind.name,
            up=_bytes_per_second(kind.up_mbit, chance),
            down=_bytes_per_second(kind.down_mbit, chance),
            latency=kind.latency_ms.draw(chance) / 1000,
            jitter=kind.jitter_ms.draw(chance) / 1000,
            loss=kind.loss,
            resets_per_hour=kind.resets_per_hour,
            nat_kind=None if kind.reach in ("open", "no-incoming") else kind.reach,
            carrier_kind=kind.carrier,
            is_hidden=kind.reach == "no-incoming",
            hairpin=kind.hairpin,
            refuses=kind.refuses,
            place=_draw_place(_draw(self.regions, chance), chance) if self.regions else None,
        )

    def draw_device(self, chance: random.Random) -> DeviceClass:
        """Return the speed of one machine; a plain one when the profile says nothing of devices."""
        return _draw(self.devices, chance) if self.devices else DeviceClass()


def load_network_profile(name_or_path: str) -> NetworkProfile:
    """Return configs/networks/NAME.toml, or the TOML file at a path; ConfigError says in one line what is wrong."""
    return load_config(NetworkProfile, name_or_path, folder="configs/networks", what="network")


def propagation(one: Place, other: Place) -> float:
    """Return how long light in cables takes from one place to another (s)."""
    latitudes = math.radians(one.latitude), math.radians(other.latitude)
    east = math.radians(other.longitude - one.longitude)
    haversine = (
        math.sin((latitudes[1] - latitudes[0]) / 2) ** 2
        + math.cos(latitudes[0]) * math.cos(latitudes[1]) * math.sin(east / 2) ** 2
    )
    return 2 * EARTH_RADIUS_KM * math.asin(min(1.0, math.sqrt(haversine))) * DETOUR / FIBRE_KM_PER_SECOND


def _draw(classes: list[Any], chance: random.Random) -> Any:
    return chance.choices(classes, [one.share for one in classes])[0]


def _draw_place(region: Region, chance: random.Random) -> Place:
    distance, angle = region.radius_km * math.sqrt(chance.random()), chance.uniform(0.0, 2 * math.pi)
    latitude = max(-90.0, min(90.0, region.latitude + distance * math.sin(angle) / KM_PER_DEGREE))
    narrowing = max(0.1, math.cos(math.radians(latitude)))
    longitude = region.longitude + distance * math.cos(angle) / (KM_PER_DEGREE * narrowing)
    return Place(latitude, longitude)


def _bytes_per_second(mbit: Spread | None, chance: random.Random) -> float | None:
    return None if mbit is None else max(1.0, mbit.draw(chance) * BYTES_PER_MBIT)
