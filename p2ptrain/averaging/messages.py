"""What members and leaders of a round say to each other."""

from typing import Annotated, ClassVar

from pydantic import Field

from p2ptrain.fragments.chain import MAX_ENVELOPE_BYTES
from p2ptrain.fragments.messages import DigestField, FragmentField, Head
from p2ptrain.wire.messages import Message

Seconds = Annotated[float, Field(ge=0.0, le=1e6, allow_inf_nan=False)]
Reason = Annotated[str, Field(max_length=300)]


class Register(Message):
    """A member to the leader it found: I have adopted this head; call me when the round is due."""

    method: ClassVar[str] = "round.register"
    head: Head
    step_seconds: Seconds


class Registered(Message):
    """The leader's answer. When it refuses because heads differ, `head` is its own, so that both can follow.

    `is_full`: all seats are taken by those who have waited for longer; there is nothing to do before the next head.
    """

    accepted: bool
    head: Head
    reason: Reason
    is_full: bool = False


class CallMember(Message):
    """The leader to a registered member: the round is due, send what you have at your next step boundary."""

    method: ClassVar[str] = "round.call"
    fragment: FragmentField
    head: DigestField


class Called(Message):
    """Whether the member will contribute, and if not, why."""

    joins: bool
    reason: Reason = ""


class Decline(Message):
    """A member that had said it would contribute cannot."""

    method: ClassVar[str] = "round.decline"
    fragment: FragmentField
    head: DigestField
    reason: Reason


class Contribute(Message):
    """A member's signed envelope; the body is its encoded pseudo-gradient."""

    method: ClassVar[str] = "round.contribute"
    fragment: FragmentField
    head: DigestField
    envelope: Annotated[bytes, Field(max_length=MAX_ENVELOPE_BYTES)]


class Hold(Message):
    """Keep this update (the body) and serve it: its commit is signed once somebody besides the leader has it."""

    method: ClassVar[str] = "round.hold"
    fragment: FragmentField
    digest: DigestField
