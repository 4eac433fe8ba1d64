"""Asking a swarm how it is doing, peer by peer."""

import asyncio
import io
import json
import math
from typing import Any, cast

import pytest
from rich.console import Console

from p2ptrain.errors import LinkError, NetworkError, UnreachableError
from p2ptrain.ids import PeerId, RunId, digest, format_run_id, peer_id_from_public_key
from p2ptrain.link import JoinLink, LinkPeer
from p2ptrain.monitor.snapshot import HeadStatus, PeerStatus
from p2ptrain.monitor.status import GetStatus, SwarmStatus, collect, render, to_json
from p2ptrain.net.transport import Reply, Transport
from p2ptrain.runtime import Address

RUN_ID = RunId(digest("test", b"run"))
CONTACTS = [LinkPeer(peer_id_from_public_key(bytes([n]) * 32), Address("10.0.0.1", 4000 + n)) for n in range(1, 8)]


def status(
    contact: LinkPeer, *, knows: list[LinkPeer] | None = None, versions: tuple[int, ...] = (5, 6), **changes: Any
) -> PeerStatus:
    fields: dict[str, Any] = {
        "peer": contact.peer, "run": format_run_id(RUN_ID), "run_name": "pycode", "role": "trainer", "phase": "training",
        "link": "", "trainers_alive": 3, "in_the_round": 3, "merged": 2, "inner_steps": 100, "tokens": 5000, "tokens_merged": 4000,
        "heads": tuple(
            HeadStatus(fragment=index, version=version, digest=f"{version:04x}", total_work=version, contributors=2 + index)
            for index, version in enumerate(versions)
        ),
        "tokens_per_second": 100.0, "loss": 2.0, "learning_rate": 0.006, "utilisation": 0.9, "validation_loss": 2.5,
        "validation_version": 5, "isolated_since": None, "num_connections": 2, "bytes_sent": 10, "bytes_received": 20,
        "members": tuple(map(str, knows or [])),
    }  # fmt: skip
    return PeerStatus(**{**fields, **changes})


class Swarm:
    """Stands in for a transport: peers that answer, and peers that do not."""

    run_id = RUN_ID

    def __init__(self, answers: dict[LinkPeer, PeerStatus | Exception]) -> None:
        self._answers = answers
        self.asked: list[LinkPeer] = []

    async def dial(self, address: Address, *, expected: PeerId) -> PeerId:
        contact = LinkPeer(expected, address)
        self.asked.append(contact)
        answer = self._answers.get(contact, NetworkError("refused"))
        if isinstance(answer, Exception):
            raise answer
        return expected

    async def call(
        self, peer: PeerId, request: GetStatus, reply: type[PeerStatus], *, timeout: float
    ) -> Reply[PeerStatus]:
        answer = next(answer for contact, answer in self._answers.items() if contact.peer == peer)
        assert isinstance(answer, PeerStatus)
        return Reply(reply.decode(answer.encode()), bytearray())

    def status(self, *link: LinkPeer) -> SwarmStatus:
        return asyncio.run(collect(cast(Transport, self), link))


def test_whoever_is_named_by_whoever_answers_is_asked_once() -> None:
    first, second, third, fourth = CONTACTS[:4]
    swarm = Swarm(
        {
            first: status(first, knows=[second, third]),
            second: status(second, knows=[first, third]),
            third: status(third, knows=[first, fourth]),
            fourth: status(fourth),
        }
    )
    answer = swarm.status(first)
    assert {peer.peer for peer in answer.peers} == {contact.peer for contact in CONTACTS[:4]}
    assert len(swarm.asked) == 4


def test_the_link_names_only_peers_that_answered() -> None:
    first, dead, third = CONTACTS[:3]
    answer = Swarm({first: status(first, knows=[third, dead]), third: status(third)}).status(dead, first)
    assert answer.link == JoinLink(RUN_ID, (first, third))
    assert answer.unreachable == {dead.peer: "refused"}


def test_who_cannot_be_dialled_is_named_and_not_asked() -> None:
    first, hidden = CONTACTS[:2]
    swarm = Swarm({first: status(first, undialable=(hidden.peer, "nonsense", first.peer))})
    answer = swarm.status(first)
    assert swarm.asked == [first]
    assert answer.unreachable == {hidden.peer: "nobody can dial it; it takes part over its own connections"}


