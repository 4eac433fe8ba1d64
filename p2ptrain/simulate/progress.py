"""What a simulation shows while it runs: one table in a terminal, a plain line every few seconds elsewhere."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from types import TracebackType
from typing import Final, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from p2ptrain.ids import short
from p2ptrain.monitor.view import clock_time
from p2ptrain.monitor.wording import amount, level
from p2ptrain.runtime import Clock
from p2ptrain.simulate.judge import Summary
from p2ptrain.simulate.lives import Life

REFRESH_INTERVAL: Final = 0.5  # seconds between two drawings of the table
LINE_INTERVAL: Final = 5.0  # seconds between two plain lines
MAX_SIZES_SHOWN: Final = 12  # of rounds, in the verdict


class SimulationView:
    """Shows the lives of a simulation. `update` may be called as often as one likes."""

    def __init__(self, console: Console, clock: Clock) -> None:
        self._console, self._clock = console, clock
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._next_at = clock.monotonic()

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, words: str) -> None:
        """Tell something that happened, in a line that stays."""
        self._console.print(Text(words), soft_wrap=True)

    def update(self, lives: Sequence[Life], seconds: float) -> None:
        """Show where the swarm stands after so many seconds of training, if it is time to."""
        now = self._clock.monotonic()
        if now < self._next_at:
            return
        self._next_at = now + (LINE_INTERVAL if self._live is None else REFRESH_INTERVAL)
        if self._live is None:
            self.say(plain_line(lives, seconds))
        else:
            self._live.update(table(lives, seconds), refresh=True)


def plain_line(lives: Sequence[Life], seconds: float) -> str:
    """Return where the swarm stands in one line."""
    up = [life for life in lives if life.is_up]
    commits = {event.fields["commit"] for life in lives for event in life.all("adopted")}
    trained, merged = (sum(life.latest("progress", name, 0) for life in lives) for name in ("tokens", "tokens_merged"))
    losses = [loss for life in up if math.isfinite(loss := life.latest("progress", "loss", math.nan))]
    return (
        f"{clock_time(seconds)} · {len(up)} alive · {amount(trained)} tokens trained, {amount(merged)} merged in "
        f"{len(commits)} commits · loss {level(fmean(losses) if losses else math.nan)}"
    )


def table(lives: Sequence[Life], seconds: float) -> RenderableType:
    """Return the line, and a row for each peer's latest life."""
    rows = Table(box=None, pad_edge=False)
    for name in ("peer", "", "doing"):
        rows.add_column(name)
    for name in ("tokens/s", "loss", "steps", "tokens", "merged"):
        rows.add_column(name, justify="right")
    latest = {life.number: life for life in lives}
    for number, life in sorted(latest.items()):
        progress = {
            name: life.latest("progress", name, 0)
            for name in ("tokens_per_second", "inner_steps", "tokens", "tokens_merged")
        }
        rows.add_row(
            str(number), short(life.peer), doing(life), amount(progress["tokens_per_second"] if life.is_up else 0),
            level(life.latest("progress", "loss", math.nan)), amount(progress["inner_steps"]), amount(progress["tokens"]),
            amount(progress["tokens_merged"]),
        )  # fmt: skip
    return Group(Text(plain_line(lives, seconds)), rows)


def doing(life: Life) -> str:
    """Return what a peer does, in a word or two."""
    if not life.is_running:
        return life.end.value
    if not life.is_up:
        return "starting"
    if life.first("draining") is not None:
        return "draining"
    if life.trained_from is None:
        return "up"
    return "leads a round" if life.open_rounds else "training"


def verdict(summary: Summary) -> list[str]:
    """Return the summary in a few lines."""
    dropped = ", ".join(f"{amount(tokens)} {reason}" for reason, tokens in summary["tokens_dropped"].items()) or "none"
    losses = [
        level(math.nan if loss is None else loss)
        for loss in (summary["validation_loss_first"], summary["validation_loss_last"])
    ]
    participation = f"{summary['participation']:.0%}"
    if summary["participation_of_limit"] > summary["participation"]:
        participation += f" ({summary['participation_of_limit']:.0%} of what a leader takes)"
    agreement = (
        f"all {summary['num_reports']} peers ended with the same anchors ({summary['anchors_compared']} compared)"
    )
    return [
        f"{amount(summary['tokens_trained'])} tokens trained in {summary['seconds']:.0f} s: {amount(summary['tokens_merged'])} merged, "
        f"{amount(summary['tokens_pending'])} pending, dropped: {dropped}",
        f"{summary['rounds_committed']} rounds with so many contributors: {sizes(summary['contributors_per_round'])}; "
        f"{summary['rounds_aborted']} given up, {summary['forks']} forks, {summary['reorgs']} reorganisations",
        f"utilisation {summary['utilisation']:.0%}, participation {participation}, goodput {summary['goodput']:.0%}",
        f"validation loss {losses[0]} (genesis) to {losses[1]} (anchors)",
        *(
            [agreement]
            if summary["anchors_agree"]
            else [f"NOT AGREED: {reason}" for reason in summary["disagreements"]]
        ),
    ]


def sizes(rounds: Mapping[str, int]) -> str:
    """Return how many rounds had how many contributors; of many sizes, the smallest, the median and the largest."""
    if len(rounds) <= MAX_SIZES_SHOWN:
        return ", ".join(f"{number}: {count}" for number, count in rounds.items()) or "none"
    every = sorted(int(number) for number, count in rounds.items() for _ in range(count))
    return f"{every[0]} to {every[-1]}, median {every[len(every) // 2]}"
