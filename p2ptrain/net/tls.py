"""TLS 1.3 in which both ends prove an Ed25519 key and nothing else.

Python's `ssl` has no verify callback: a certificate is either signed by a known authority or refused. So all of
p2ptrain shares one authority whose private key is public (it follows from a fixed text), and every peer signs its own
leaf with it. A valid chain therefore proves nothing about who somebody is. What counts is that TLS made the other end
prove that it holds the leaf's key, and the peer id is that key.

Certificates are a pure function of the key, and valid from 2000 to 2099, since peers' clocks are wrong.
"""

import ssl
import tempfile
from datetime import datetime
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID

from p2ptrain.errors import IncompatibleError

NOT_BEFORE: Final = datetime(2000, 1, 1)
NOT_AFTER: Final = datetime(2099, 12, 31)
AUTHORITY_KEY: Final = Ed25519PrivateKey.from_private_bytes(sha256(b"p2ptrain-ca:1").digest())
AUTHORITY_NAME: Final = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "p2ptrain")])


@lru_cache(maxsize=64)
def contexts(private_key: bytes) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the dialling and the listening context of the holder of a raw 32-byte Ed25519 key."""
    key = Ed25519PrivateKey.from_private_bytes(private_key)
    pem = _leaf(key).public_bytes(Encoding.PEM) + key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with tempfile.TemporaryDirectory() as directory:  # mode 0700; `ssl` takes a key only from a file
        path = Path(directory) / "leaf.pem"
        path.write_bytes(pem)
        return _context(ssl.PROTOCOL_TLS_CLIENT, path), _context(ssl.PROTOCOL_TLS_SERVER, path)


def key_in(certificate: bytes | None) -> bytes:
    """Return the raw public key in the DER certificate that the other end showed."""
    try:
        key = x509.load_der_x509_certificate(certificate or b"").public_key()
    except (ValueError, UnsupportedAlgorithm):  # this parser is stricter than the one inside `ssl`
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise IncompatibleError("its TLS certificate holds no Ed25519 key")
    return key.public_bytes(Encoding.Raw, PublicFormat.Raw)


def _context(protocol: int, leaf: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.check_hostname = False  # a key is proven, not a name
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # a resumed session would not prove the key again
    context.load_verify_locations(cadata=_authority().public_bytes(Encoding.DER))
    context.load_cert_chain(leaf)
    return context


@lru_cache(maxsize=1)
def _authority() -> x509.Certificate:
    return (
        _certificate(AUTHORITY_NAME, AUTHORITY_KEY.public_key(), serial_number=1)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(AUTHORITY_KEY, None)
    )


def _leaf(key: Ed25519PrivateKey) -> x509.Certificate:
    public_key = key.public_key()
    serial_number = int.from_bytes(sha256(public_key.public_bytes(Encoding.Raw, PublicFormat.Raw)).digest()[:16]) >> 1
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "p2ptrain peer")])
    return (
        _certificate(name, public_key, serial_number=max(serial_number, 2))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(AUTHORITY_KEY, None)
    )


def _certificate(name: x509.Name, key: Ed25519PublicKey, *, serial_number: int) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(AUTHORITY_NAME)
        .public_key(key)
        .serial_number(serial_number)
        .not_valid_before(NOT_BEFORE)
        .not_valid_after(NOT_AFTER)
    )
