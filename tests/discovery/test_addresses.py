"""Which addresses are announced, and which of others' are believed."""

import pytest

from p2ptrain.discovery.addresses import Scope, announced_addresses, believed_addresses, only_loopback, scope_of
from p2ptrain.errors import ConfigError
from p2ptrain.runtime import Address

HOSTS = ["192.0.2.7", "2001:db8::7", "10.0.0.7", "fe80::7%eth0", "127.0.0.1", "::1"]


# BUG-L06
def test_a_wildcard_listener_announces_what_others_can_dial() -> None:
    assert announced_addresses(Address("0.0.0.0", 4001), HOSTS) == (
        Address("192.0.2.7", 4001),
        Address("10.0.0.7", 4001),
    )
    assert announced_addresses(Address("::", 4001), HOSTS) == (Address("2001:db8::7", 4001),)


# BUG-L06
def test_a_machine_without_a_network_announces_loopback_and_knows_that_it_is_of_no_use_elsewhere() -> None:
    announced = announced_addresses(Address("0.0.0.0", 4001), ["127.0.0.1", "::1"])
    assert announced == (Address("127.0.0.1", 4001),)
    assert only_loopback(announced)
    assert not only_loopback(announced_addresses(Address("0.0.0.0", 4001), HOSTS))


def test_a_listener_on_one_host_announces_that_host() -> None:
    assert announced_addresses(Address("10.0.0.7", 4001), HOSTS) == (Address("10.0.0.7", 4001),)


def test_the_user_may_announce_a_forwarded_port() -> None:
    forwarded = Address("home.example.org", 14001)
    assert announced_addresses(Address("0.0.0.0", 4001), HOSTS, [forwarded]) == (forwarded,)


# BUG-D09
@pytest.mark.parametrize("announce", [Address("203.0.113.7", 0), Address("0.0.0.0", 4001), Address("256.1.1.1", 4001)])
def test_announcing_what_cannot_be_dialled_is_an_error_before_the_start(announce: Address) -> None:
    with pytest.raises(ConfigError, match="announce"):
        announced_addresses(Address("0.0.0.0", 4001), HOSTS, [announce])


def test_loopback_of_another_machine_is_not_believed() -> None:
    addresses = [Address("127.0.0.1", 4001), Address("localhost", 4001), Address("192.0.2.8", 4001)]
    assert believed_addresses(addresses, same_machine=False) == [Address("192.0.2.8", 4001)]
    assert believed_addresses(addresses, same_machine=True) == addresses


@pytest.mark.parametrize(
    ("host", "scope"),
    [
        ("127.0.0.1", Scope.MACHINE),
        ("::1", Scope.MACHINE),
        ("localhost", Scope.MACHINE),
        ("192.168.1.2", Scope.LOCAL_NETWORK),
        ("100.64.7.7", Scope.LOCAL_NETWORK),
        ("fd12::1", Scope.LOCAL_NETWORK),
        ("::ffff:10.0.0.1", Scope.LOCAL_NETWORK),
        ("203.0.113.7", Scope.ANYWHERE),
        ("2001:db8::1", Scope.ANYWHERE),
        ("peer.example.org", Scope.ANYWHERE),
    ],
)
def test_how_far_an_address_reaches(host: str, scope: Scope) -> None:
    assert scope_of(host) is scope
