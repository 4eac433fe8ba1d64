"""What a peer shows of itself at one moment: for its own terminal, and for whoever asks its status."""

from typing import Annotated

from pydantic import Field

from p2ptrain.wire.messages import Message

MAX_MEMBERS_NAMED = 128  # as many as a partial view has; about 10 kB

Text = Annotated[str, Field(max_length=2000)]
Amount = Annotated[int, Field(ge=0)]
Level = Annotated[float, Field(allow_inf_nan=True)]


class HeadStatus(Message):
    """The adopted head of one fragment."""

    fragment: Amount
    version: Amount
    digest: Text  # hex
    total_work: Amount
    contributors: Amount


class PeerStatus(Message):
    """One peer as it sees itself and the swarm. Losses are NaN until there are any."""

    peer: Text
    run: Text
    run_name: Text
    role: Text  # "trainer" or "bootstrap"
    phase: Text  # what it is doing, in a few words: "training", "draining", "syncing", "isolated"
    link: Text  # a join link with this peer and others that are alive now
    trainers_alive: Amount  # live trainers in its view, itself included
    in_the_round: (
        Amount  # members of the rounds that it knows of: contributors to the latest commit of any fragment, most of all
    )
    merged: Amount  # contributors of the latest commit, fewest of all fragments
    heads: tuple[HeadStatus, ...]
    inner_steps: Amount
    tokens: Amount
    tokens_merged: Amount
    tokens_per_second: Level
    loss: Level
    learning_rate: Level
    utilisation: Level
    validation_loss: Level
    validation_version: Amount
    isolated_since: Annotated[float, Field(ge=0.0)] | None
    num_connections: Amount
    bytes_sent: Amount
    bytes_received: Amount
    members: Annotated[
        tuple[Text, ...], Field(max_length=MAX_MEMBERS_NAMED)
    ] = ()  # PEER_ID@host:port of others alive in its view
    undialable: Annotated[
        tuple[Text, ...], Field(max_length=MAX_MEMBERS_NAMED)
    ] = ()  # PEER_ID of others alive in its view that nobody can dial
    can_be_dialled: bool | None = None  # None: not known yet
    not_dialled_because: Text = ""
