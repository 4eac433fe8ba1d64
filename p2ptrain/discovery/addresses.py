"""Which addresses a peer announces, and which of another peer's it believes.

Announced is what others can dial: the port that was really bound, never 0, and hosts of this machine, never the
wildcard. Loopback is announced only by a peer that is bound to nothing else; such a peer is useless to other machines,
which `only_loopback` lets the command line say.
"""

import ipaddress
from collections.abc import Iterable, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Final

from p2ptrain.discovery.records import MAX_ADDRESSES
from p2ptrain.errors import ConfigError
from p2ptrain.link import check_dialable
from p2ptrain.runtime import Address

LOCAL_NETWORKS: Final = tuple(
    map(
        ipaddress.ip_network,
        (
            "10.0.0.0/8",
            "172.16.0.0/12",
            "192.168.0.0/16",
            "100.64.0.0/10",  # behind a carrier's NAT
            "169.254.0.0/16",
            "fc00::/7",
            "fe80::/10",
        ),
    )
)


def announced_addresses(
    bound: Address, local_hosts: Sequence[str], announce: Sequence[Address] = ()
) -> tuple[Address, ...]:
    """Return where others can dial the listener at `bound`, best first.

    `announce` is what the user says instead, for example a forwarded port; ConfigError when it cannot be dialled.
    """
    if announce:
        return tuple(map(_check_announced, announce))[:MAX_ADDRESSES]
    if not _is_wildcard(bound.host):
        return (bound,)
    version = ipaddress.ip_address(bound.host).version
    hosts = [host for host in local_hosts if _is_usable(host) and ipaddress.ip_address(host).version == version]
    reachable = [host for host in hosts if not is_loopback(host)] or hosts
    return tuple(Address(host, bound.port) for host in reachable[:MAX_ADDRESSES])


def believed_addresses(addresses: Iterable[Address], *, same_machine: bool) -> list[Address]:
    """Return those of another peer's addresses that mean that peer here: loopback only if it shares our machine."""
    return [address for address in addresses if same_machine or not is_loopback(address.host)]


def only_loopback(addresses: Iterable[Address]) -> bool:
    """Return whether no other machine can dial any of these."""
    return all(is_loopback(address.host) for address in addresses)


@lru_cache(maxsize=4096)
def is_loopback(host: str) -> bool:
    """Return whether a host means "this machine" on every machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.rstrip(".").lower() == "localhost"


class Scope(IntEnum):
    """From where an address can be dialled at best."""

    MACHINE = 0
    LOCAL_NETWORK = 1
    ANYWHERE = 2


@lru_cache(maxsize=4096)
def scope_of(host: str) -> Scope:
    """Return from where a host can be dialled at best; a name is taken to mean the same everywhere."""
    if is_loopback(host):
        return Scope.MACHINE
    try:
        number = ipaddress.ip_address(host)
    except ValueError:
        return Scope.ANYWHERE
    if isinstance(number, ipaddress.IPv6Address) and number.ipv4_mapped is not None:
        return scope_of(str(number.ipv4_mapped))
    is_local = any(number in network for network in LOCAL_NETWORKS if network.version == number.version)
    return Scope.LOCAL_NETWORK if is_local else Scope.ANYWHERE


def _check_announced(address: Address) -> Address:
    try:
        return check_dialable(address)
    except ValueError as error:
        raise ConfigError(f"announce {address}: {error}") from None


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _is_usable(host: str) -> bool:
    """Return whether a local host is an address that means the same on other machines: no scope, as in fe80::1%eth0."""
    try:
        return not ipaddress.ip_address(host).is_link_local
    except ValueError:
        return False
