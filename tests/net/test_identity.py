"""The identity file: created once, for its owner only, and never replaced."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from p2ptrain.errors import IdentityError
from p2ptrain.net.identity import Identity, load_or_create, verify
from p2ptrain.real.entropy import SystemEntropy


def test_it_is_created_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "identity.pem"
    identity = load_or_create(path, SystemEntropy())
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_or_create(path, SystemEntropy()) == identity
    assert [entry.name for entry in path.parent.iterdir()] == ["identity.pem"]


def test_processes_that_create_it_at_the_same_moment_agree(tmp_path: Path) -> None:
    code = "import sys, pathlib; from p2ptrain.net.identity import load_or_create; "
    code += "from p2ptrain.real.entropy import SystemEntropy; "
    code += "print(load_or_create(pathlib.Path(sys.argv[1]), SystemEntropy()).peer_id)"
    command = [sys.executable, "-c", code, str(tmp_path / "identity.pem")]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(6)]
    said = {process.communicate(timeout=60)[0] for process in processes}
    assert len(said) == 1 and said.pop().startswith("12D3KooW")


@pytest.mark.parametrize("content", [b"", b"\xff\x00", b"-----BEGIN PRIVATE KEY-----\nno\n-----END PRIVATE KEY-----\n"])
def test_what_is_there_and_cannot_be_used_is_left_as_it_is(tmp_path: Path, content: bytes) -> None:  # BUG-L02
    path = tmp_path / "identity.pem"
    path.write_bytes(content)
    with pytest.raises(IdentityError, match=str(path)):
        load_or_create(path, SystemEntropy())
    assert path.read_bytes() == content


def test_another_kind_of_key_and_a_folder_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rsa.pem"
    path.write_bytes(generate_private_key(65537, 2048).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(IdentityError, match="an Ed25519 key is needed"):
        load_or_create(path, SystemEntropy())
    with pytest.raises(IdentityError, match="cannot be read"):
        load_or_create(tmp_path, SystemEntropy())


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write everywhere")
def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(IdentityError, match="cannot be created"):
        load_or_create(tmp_path / "identity.pem", SystemEntropy())


def test_a_signature_counts_for_its_peer_its_domain_and_its_message_only() -> None:
    one, other = Identity(b"\1" * 32), Identity(b"\2" * 32)
    signature = one.sign("commit", b"message")
    assert verify(one.peer_id, "commit", b"message", signature)
    assert not verify(other.peer_id, "commit", b"message", signature)
    assert not verify(one.peer_id, "envelope", b"message", signature)
    assert not verify(one.peer_id, "commit", b"another", signature)
    assert not verify(one.peer_id, "commit", b"message", b"short")
