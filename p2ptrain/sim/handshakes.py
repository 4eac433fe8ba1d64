"""TLS 1.3 as far as peers notice it: a round trip, some CPU time, and keys that are proved.

No cipher is computed. Whoever claims a public key must show a proof that only the network can make, and the network
makes it only for who holds the private key; that is checked with Ed25519 once for each key. So a peer that claims a key
of somebody else is turned away here as it is by real TLS, and a handshake costs microseconds of CPU.
"""

import asyncio
from hashlib import blake2b
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from p2ptrain.errors import IncompatibleError, NetworkError
from p2ptrain.runtime import Signer
from p2ptrain.sim.streams import SimStream

SECURE_TIMEOUT: Final = 5.0  # s, as in the real network
CPU_SECONDS: Final = 0.001  # of each end: keys, a signature, a chain to check
_CLIENT_HELLO: Final = b"sim TLS 1.3 hi! "
_SERVER_HELLO: Final = b"sim TLS 1.3 yes "
_KEY_BYTES: Final = 32
_PROOF_BYTES: Final = 32


class Keys:
    """Proofs of the keys of one network."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._public_keys: dict[bytes, bytes] = {}  # by private key
        self._num_challenges = 0

    def challenge(self) -> bytes:
        """Return bytes that were never used before."""
        self._num_challenges += 1
        return self._num_challenges.to_bytes(16, "little")

    def prove(self, signer: Signer, challenge: bytes) -> bytes:
        """Return the proof that a signer holds its private key; a worthless one when it does not."""
        private_key = signer.private_key
        if private_key not in self._public_keys:
            key = Ed25519PrivateKey.from_private_bytes(private_key).public_key()
            self._public_keys[private_key] = key.public_bytes(Encoding.Raw, PublicFormat.Raw)
        if self._public_keys[private_key] != signer.public_key:
            return bytes(_PROOF_BYTES)
        return self._proof(signer.public_key, challenge)

    def is_proved(self, public_key: bytes, challenge: bytes, proof: bytes) -> bool:
        return proof == self._proof(public_key, challenge)

    def _proof(self, public_key: bytes, challenge: bytes) -> bytes:
        return blake2b(
            public_key + challenge, key=self._secret, digest_size=_PROOF_BYTES, person=b"sim TLS proof"
        ).digest()


async def secure(keys: Keys, stream: SimStream, signer: Signer, *, server: bool) -> SimStream:
    """Prove our key and learn the other end's; NetworkError, or IncompatibleError when it speaks something else."""
    try:
        async with asyncio.timeout(SECURE_TIMEOUT):
            handshake = _serve if server else _dial
            stream.remote_public_key = await handshake(keys, stream, signer)
    except TimeoutError:
        stream.abort()
        raise NetworkError(f"no TLS answer within {SECURE_TIMEOUT:g} s") from None
    except (NetworkError, IncompatibleError, asyncio.CancelledError):
        stream.abort()
        raise
    return stream


async def _dial(keys: Keys, stream: SimStream, signer: Signer) -> bytes:
    challenge = keys.challenge()
    await stream.write(_CLIENT_HELLO + challenge)
    answer = await _read(stream, len(_SERVER_HELLO) + _KEY_BYTES + _PROOF_BYTES, _SERVER_HELLO)
    remote_public_key, proof = answer[:_KEY_BYTES], answer[_KEY_BYTES:]
    _check(keys, remote_public_key, b"server" + challenge, proof)
    await asyncio.sleep(CPU_SECONDS)
    await stream.write(signer.public_key + keys.prove(signer, b"client" + challenge))
    return remote_public_key


async def _serve(keys: Keys, stream: SimStream, signer: Signer) -> bytes:
    challenge = await _read(stream, len(_CLIENT_HELLO) + 16, _CLIENT_HELLO)
    await asyncio.sleep(CPU_SECONDS)
    await stream.write(_SERVER_HELLO + signer.public_key + keys.prove(signer, b"server" + challenge))
    answer = await _read(stream, _KEY_BYTES + _PROOF_BYTES)
    remote_public_key, proof = answer[:_KEY_BYTES], answer[_KEY_BYTES:]
    _check(keys, remote_public_key, b"client" + challenge, proof)
    return remote_public_key


async def _read(stream: SimStream, count: int, greeting: bytes = b"") -> bytes:
    """Return the next bytes, without the greeting that they must begin with."""
    message = bytearray(count)
    await stream.read_into(memoryview(message)[: len(greeting)])
    if not message.startswith(greeting):
        raise IncompatibleError("does not speak TLS 1.3")
    await stream.read_into(memoryview(message)[len(greeting) :])
    return bytes(message[len(greeting) :])


def _check(keys: Keys, public_key: bytes, challenge: bytes, proof: bytes) -> None:
    if not keys.is_proved(public_key, challenge, proof):
        raise IncompatibleError("does not hold the key that it claims")
