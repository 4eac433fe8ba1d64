"""What a volunteer sees of his peer: one screen in a terminal, a plain line every few seconds elsewhere.

The view is a sink for events, and draws what `snapshot` returns. It counts three things apart that are easily taken for
one another: who is alive, who is in the round, and whose work the shared model contains. Rounds come several a second,
so they are counted and summed up; what changes the volunteer's situation gets a line.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from p2ptrain.events import Event
from p2ptrain.monitor.snapshot import PeerStatus
from p2ptrain.monitor.wording import amount, dialled, in_plain_words, level, printable

REFRESH_INTERVAL: Final = 0.5  # seconds between two drawings of the screen: a few milliseconds each
LINE_INTERVAL: Final = 5.0  # seconds between two plain lines: a night fits into a log of 1 MB
WORTH_ANNOUNCING: Final = 3  # peers in a link from which on it survives the death of some
NUM_LATEST: Final = 6  # events on the screen
MAX_PARTS_SHOWN: Final = 8  # fragments on the screen; a run may have a thousand


@dataclass
class _SinceLastLine:
    """What happened too often to be told one by one."""

    num_merged: int = 0
    num_left_out: int = 0
    left_out_because: str = ""
    tokens_dropped: int = 0

    def count(self, event: Event) -> None:
        if event.kind == "adopted":
            self.num_merged += bool(event.fields.get("included"))
        elif event.kind == "left-out":
            self.num_left_out += 1
            self.left_out_because = str(event.fields.get("reason", ""))
        elif event.kind == "dropped":
            self.tokens_dropped += int(event.fields.get("tokens", 0))

    def __str__(self) -> str:
        parts = [f"in {self.num_merged} rounds"] if self.num_merged else []
        if self.num_left_out:
            parts.append(f"left out of {self.num_left_out} ({printable(self.left_out_because)})")
        if self.tokens_dropped:
            parts.append(f"{amount(self.tokens_dropped)} tokens too old to merge")
        return ", ".join(parts)


class LiveView:
    """Shows one peer to its user. Subscribe it to the events; `run` draws until it is cancelled or closed."""

    def __init__(self, console: Console, snapshot: Callable[[], PeerStatus]) -> None:
        self._console, self._snapshot = console, snapshot
        self._latest: deque[str] = deque(maxlen=NUM_LATEST)
        self._since = _SinceLastLine()
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._closed = False
        self._num_announced = 0  # peers in the link that was said last

    def __call__(self, event: Event) -> None:
        """Take note of an event; without a terminal, tell it at once if it is worth a line."""
        self._since.count(event)
        words = in_plain_words(event)
        if words is None:
            return
        self._latest.append(f"{clock_time(event.elapsed)}  {words}")
        if self._live is None:
            self._say(words)

    def announce_link(self, link: str, *, only_loopback: bool) -> None:
        """Say, in a line that can be copied, how others join; and that only this machine can if it is so."""
        self._num_announced = link.count("@")
        self._say(f"others join with: p2ptrain join {link}")
        if only_loopback:
            self._say("note: this link works on this machine only; listen on 0.0.0.0 to be found by others")

    async def run(self) -> None:
        """Draw now and then, until it is closed."""
        if self._live is not None:
            self._live.start()
        try:
            while not self._closed:
                await asyncio.sleep(LINE_INTERVAL if self._live is None else REFRESH_INTERVAL)
                self._draw()
        finally:
            self.close()

    def close(self) -> None:
        """Leave the terminal as it was, with the last screen on it; what happens later is told in plain lines."""
        live, self._live, self._closed = self._live, None, True
        if live is not None:
            live.stop()

    def _draw(self) -> None:
        if self._closed:
            return
        status = self._snapshot()
        if status.link.count("@") >= WORTH_ANNOUNCING > self._num_announced:
            self.announce_link(status.link, only_loopback=False)  # once more: this one outlives us
        if self._live is not None:
            self._live.update(screen(status, self._latest), refresh=True)
            return
        happened, self._since = str(self._since), _SinceLastLine()
        self._say(plain_line(status) + (f" · {happened}" if happened else ""))

    def _say(self, words: str) -> None:
        self._console.print(Text(words), soft_wrap=True)


def plain_line(status: PeerStatus) -> str:
    """Return everything that matters in one line."""
    return (
        f"{what_it_does(status)} · {counts(status)} · "
        f"{amount(status.tokens_merged)} of {amount(status.tokens)} tokens merged · validation loss {level(status.validation_loss)}"
        + ("" if status.can_be_dialled is None else f" · {dialled(status.can_be_dialled, status.not_dialled_because)}")
    )


def what_it_does(status: PeerStatus) -> str:
    """Return what this machine is doing now."""
    if status.role != "trainer":
        return printable(status.phase)
    work = f"{amount(status.tokens_per_second)} tokens/s, loss {level(status.loss)}"
    if status.isolated_since is not None:
        return f"cut off from the others, training on alone: {work}"
    return f"{printable(status.phase)}: {work}"


def counts(status: PeerStatus) -> str:
    """Return the three counts that must not be confused."""
    return f"{status.trainers_alive} alive, {status.in_the_round} in the round, {status.merged} merged"


def screen(status: PeerStatus, latest: Iterable[str]) -> RenderableType:
    """Return the whole screen."""
    rows = {
        "now": what_it_does(status),
        "swarm": f"{counts(status)} everywhere",
        "your work": (
            f"{amount(status.tokens)} tokens in {amount(status.inner_steps)} steps, {amount(status.tokens_merged)} of them "
            f"in the shared model; computing {status.utilisation:.0%} of the time"
        ),
        "shared model": f"validation loss {level(status.validation_loss)} at update {status.validation_version} · {_parts(status)}",
        "network": (
            f"{status.num_connections} connections, {amount(status.bytes_sent)}B out, {amount(status.bytes_received)}B in; "
            f"{dialled(status.can_be_dialled, status.not_dialled_because)}"
        ),
        "invite": "the line above; `p2ptrain status LINK` prints a link with who is alive now",
    }
    lines = [Text.assemble((f"{name:<13}", "bold"), printable(text)) for name, text in rows.items()]
    news = [Text(words, style="dim") for words in latest]
    title = Text(f"p2ptrain · {printable(status.run_name)} · {status.peer[-6:]} · Ctrl-C leaves")
    return Panel(Group(*lines, Text(), *news), title=title, title_align="left")


def clock_time(seconds: float) -> str:
    """Return a duration as h:mm:ss."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def _parts(status: PeerStatus) -> str:
    shown: list[Any] = [f"part {head.fragment}: {head.version}" for head in status.heads[:MAX_PARTS_SHOWN]]
    more = len(status.heads) - len(shown)
    return "updates of " + ", ".join(shown) + (f" and {more} more parts" if more > 0 else "")
