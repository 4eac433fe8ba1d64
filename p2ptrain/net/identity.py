"""Who a peer is: an Ed25519 key in a file that only its owner can read.

A missing file is created, once and atomically. A file that is there but cannot be used stops the command and is never
replaced: a peer's id is its history.
"""

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from p2ptrain.errors import IdentityError
from p2ptrain.ids import PeerId, peer_id_from_public_key, public_key_of
from p2ptrain.runtime import Entropy


@dataclass(frozen=True, slots=True)
class Identity:
    """A key pair and the peer id that follows from it."""

    private_key: bytes  # 32 bytes, raw Ed25519 seed

    @classmethod
    def generate(cls, entropy: Entropy) -> "Identity":
        return cls(entropy.bytes(32))

    @property
    def _key(self) -> Ed25519PrivateKey:
        return _loaded(self.private_key)

    @property
    def public_key(self) -> bytes:
        return self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)

    @property
    def peer_id(self) -> PeerId:
        return peer_id_from_public_key(self.public_key)

    def sign(self, domain: str, message: bytes) -> bytes:
        """Return the 64-byte signature of a message under a domain (so that no signature can be used elsewhere)."""
        return self._key.sign(_signed_bytes(domain, message))

    def to_pem(self) -> bytes:
        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    def __repr__(self) -> str:
        return f"Identity({self.peer_id})"


@lru_cache(maxsize=1024)
def _loaded(private_key: bytes) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(private_key)


def _signed_bytes(domain: str, message: bytes) -> bytes:
    return f"p2ptrain {domain}\n".encode() + message


def verify(peer: PeerId, domain: str, message: bytes, signature: bytes) -> bool:
    """Return whether `signature` is the peer's own over the message under the domain."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key_of(peer)).verify(signature, _signed_bytes(domain, message))
    except (InvalidSignature, ValueError):
        return False
    return True


def load_or_create(path: Path, entropy: Entropy) -> Identity:
    """Return the identity in a PEM file, created with mode 0600 when there is no such file.

    Raises IdentityError, and leaves the file as it is, when it is there and unusable.
    """
    try:
        return _parse(path, path.read_bytes())
    except FileNotFoundError:
        pass
    except OSError as error:
        raise IdentityError(f"identity file {path} cannot be read: {error.strerror}") from None
    identity = Identity.generate(entropy)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(identity.to_pem())
            file.flush()
            os.fsync(file.fileno())
        os.link(partial, path)  # unlike rename, fails when another process was first
    except FileExistsError:
        return load_or_create(path, entropy)
    except OSError as error:
        raise IdentityError(f"identity file {path} cannot be created: {error.strerror}") from None
    finally:
        partial.unlink(missing_ok=True)
    return identity


def _parse(path: Path, pem: bytes) -> Identity:
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError):
        raise IdentityError(
            f"identity file {path} is not an unencrypted PEM private key; it was left as it is"
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise IdentityError(f"identity file {path} holds another kind of key; an Ed25519 key is needed")
    return Identity(key.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption()))
