"""What a volunteer sees."""

import asyncio
import contextlib
import io
import math
from typing import Any

from rich.console import Console

from p2ptrain.events import Event
from p2ptrain.monitor.snapshot import HeadStatus, PeerStatus
from p2ptrain.monitor.view import LiveView, plain_line, screen, what_it_does
from p2ptrain.sim import loop as virtual

LINK = "p2ptrain://" + "x" * 300


def status(**changes: Any) -> PeerStatus:
    fields: dict[str, Any] = {
        "peer": "12D3KooWabcdef", "run": "RUN", "run_name": "pycode", "role": "trainer", "phase": "training", "link": LINK,
        "trainers_alive": 5, "in_the_round": 4, "merged": 3, "inner_steps": 100, "tokens": 102_400, "tokens_merged": 90_000,
        "heads": tuple(
            HeadStatus(fragment=index, version=7 + index, digest="ab", total_work=9, contributors=3) for index in range(4)
        ),
        "tokens_per_second": 4210.0, "loss": 2.3123, "learning_rate": 0.006, "utilisation": 0.93, "validation_loss": 2.4,
        "validation_version": 7, "isolated_since": None, "num_connections": 8, "bytes_sent": 1_000_000, "bytes_received": 2_000_000,
    }  # fmt: skip
    return PeerStatus(**{**fields, **changes})


def event(kind: str, **fields: Any) -> Event:
    return Event(kind, 0.0, 65.0, fields)


def shown(*, seconds: float, events: list[Event], terminal: bool = False) -> str:
    """Return what a view prints in some seconds of virtual time, with these events at the beginning."""
    out = io.StringIO()

    async def watch() -> None:
        view = LiveView(Console(file=out, force_terminal=terminal, width=100, height=30), status)
        for one in events:
            view(one)
        try:
            async with asyncio.timeout(seconds):
                await view.run()
        except TimeoutError:
            view(event("left", seconds=0.5))

    virtual.run(watch())
    return out.getvalue()


def test_without_a_terminal_there_is_a_plain_line_every_five_seconds() -> None:
    lines = shown(seconds=16, events=[]).splitlines()
    assert (
        lines[:-1]
        == [
            "training: 4.21k tokens/s, loss 2.312 · 5 alive, 4 in the round, 3 merged · 90k of 102k tokens merged · validation loss 2.400"
        ]
        * 3
    )
    assert lines[-1] == "said goodbye and left (0.5 s)"


def test_alive_in_the_round_and_merged_are_told_apart() -> None:
    assert "5 alive, 4 in the round, 3 merged" in plain_line(status())


def test_a_volunteer_sees_whether_others_can_dial_him_and_why_not() -> None:
    assert plain_line(status(can_be_dialled=True)).endswith(" · can be dialled: yes")
    behind = status(can_be_dialled=False, not_dialled_because="10.0.0.2:4001: timed out")
    assert plain_line(behind).endswith(" · can be dialled: no (10.0.0.2:4001: timed out)")
    out = io.StringIO()
    Console(file=out, width=200).print(screen(behind, []))
    assert "can be dialled: no (10.0.0.2:4001: timed out)" in out.getvalue()


def test_a_notable_event_gets_a_line_at_once() -> None:
    assert shown(seconds=1, events=[event("joined", seconds=2.0)]).splitlines()[0] == "joined the swarm after 2.0 s"


def test_what_happens_often_is_summed_up_in_the_next_line() -> None:
    events = [event("left-out", reason="the round closed without us")] * 40 + [event("adopted", included=True)] * 7
    lines = shown(seconds=11, events=events).splitlines()
    assert len(lines) == 3
    assert lines[0].endswith(" · in 7 rounds, left out of 40 (the round closed without us)")
    assert "left out" not in lines[1]


def test_a_terminal_shows_one_screen_and_the_latest_events() -> None:
    text = shown(seconds=2, events=[event("joined", seconds=2.0)], terminal=True)
    assert "p2ptrain · pycode · abcdef" in text
    assert "0:01:05  joined the swarm after 2.0 s" in text
    assert "5 alive, 4 in the round, 3 merged" in text
    assert "part 0: 7, part 1: 8" in text


def test_a_link_that_names_enough_peers_to_outlive_some_is_said_once_more_in_a_line_to_copy() -> None:
    out = io.StringIO()
    longer = "p2ptrain://run/" + ",".join(f"{'x' * 50}@10.0.0.{number}:4001" for number in range(3))

    async def watch() -> None:
        view = LiveView(Console(file=out, width=80), lambda: status(link=longer))
        view.announce_link("p2ptrain://run/x@10.0.0.1:4001", only_loopback=False)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(20.0):
                await view.run()

    virtual.run(watch())
    assert out.getvalue().splitlines().count(f"others join with: p2ptrain join {longer}") == 1


def test_a_run_of_many_fragments_fits_the_screen() -> None:
    heads = tuple(
        HeadStatus(fragment=index, version=1, digest="ab", total_work=9, contributors=3) for index in range(1000)
    )
    out = io.StringIO()
    Console(file=out, width=100).print(screen(status(heads=heads), []))
    assert "and 992 more parts" in out.getvalue()
    assert len(out.getvalue().splitlines()) < 24


def test_a_peer_that_is_alone_says_so() -> None:
    # BUG-D01
    assert what_it_does(status(isolated_since=12.0, phase="isolated")).startswith(
        "cut off from the others, training on alone"
    )


def test_a_helper_does_not_pretend_to_train() -> None:
    assert (
        what_it_does(status(role="bootstrap", phase="helping others to meet", loss=math.nan))
        == "helping others to meet"
    )


def test_a_link_that_works_on_this_machine_only_is_announced_as_such() -> None:
    out = io.StringIO()
    view = LiveView(Console(file=out, width=80), status)
    view.announce_link(LINK, only_loopback=True)
    first, second = out.getvalue().splitlines()
    assert first == f"others join with: p2ptrain join {LINK}"
    assert "this machine only" in second
