"""What peers say to each other about who takes part.

Records travel as the bytes that their peers signed (records.py); summaries are view.py's.
"""

from typing import Annotated, ClassVar, Final

from pydantic import Field

from p2ptrain.discovery.records import MAX_MEMBER_BYTES
from p2ptrain.discovery.view import MAX_MEMBERS, MAX_SUMMARY_BYTES, TAG_BYTES
from p2ptrain.wire.messages import Message

MAX_RECORDS: Final = 32  # in one message: about 8 kB, and 5 ms to check their signatures

Record = Annotated[bytes, Field(max_length=MAX_MEMBER_BYTES)]
Records = Annotated[tuple[Record, ...], Field(max_length=MAX_RECORDS)]
Tag = Annotated[bytes, Field(min_length=TAG_BYTES, max_length=TAG_BYTES)]


class Compare(Message):
    """The caller's record, and a summary of its view."""

    method: ClassVar[str] = "members.compare"
    own: Record
    summary: Annotated[bytes, Field(max_length=MAX_SUMMARY_BYTES)]


class Compared(Message):
    """The answerer's record, records that the caller lacks, and the tags of those that the answerer lacks."""

    own: Record
    records: Records
    wanted: Annotated[tuple[Tag, ...], Field(max_length=MAX_MEMBERS)]


class Tell(Message):
    """Records that the caller thinks are news."""

    method: ClassVar[str] = "members.tell"
    records: Records


class Told(Message):
    """They arrived."""
