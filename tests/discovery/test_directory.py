"""The DHT on loopback: hivemind's Kademlia over real sessions, without libp2p's daemon."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from p2ptrain.discovery import directory as directory_module
from p2ptrain.discovery.directory import Directory, EntryCheck, bucket_of, head_key, member_key
from p2ptrain.discovery.kademlia.screening import node_id_of
from p2ptrain.discovery.members import Members
from p2ptrain.discovery.messages import KademliaAnswer, KademliaCall
from p2ptrain.discovery.own_record import OwnRecord
from p2ptrain.discovery.records import HeadRecord, MemberRecord
from p2ptrain.errors import Refused
from p2ptrain.events import Event, Events
from p2ptrain.ids import Digest, PeerId, RunId, digest, public_key_of
from p2ptrain.link import LinkPeer
from p2ptrain.net.identity import Identity
from p2ptrain.net.transport import Transport
from p2ptrain.real.main import run
from p2ptrain.real.runtime import create_runtime
from p2ptrain.runtime import Address, Runtime

RUN_ID = RunId(digest("test", b"run"))


class Peer:
    """A peer on loopback: transport, members, directory."""

    def __init__(self, directory: Path, number: int) -> None:
        self.runtime: Runtime = create_runtime(directory / str(number))
        self.identity = Identity(number.to_bytes(32, "big"))
        self.events: list[Event] = []
        self._events = Events(self.runtime.clock)
        self._events.subscribe(self.events.append)
        self.transport = Transport(runtime=self.runtime, identity=self.identity, run_id=RUN_ID, events=self._events)

    async def start(self, bootstrap: Sequence[LinkPeer] = ()) -> "Peer":
        self.address = await self.transport.listen(Address("127.0.0.1", 0))
        self.members = Members(
            runtime=self.runtime,
            transport=self.transport,
            identity=self.identity,
            events=self._events,
            role="trainer",
            bootstrap=bootstrap,
            own_addresses=[self.address],
        )
        self.directory = Directory(
            runtime=self.runtime,
            transport=self.transport,
            identity=self.identity,
            events=self._events,
            members=self.members,
        )
        await self.members.start()
        await self.directory.start()
        return self

    @property
    def id(self) -> PeerId:
        return self.transport.peer_id

    @property
    def link(self) -> LinkPeer:
        return LinkPeer(self.id, self.address)

    @property
    def contacts(self) -> list[PeerId]:
        assert self.directory._table is not None
        return self.directory._table.contacts()

    async def find(self, key: bytes) -> dict[bytes, bytes]:
        assert self.directory._table is not None
        return await self.directory._table.find(key)

    async def leave(self) -> None:
        await self.members.leave()
        await self.directory.leave()
        await self.transport.close()

    async def kill(self) -> None:
        """End without a farewell."""
        await self.members.close()
        await self.directory.close()
        await self.transport.close()

    def head(self, work: int) -> HeadRecord:
        return HeadRecord(
            fragment=0,
            digest=Digest(bytes(32)),
            total_work=work,
            holders=(self.id,),
            issued_at=self.runtime.clock.wall(),
        )


@asynccontextmanager
async def swarm(directory: Path, count: int) -> AsyncIterator[list[Peer]]:
    """Yield `count` peers of which each has every other as a contact."""
    peers = [await Peer(directory, 0).start()]
    for number in range(1, count):
        peers.append(await Peer(directory, number).start([peers[0].link]))
    await until(lambda: all(len(peer.contacts) == count - 1 for peer in peers))
    yield peers
    for peer in peers:
        await peer.leave()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20.0):
        while not condition():
            await asyncio.sleep(0.01)


def story(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run(main)


def test_a_record_is_found_by_others_and_nothing_of_libp2p_runs(tmp_path: Path) -> None:
    sockets_before = set(Path("/tmp").glob("hivemind-*"))

    async def main() -> None:
        async with swarm(tmp_path, 5) as peers:
            await peers[1].directory.publish()
            key = member_key(RUN_ID, bucket_of(peers[1].id))
            found = await peers[4].find(key)
            assert found[public_key_of(peers[1].id)] == peers[1].members.signed_record(peers[1].id)
            assert "p2pd" not in {child.name() for child in psutil.Process().children(recursive=True)}

    story(main)
    assert set(Path("/tmp").glob("hivemind-*")) == sockets_before


# BUG-D07
def test_a_record_outlives_its_holders(tmp_path: Path) -> None:
    async def main() -> None:
        async with swarm(tmp_path, 10) as peers:
            publisher, reader = peers[0], peers[9]
            key = member_key(RUN_ID, bucket_of(publisher.id))
            await publisher.directory.publish()
            for _ in range(5):
                others = [peer for peer in peers if peer not in (publisher, reader)]
                nearest = min(others, key=lambda peer: node_id_of(peer.id).xor_distance(key_id(key)))
                await nearest.kill()
                peers.remove(nearest)
                await until(lambda: len(reader.contacts) == len(publisher.contacts) == len(peers) - 1)
                assert public_key_of(publisher.id) in await reader.find(key)

    story(main)


# BUG-D04
def test_peers_that_are_gone_are_not_handed_out(tmp_path: Path) -> None:
    async def main() -> None:
        async with swarm(tmp_path, 6) as peers:
            for gone in peers[3:]:
                await gone.leave()
            del peers[3:]
            await until(lambda: all(len(peer.contacts) == 2 for peer in peers))

    story(main)


def test_the_head_with_most_work_comes_first(tmp_path: Path) -> None:
    async def main() -> None:
        async with swarm(tmp_path, 3) as peers:
            for work, peer in enumerate(peers[:2]):
                peer.directory.publish_head(peer.head(work))
                await peer.directory.publish()
            heads = await peers[2].directory.find_heads(0)
            assert [head.total_work for head in heads] == [1, 0]

    story(main)


# BUG-D11
def test_a_contact_that_answers_as_somebody_else_does_not_enter_the_table(tmp_path: Path) -> None:
    async def main() -> None:
        async with swarm(tmp_path, 2) as peers:
            victim = peers[0]
            liar = Peer(tmp_path, 7)
            record = OwnRecord(
                clock=liar.runtime.clock, identity=liar.identity, run_id=RUN_ID, role="trainer", addresses=()
            )
            liar.transport.set_own_record(record.signed)
            claimed = node_id_of(Identity(bytes(31) + b"\x09").peer_id).to_bytes()
            from hivemind.proto import dht_pb2

            async def lie(sender: PeerId, call: KademliaCall, body: bytearray) -> KademliaAnswer:
                lied.set()
                response = dht_pb2.PingResponse(peer=dht_pb2.NodeInfo(node_id=claimed))
                return KademliaAnswer(payload=response.SerializeToString())

            lied = asyncio.Event()
            liar.transport.handle(KademliaCall, lie)
            await liar.transport.dial(victim.address)
            ping = dht_pb2.PingRequest(peer=dht_pb2.NodeInfo(node_id=claimed)).SerializeToString()
            for _ in range(20):
                await ask(liar, victim, "DHTProtocol.rpc_ping", ping)
            await asyncio.wait_for(lied.wait(), 10.0)
            await victim.find(member_key(RUN_ID, 0))
            assert victim.contacts == [peers[1].id]
            await liar.transport.close()

    story(main)


# BUG-X12
def test_a_stranger_can_store_nothing_but_its_own_record_in_its_place(tmp_path: Path) -> None:
    async def main() -> None:
        async with swarm(tmp_path, 2) as peers:
            victim, stranger = peers
            from hivemind.proto import dht_pb2
            from hivemind.utils import MSGPackSerializer

            def store(key: bytes, subkey: bytes, value: bytes, expires_at: float) -> bytes:
                request = dht_pb2.StoreRequest(
                    keys=[key_id(key).to_bytes()],
                    subkeys=[MSGPackSerializer.dumps(subkey)],
                    values=[MSGPackSerializer.dumps(value)],
                    expiration_time=[expires_at],
                    in_cache=[False],
                )
                return bytes(request.SerializeToString())

            own, signed = public_key_of(stranger.id), stranger.members.signed_record(stranger.id)
            record = stranger.members.own_record
            key = member_key(RUN_ID, bucket_of(stranger.id))
            assert signed is not None
            attempts = {
                "own record": store(key, own, signed, record.expires_at),
                "for ever": store(key, own, signed, float("inf")),
                "not a number": store(key, own, signed, float("nan")),
                "somewhere else": store(b"another key", own, signed, record.expires_at),
                "in another bucket": store(
                    member_key(RUN_ID, (bucket_of(stranger.id) + 1) % 16), own, signed, record.expires_at
                ),
                "under another name": store(key, public_key_of(victim.id), signed, record.expires_at),
                "junk": store(key, own, b"junk", record.expires_at),
            }
            stored = []
            for name, request in attempts.items():
                answer = await ask(stranger, victim, "DHTProtocol.rpc_store", request)
                if dht_pb2.StoreResponse.FromString(answer.payload).store_ok[0]:
                    stored.append(name)
            assert stored == ["own record"]
            assert set(await victim.find(key)) >= {own}

    story(main)


# BUG-X12
@pytest.mark.parametrize(
    "payload", [b"\xff\xff\xff", b"\x12\x03abc", b"\x1a\x00" * 40], ids=["junk", "short key", "rows"]
)
def test_a_malformed_store_is_refused(tmp_path: Path, payload: bytes) -> None:
    async def main() -> None:
        async with swarm(tmp_path, 2) as peers:
            with pytest.raises(Refused, match="malformed"):
                await ask(peers[1], peers[0], "DHTProtocol.rpc_store", payload)

    story(main)


def test_entries_are_judged_by_what_they_themselves_say() -> None:
    class Now:
        def wall(self) -> float:
            return 1000.0

        def monotonic(self) -> float:
            return 0.0

    signer = Identity(b"s" * 32)
    head = HeadRecord(fragment=3, digest=Digest(bytes(32)), total_work=1, holders=(signer.peer_id,), issued_at=1000.0)
    check = EntryCheck(RUN_ID, Now())
    subkey, value = public_key_of(signer.peer_id), head.to_bytes(signer, RUN_ID)
    right, wrong = (key_id(head_key(RUN_ID, fragment)).to_bytes() for fragment in (3, 4))
    assert check(right, subkey, value, head.expires_at)
    assert not check(wrong, subkey, value, head.expires_at)
    assert not check(right, subkey, value, head.expires_at + 1)
    assert not check(right, bytes(32), value, head.expires_at)


# BUG-D16
def test_a_farewell_replaces_the_published_record(tmp_path: Path) -> None:
    async def main() -> None:
        async with swarm(tmp_path, 4) as peers:
            leaver, reader = peers.pop(), peers[0]
            await leaver.directory.publish()
            await leaver.leave()
            found = await reader.find(member_key(RUN_ID, bucket_of(leaver.id)))
            now = reader.runtime.clock.wall()
            record = MemberRecord.from_bytes(found[public_key_of(leaver.id)], run_id=RUN_ID, now=now)
            assert record.gone and record == replace(record, gone=True)

    story(main)


async def ask(asker: Peer, asked: Peer, rpc: str, payload: bytes) -> KademliaAnswer:
    call = KademliaCall(rpc=rpc, payload=payload)
    return (await asker.transport.call(asked.id, call, KademliaAnswer, timeout=5.0)).message


def key_id(key: bytes) -> Any:
    from hivemind.dht.routing import DHTID

    return DHTID.from_bytes(directory_module._key_id(key))
