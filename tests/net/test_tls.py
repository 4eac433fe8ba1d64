"""Certificates: the same authority everywhere, one leaf per key, valid whatever the clock says."""

import ssl

import pytest

from p2ptrain.errors import IncompatibleError
from p2ptrain.net.identity import Identity
from p2ptrain.net.tls import contexts, key_in
from p2ptrain.real.entropy import SystemEntropy


def handshake(client: ssl.SSLContext, server: ssl.SSLContext) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Run a TLS handshake in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True))
    for end in [*ends, *ends]:
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
    return ends


def test_each_end_proves_its_key():
    one, other = (Identity.generate(SystemEntropy(seed=seed)) for seed in (1, 2))
    client, server = handshake(contexts(one.private_key)[0], contexts(other.private_key)[1])
    assert client.version() == server.version() == "TLSv1.3"
    assert key_in(client.getpeercert(binary_form=True)) == other.public_key
    assert key_in(server.getpeercert(binary_form=True)) == one.public_key


def test_a_dialler_without_a_certificate_is_refused():
    nobody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    nobody.check_hostname, nobody.verify_mode = False, ssl.CERT_NONE
    with pytest.raises(ssl.SSLError):
        handshake(nobody, contexts(Identity.generate(SystemEntropy(seed=1)).private_key)[1])


def test_something_that_is_no_certificate_of_ours_is_incompatible():
    for certificate in (None, b"", b"not DER"):
        with pytest.raises(IncompatibleError, match="no Ed25519 key"):
            key_in(certificate)