def test_a_link_has_at_most_five_peers() -> None:
    answers: dict[LinkPeer, PeerStatus | Exception] = {contact: status(contact) for contact in CONTACTS}
    assert len(Swarm(answers).status(*CONTACTS).link.peers) == 5


def test_when_nobody_answers_there_is_a_line_for_each_address() -> None:
    with pytest.raises(UnreachableError) as caught:
        Swarm({}).status(*CONTACTS[:2])
    assert str(caught.value).splitlines()[1:] == ["  10.0.0.1:4001  refused", "  10.0.0.1:4002  refused"]


def test_peers_that_train_another_run_say_so() -> None:
    with pytest.raises(LinkError, match="another run"):
        Swarm({CONTACTS[0]: LinkError("trains another run")}).status(CONTACTS[0])


def test_what_a_peer_names_is_not_trusted_to_be_a_contact() -> None:
    first = CONTACTS[0]
    answer = Swarm({first: status(first, members=("nonsense", f"{first.peer}@0.0.0.0:0"))}).status(first)
    assert [peer.peer for peer in answer.peers] == [first.peer]


def a_swarm() -> SwarmStatus:
    trainers = [status(CONTACTS[0]), status(CONTACTS[1], versions=(3, 6)), status(CONTACTS[2], loss=math.nan)]
    helper = status(
        CONTACTS[3], role="bootstrap", phase="helping others to meet", tokens_per_second=0.0, validation_loss=math.nan
    )
    peers = tuple(sorted([*trainers, helper], key=lambda one: one.peer))
    unreachable = {CONTACTS[4].peer: "timed out"}
    return SwarmStatus(run_id=RUN_ID, peers=peers, link=JoinLink(RUN_ID, (CONTACTS[0],)), unreachable=unreachable)


def test_helpers_are_not_counted_as_trainers() -> None:
    # BUG-A14
    told = to_json(a_swarm())
    assert (told["alive"], told["others"], told["tokens_per_second"]) == (3, 1, 300.0)


def test_alive_in_the_round_and_merged_are_three_counts() -> None:
    told = to_json(a_swarm())
    assert (told["alive"], told["in_the_round"], told["merged"]) == (3, 3, 2)


def test_staleness_is_counted_from_the_heaviest_head() -> None:
    told = to_json(a_swarm())
    assert [head["version"] for head in told["heads"]] == [5, 6]
    assert {peer["peer"]: peer["staleness"] for peer in told["peers"]}[CONTACTS[1].peer] == 2


def test_json_has_no_number_that_is_none() -> None:
    told = json.loads(json.dumps(to_json(a_swarm()), allow_nan=False))
    assert told["validation_loss"] == 2.5
    assert {peer["loss"] for peer in told["peers"]} == {2.0, None}
    assert told["link"] == str(JoinLink(RUN_ID, (CONTACTS[0],)))


def test_a_table_shows_everybody_and_ends_with_a_link_that_can_be_copied() -> None:
    out = io.StringIO()
    render(a_swarm(), Console(file=out, width=120))
    text = out.getvalue()
    assert "3 trainers alive, 3 in the round, 2 merged; 1 others; 300 tokens/s; validation loss 2.500" in text
    assert all(contact.peer[-6:] in text for contact in CONTACTS[:5])
    assert text.splitlines()[-1] == f"join: {JoinLink(RUN_ID, (CONTACTS[0],))}"


def test_what_peers_say_cannot_drive_the_terminal() -> None:
    nasty = status(CONTACTS[0], phase="\x1b[2Jtraining", run_name="[red]x\x07")
    out = io.StringIO()
    render(
        SwarmStatus(run_id=RUN_ID, peers=(nasty,), link=JoinLink(RUN_ID, (CONTACTS[0],)), unreachable={}),
        Console(file=out, width=120),
    )
    assert "\x1b" not in out.getvalue()
    assert "\x07" not in out.getvalue()
    assert "[red]x" in out.getvalue()
