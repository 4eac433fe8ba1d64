"""Join links: what one says, and the sentence for each way to break one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.errors import LinkError
from p2ptrain.ids import RunId, digest, peer_id_from_public_key
from p2ptrain.link import MAX_LINK_PEERS, JoinLink, LinkPeer, check_dialable
from p2ptrain.runtime import Address

RUN_ID = RunId(digest("test", b"run"))
PEERS = [peer_id_from_public_key(bytes([number]) * 32) for number in range(8)]
RUN = str(JoinLink(RUN_ID, ())).removeprefix("p2ptrain://").rstrip("/")


def test_a_link_survives_copying() -> None:
    peers = (LinkPeer(PEERS[0], Address("203.0.113.7", 4001)), LinkPeer(PEERS[1], Address("2001:db8::1", 4002)))
    text = str(JoinLink(RUN_ID, peers))
    assert text == f"p2ptrain://{RUN}/{PEERS[0]}@203.0.113.7:4001,{PEERS[1]}@[2001:db8::1]:4002"
    assert JoinLink.parse(f"  {text}\n") == JoinLink(RUN_ID, peers)


def test_a_link_names_each_address_once_and_at_most_five() -> None:
    peers = [LinkPeer(peer, Address("localhost", 4001)) for peer in PEERS]
    assert JoinLink.of(RUN_ID, [peers[0], *peers]).peers == tuple(peers[:MAX_LINK_PEERS])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "begins with p2ptrain://"),
        ("http://example.org", "begins with p2ptrain://"),
        ("p2ptrain://", "names no peer"),
        (f"p2ptrain://{RUN}", "names no peer"),
        (f"p2ptrain://{RUN}/", "names no peer"),
        (f"p2ptrain://0OIl/{PEERS[0]}@h:1", "run id"),
        (f"p2ptrain://{RUN}/h:1", "PEER_ID@host:port"),
        (f"p2ptrain://{RUN}/{PEERS[0]}@h:1,", "PEER_ID@host:port"),
        (f"p2ptrain://{RUN}/{PEERS[0][:-1]}@h:1", "id of an Ed25519 key"),
        (f"p2ptrain://{RUN}/0OIl@h:1", "base58"),
        (f"p2ptrain://{RUN}/{PEERS[0]}@h", "HOST:PORT"),
        (f"p2ptrain://{RUN}/{PEERS[0]}@::1:4001", "brackets"),
        (f"p2ptrain://{RUN}/{PEERS[0]}@[::1:4001", "brackets"),
        (f"p2ptrain://{RUN}/{PEERS[0]}@h:0", "1 to 65535"),
        (f"p2ptrain://{RUN}/{PEERS[0]}@h:65536", "65535"),
        (f"p2ptrain://{RUN}/{PEERS[0]}@0.0.0.0:4001", "not where it can be dialled"),
        (f"p2ptrain://{RUN}/{PEERS[0]}@256.1.1.1:4001", "not an IP address"),
        (f"p2ptrain://{RUN}/" + ",".join(f"{peer}@h:1" for peer in PEERS[:6]), "at most 5 peers"),
        (f"p2ptrain://{RUN}/{PEERS[0]}@{'a' * 3000}:1", "at most 2048 characters"),
    ],
)
def test_a_broken_link_says_what_is_wrong_in_one_line(text: str, reason: str) -> None:
    with pytest.raises(LinkError) as caught:
        JoinLink.parse(text)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.text() | st.text().map(lambda tail: f"p2ptrain://{RUN}/{PEERS[0]}@{tail}"))
def test_no_text_breaks_the_parser(text: str) -> None:
    try:
        link = JoinLink.parse(text)
    except LinkError as error:
        assert "\n" not in str(error)
    else:
        assert JoinLink.parse(str(link)) == link


# BUG-D17
@pytest.mark.parametrize(
    "host", ["", "a" * 300, "256.1.1.1", "[::1", "name with space", "-a.org", "a..b", "::", "fe80::1%,"]
)
def test_a_host_that_cannot_be_dialled_is_refused(host: str) -> None:
    with pytest.raises(ValueError):
        check_dialable(Address(host, 4001))


# BUG-D17
@pytest.mark.parametrize("port", [0, -1, 65536, "80", 1e9, None, True])
def test_a_port_that_cannot_be_dialled_is_refused(port: object) -> None:
    with pytest.raises(ValueError):
        check_dialable(Address("203.0.113.7", port))  # type: ignore[arg-type]
