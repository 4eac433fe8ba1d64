"""What peers say to each other about who takes part.

Records travel as the bytes that their peers signed (records.py); summaries are view.py's. Kademlia's calls wrap the
protobuf messages that hivemind speaks, but found values travel beside them as plain, checked fields.
"""

from typing import Annotated, ClassVar, Final

from pydantic import Field

from p2ptrain.discovery.records import MAX_ADDRESSES, MAX_MEMBER_BYTES
from p2ptrain.discovery.view import MAX_SUMMARY_BYTES, TAG_BYTES
from p2ptrain.link import MAX_HOST_CHARACTERS
from p2ptrain.wire.messages import Message

MAX_RECORDS: Final = 32  # in one message: about 8 kB, and 5 ms to check their signatures
MAX_VALUES: Final = 64  # under one key of the DHT
MAX_KADEMLIA_BYTES: Final = 40 * 1024  # MAX_RECORDS stores of the largest value
SUBKEY_BYTES: Final = 32  # a public key

Record = Annotated[bytes, Field(max_length=MAX_MEMBER_BYTES)]
Records = Annotated[tuple[Record, ...], Field(max_length=MAX_RECORDS)]
Subkey = Annotated[bytes, Field(min_length=SUBKEY_BYTES, max_length=SUBKEY_BYTES)]
Dialable = tuple[Annotated[str, Field(max_length=MAX_HOST_CHARACTERS)], Annotated[int, Field(ge=1, le=65535)]]
Outcome = Annotated[str, Field(pattern="^[a-z0-9 ]{1,60}$")]  # few words that no terminal minds
Tag = Annotated[bytes, Field(min_length=TAG_BYTES, max_length=TAG_BYTES)]


class Compare(Message):
    """What the caller knows, itself included, a few bytes each."""

    method: ClassVar[str] = "members.compare"
    summary: Annotated[bytes, Field(max_length=MAX_SUMMARY_BYTES)]


class Compared(Message):
    """Records that the caller lacks, and the tags of those that the answerer lacks."""

    records: Records
    wanted: Annotated[tuple[Tag, ...], Field(max_length=MAX_RECORDS)]


class Tell(Message):
    """Records that the caller thinks are news."""

    method: ClassVar[str] = "members.tell"
    records: Records


class Told(Message):
    """They arrived."""


class DialBack(Message):
    """Dial me at these addresses, on fresh connections; my record announces them."""

    method: ClassVar[str] = "members.dial-back"
    record: Record
    addresses: Annotated[tuple[Dialable, ...], Field(min_length=1, max_length=MAX_ADDRESSES)]


class DialledBack(Message):
    """How it went, address by address: "reached", or why not, in a few words."""

    outcomes: Annotated[tuple[Outcome, ...], Field(min_length=1, max_length=MAX_ADDRESSES)]


class KademliaCall(Message):
    """One of hivemind's calls: which, and its request."""

    method: ClassVar[str] = "kademlia.call"
    rpc: Annotated[str, Field(max_length=32)]
    payload: Annotated[bytes, Field(max_length=MAX_KADEMLIA_BYTES)]


class KademliaAnswer(Message):
    """The response; the values in it as (index of the key, subkey, value, expiry); records of the peers it names."""

    payload: Annotated[bytes, Field(max_length=MAX_KADEMLIA_BYTES)]
    found: Annotated[tuple[tuple[int, Subkey, Record, float], ...], Field(max_length=MAX_VALUES)] = ()
    records: Records = ()
