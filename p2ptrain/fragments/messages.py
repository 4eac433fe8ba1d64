"""What peers say to each other about chains."""

from typing import Annotated, ClassVar

from pydantic import Field

from p2ptrain.wire.messages import Message

DigestField = Annotated[bytes, Field(min_length=32, max_length=32)]
FragmentField = Annotated[int, Field(ge=0, lt=1 << 16)]
MAX_INLINE_COMMIT_BYTES = 48 * 1024  # more than 100 members; a larger commit is fetched as a body


class Head(Message):
    """A peer's adopted head of one fragment, in about 60 bytes."""

    fragment: FragmentField
    digest: DigestField
    total_work: Annotated[int, Field(ge=0, lt=2**62)]


class ExchangeHeads(Message):
    """Tell a peer our heads and hear its own: what gossip missed is found this way."""

    method: ClassVar[str] = "chain.heads"
    heads: Annotated[tuple[Head, ...], Field(max_length=1024)]


class Heads(Message):
    heads: Annotated[tuple[Head, ...], Field(max_length=1024)]


class Announce(Message):
    """We have adopted this head and serve what it needs. `commit` holds its bytes when they are few."""

    method: ClassVar[str] = "chain.announce"
    head: Head
    commit: Annotated[bytes, Field(max_length=MAX_INLINE_COMMIT_BYTES)] = b""


class Done(Message):
    """The call was heard; there is nothing to answer."""


class GetCommits(Message):
    """Send the commits that lead to `digest`, oldest first, from after the newest one that we know."""

    method: ClassVar[str] = "chain.commits"
    fragment: FragmentField
    digest: DigestField
    known: Annotated[tuple[DigestField, ...], Field(max_length=64)]
    most: Annotated[int, Field(ge=1, le=1024)] = 1024
    """How many of them, the newest ones."""


class Commits(Message):
    """The body holds the commits one after the other; `sizes` are their lengths in bytes."""

    sizes: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(max_length=1024)]


class GetUpdate(Message):
    """Send the update with this digest as the body."""

    method: ClassVar[str] = "chain.update"
    fragment: FragmentField
    digest: DigestField
    fetch: bool = True
    """Whether to get it from others first when it is not at hand: we may not reach those who have it."""


class GetSnapshot(Message):
    """Send your head's commit and state; newcomers and who fell far behind ask for it."""

    method: ClassVar[str] = "chain.snapshot"
    fragment: FragmentField


class Snapshot(Message):
    """The body holds the commit, then the state."""

    commit_bytes: Annotated[int, Field(ge=1)]
