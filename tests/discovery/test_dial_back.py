"""Dialling a peer back at its wish, and at nobody's wish anybody else."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from p2ptrain.discovery.dial_back import MAX_REMEMBERED, PER_ASKER, Allowance, DialBacks
from p2ptrain.discovery.messages import DialBack, DialledBack
from p2ptrain.discovery.own_record import OwnRecord
from p2ptrain.errors import NetworkError, Refused
from p2ptrain.events import Events
from p2ptrain.ids import RunId, digest
from p2ptrain.net.connector import WrongPeerError
from p2ptrain.net.identity import Identity
from p2ptrain.net.transport import Transport
from p2ptrain.real.main import run
from p2ptrain.real.runtime import create_runtime
from p2ptrain.runtime import Address, Runtime
from p2ptrain.sim.ports import SimWorld

RUN_ID = RunId(digest("test", b"run"))
VICTIM = Address("203.0.113.66", 80)


class Peer:
    """A transport that answers, and that says of itself what a test wants it to say."""

    def __init__(self, runtime: Runtime, host: str) -> None:
        self.runtime, self.host = runtime, host
        self.identity = Identity.generate(runtime.entropy)
        self.transport = Transport(runtime=runtime, identity=self.identity, run_id=RUN_ID, events=Events(runtime.clock))
        self.dialled: list[Address] = []
        probe = self.transport.probe

        async def noted(address: Address, expected: Any) -> None:
            self.dialled.append(address)
            await probe(address, expected)

        self.transport.probe = noted  # type: ignore[method-assign]
        DialBacks(runtime=runtime, transport=self.transport)

    async def listen(self) -> "Peer":
        self.address = await self.transport.listen(Address(self.host, 0))
        return self

    def record(self, *addresses: Address, identity: Identity | None = None) -> bytes:
        own = OwnRecord(
            clock=self.runtime.clock, identity=identity or self.identity, run_id=RUN_ID, role="trainer",
            addresses=addresses,
        )  # fmt: skip
        return own.signed

    async def ask(self, other: "Peer", *addresses: Address, record: bytes | None = None) -> tuple[str, ...]:
        request = DialBack(
            record=self.record(*addresses) if record is None else record,
            addresses=tuple((address.host, address.port) for address in addresses),
        )
        return (await self.transport.call(other.transport.peer_id, request, DialledBack, timeout=10.0)).message.outcomes


def told(
    story: Callable[[Peer, Peer], Coroutine[Any, Any, None]], asker_host: str = "203.0.113.2", seed: int = 1
) -> SimWorld:
    """Run a story of an asker that is connected with an answerer, which it dialled."""
    world = SimWorld(seed=seed)

    async def whole() -> None:
        asker = await Peer(world.runtime(asker_host), asker_host).listen()
        answerer = await Peer(world.runtime("203.0.113.1"), "203.0.113.1").listen()
        await asker.transport.dial(answerer.address)
        await asyncio.sleep(1.0)
        await story(asker, answerer)
        await asyncio.gather(asker.transport.close(), answerer.transport.close())

    world.run(whole())
    return world


def test_every_address_has_an_answer_of_its_own() -> None:
    async def story(asker: Peer, answerer: Peer) -> None:
        addresses = asker.address, Address(asker.host, 9), answerer.address
        assert await asker.ask(answerer, *addresses) == ("reached", "refused", "another peer is there")

    told(story)


def test_an_address_where_another_peer_lives_is_not_the_askers() -> None:
    world = SimWorld(seed=2)

    async def story() -> None:
        asker, answerer, third = [
            await Peer(world.runtime(host), host).listen() for host in ("10.0.0.1", "10.0.0.2", "10.0.0.3")
        ]
        await asker.transport.dial(answerer.address)
        assert await asker.ask(answerer, third.address) == ("another peer is there",)
        with pytest.raises(WrongPeerError):
            await answerer.transport.probe(third.address, asker.transport.peer_id)
        await asyncio.gather(*(peer.transport.close() for peer in (asker, answerer, third)))

    world.run(story())


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "::1", "localhost", "192.168.0.1", "10.1.2.3", "169.254.169.254", "fd00::1", "100.64.0.1",
             "::ffff:192.168.0.1"]
)  # fmt: skip
def test_nobody_is_sent_to_the_inside_of_another_network(host: str) -> None:
    async def story(asker: Peer, answerer: Peer) -> None:
        assert await asker.ask(answerer, Address(host, 22)) == ("means nothing outside of its own network",)
        assert answerer.dialled == []

    told(story)


def test_neighbours_dial_each_others_local_addresses_and_never_the_machine_itself() -> None:
    async def story(asker: Peer, answerer: Peer) -> None:
        outcomes = await asker.ask(answerer, asker.address, Address("127.0.0.1", 22))
        assert outcomes == ("reached", "means nothing outside of its own network")

    told(story, asker_host="192.168.1.5")


def test_a_foreign_host_is_dialled_once_a_minute_whoever_asks() -> None:
    world = SimWorld(seed=3)

    async def story() -> None:
        answerer = await Peer(world.runtime("203.0.113.1"), "203.0.113.1").listen()
        askers = [await Peer(world.runtime(host), host).listen() for host in (f"203.0.113.{n}" for n in range(10, 16))]
        for asker in askers:
            await asker.transport.dial(answerer.address)
        outcomes = [(await asker.ask(answerer, VICTIM))[0] for asker in askers]
        assert outcomes == ["refused"] + ["not dialled again so soon"] * 5
        assert answerer.dialled == [VICTIM]
        await asyncio.sleep(61.0)
        assert await askers[0].ask(answerer, VICTIM) == ("refused",)
        await asyncio.gather(*(peer.transport.close() for peer in (answerer, *askers)))

    world.run(story())


def test_eight_ports_of_one_foreign_host_are_one_dial() -> None:
    async def story(asker: Peer, answerer: Peer) -> None:
        await asker.ask(answerer, *(Address(VICTIM.host, port) for port in range(1, 9)))
        assert len(answerer.dialled) == 1

    told(story)


def test_only_what_the_askers_own_record_announces_is_dialled() -> None:
    async def story(asker: Peer, answerer: Peer) -> None:
        others = asker.record(VICTIM, identity=answerer.identity)
        for record in (asker.record(asker.address), others):
            with pytest.raises(Refused, match="not-yours"):
                await asker.ask(answerer, VICTIM, record=record)
        with pytest.raises(Refused, match="malformed"):
            await asker.ask(answerer, VICTIM, record=b"junk")
        assert answerer.dialled == []

    told(story)


def test_a_flood_of_asks_is_refused_with_the_time_to_wait() -> None:
    async def story(asker: Peer, answerer: Peer) -> None:
        refused = 0
        for _ in range(100):
            try:
                await asker.ask(answerer, asker.address)
            except Refused as error:
                assert error.code == "too-often" and error.retry_after is not None and error.retry_after > 0.0
                refused += 1
        times, interval = PER_ASKER
        assert len(answerer.dialled) == 100 - refused <= times + 1
        await asyncio.sleep(times * interval)
        assert await asker.ask(answerer, asker.address) == ("reached",)

    told(story)


def test_many_askers_together_are_bounded_too() -> None:
    world = SimWorld(seed=4)

    async def story() -> None:
        answerer = await Peer(world.runtime("10.0.0.1"), "10.0.0.1").listen()
        askers = [await Peer(world.runtime(host), host).listen() for host in (f"10.0.1.{n}" for n in range(60))]
        for asker in askers:
            await asker.transport.dial(answerer.address)
        answers = await asyncio.gather(
            *(asker.ask(answerer, asker.address) for asker in askers), return_exceptions=True
        )
        assert 0 < len(answerer.dialled) <= 33
        refused = [answer for answer in answers if isinstance(answer, Refused)]
        assert len(refused) == 60 - len(answerer.dialled)
        await asyncio.gather(*(peer.transport.close() for peer in (answerer, *askers)))

    world.run(story())


def test_an_allowance_remembers_no_more_than_it_may() -> None:
    class Now:
        now = 0.0

        def monotonic(self) -> float:
            return self.now

        def wall(self) -> float:
            return self.now

    clock = Now()
    allowance = Allowance(clock, 2, 10.0)
    for _ in range(2):
        assert allowance.wait("a") == 0.0
        allowance.take("a")
    assert allowance.wait("a") == 10.0
    clock.now = 4.0
    assert allowance.wait("a") == 6.0 and allowance.wait("b") == 0.0
    for key in range(3 * MAX_REMEMBERED):
        allowance.take(key)
    assert len(allowance._full_at) == MAX_REMEMBERED


def test_peers_on_loopback_dial_each_other_back_over_real_connections(tmp_path: Path) -> None:
    async def story() -> None:
        peers = [await Peer(create_runtime(tmp_path / name), "127.0.0.1").listen() for name in ("a", "b")]
        asker, answerer = peers
        await asker.transport.dial(answerer.address)
        with pytest.raises(NetworkError):
            await answerer.transport.probe(Address("127.0.0.1", 1), asker.transport.peer_id)
        before = [peer.transport.counters()["num_connections"] for peer in peers]
        outcomes = await asker.ask(answerer, asker.address, answerer.address, Address("127.0.0.1", 1))
        assert outcomes == ("reached", "another peer is there", "refused")
        assert [peer.transport.counters()["num_connections"] for peer in peers] == before
        assert asker.transport.counters()["num_failed_handshakes"] == 0
        for peer in peers:
            await peer.transport.close()

    run(story)
