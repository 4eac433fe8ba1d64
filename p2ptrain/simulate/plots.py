"""The pictures of a report: how a swarm fared over time."""

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import quantiles
from typing import Any, Final

from p2ptrain.config import RunConfig
from p2ptrain.simulate.lives import End, Life
from p2ptrain.simulate.series import Series
from p2ptrain.training.quadratic import CURVATURES, NOISE

MAX_LINES: Final = 32  # peers with a line of their own in the picture of losses; more become a band
NUM_BINS: Final = 150  # of time, for the band
LOG_SPAN: Final = 20.0  # losses that differ by more are drawn on a logarithmic scale


def draw_losses(path: Path, lives: Sequence[Life], began_at: float, config: RunConfig | None = None) -> None:
    """Draw the peers' training losses and the validation loss of what they share; for the quadratic, what is known of it."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(9, 5), layout="constrained")
    curves = [(life, *_since(life.loss_curve(), began_at)) for life in lives]
    validations = sorted(
        (event.at - began_at, event.fields["loss"])
        for life in lives
        for event in life.all("validation")
        if math.isfinite(event.fields["loss"])
    )
    span = max([times[-1] for _, times, _ in curves if times] + [at for at, _ in validations[-1:]], default=0.0)
    unit, per_unit = _unit(span)
    is_few = len({life.number for life in lives}) <= MAX_LINES
    if is_few:
        _draw_lines(axes, curves, per_unit)
    else:
        _draw_band(axes, curves, span, per_unit)
    axes.plot(
        [at / per_unit for at, _ in validations], [loss for _, loss in validations], "k.-", linewidth=1.0, markersize=3,
        label="anchors (validation)",
    )  # fmt: skip
    seen = [loss for _, _, losses in curves for loss in losses] + [loss for _, loss in validations]
    if config is not None and config.model.kind == "quadratic":
        floor = noise_floor(config)
        axes.axhline(
            floor, color="grey", linestyle="--", linewidth=1.0, label="noise floor of a peer alone (optimum: 0)"
        )
    if seen and min(seen) > 0.0 and max(seen) > LOG_SPAN * min(seen):
        axes.set_yscale("log")
    axes.set(
        xlabel=f"{unit} since the first inner step",
        ylabel="loss (nats per token)" if config is None or config.model.kind != "quadratic" else "loss",
        title="training loss of each peer (x: killed) and validation loss of what they share"
        if is_few
        else "training loss (median, and where 80 % of the peers are) and validation loss of what they share",
    )
    axes.legend(loc="upper right", fontsize="small")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def noise_floor(config: RunConfig) -> float:
    """Return the loss at which gradient descent on the noisy quadratic stays, for one peer that trains alone.

    A step x -> (1 - ηc)·x + η·noise has the stationary variance η·s² / (c·(2 - ηc)) about the optimum, s being the
    deviation of a step's noise; its loss is half of c times that. Averaging n peers divides it by up to n.
    """
    rate, variance = config.inner.learning_rate, NOISE**2 / config.inner.windows_per_step
    low, high = (math.log(curvature) for curvature in CURVATURES)
    curvatures = [math.exp(low + (high - low) * (index + 0.5) / 256) for index in range(256)]
    return sum(rate * variance / (2.0 - rate * curvature) for curvature in curvatures) / (2 * len(curvatures))


def draw_swarm(path: Path, series: Series) -> None:
    """Draw peers alive, participation, goodput, staleness, bytes per peer and the length of rounds."""
    pyplot = _pyplot()
    figure, panels = pyplot.subplots(3, 2, figsize=(11, 9), layout="constrained", sharex=True)
    unit, per_unit = _unit(series.looks[-1].at if series.looks else 0.0)
    looks, rounds = series.looks, series.rounds
    at = [look.at / per_unit for look in looks]
    round_at = [one.at / per_unit for one in rounds]
    alive, part, good, stale, sent, size = panels.flat
    alive.plot(at, [look.num_alive for look in looks], label="alive")
    alive.plot(at, [look.num_trainers for look in looks], label="training")
    alive.set(ylabel="peers", title="peers", ylim=(0, None))
    alive.legend(fontsize="small", loc="lower right")
    part.plot(round_at, [one.share for one in rounds], ".", markersize=3, alpha=0.5)
    part.set(ylabel="contributors / live trainers", ylim=(0, 1.05), title="participation, of what a leader takes")
    good.plot(at, [look.goodput for look in looks])
    good.set(ylabel="merged / possible", ylim=(0, 1.1), title="goodput so far")
    stale.plot(
        round_at, [one.staleness for one in rounds], ".", markersize=3, alpha=0.5, label="of contributions to a round"
    )
    stale.plot(at, [look.behind for look in looks], color="C1", linewidth=1.0, label="of live peers, at an instant")
    stale.set(ylabel="commits behind", title="staleness", ylim=(0, None))
    stale.legend(fontsize="small", loc="upper right")
    rates = [
        (now.bytes_sent - before.bytes_sent) / 1e3 / max(now.at - before.at, 1e-9) / max(1, now.num_alive)
        for before, now in pairwise(looks)
    ]
    sent.plot(at[1:], rates, linewidth=0.8)
    sent.set(ylabel="kB/s", xlabel=unit, title="bytes sent by a live peer", ylim=(0, None))
    size.plot(round_at, [one.seconds for one in rounds], ".", markersize=3, alpha=0.5)
    size.set(ylabel="seconds", xlabel=unit, title="a round, from its call to its commit", ylim=(0, None))
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def draw_rounds(path: Path, series: Series) -> None:
    """Draw the timeline of rounds: a row for each fragment, a bar from call to commit, as high as it has contributors."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(11, 1.6 + 0.5 * series.num_fragments), layout="constrained")
    most = max((one.num_contributors for one in series.rounds), default=1)
    end = max([one.at for one in series.rounds] + [at for at, _ in series.aborted], default=0.0)
    unit, per_unit = _unit(end)
    thinnest = end / 500  # or some would fall between the pixels
    for fragment in range(series.num_fragments):
        own = [one for one in series.rounds if one.fragment == fragment]
        axes.bar(
            [(one.at - one.seconds) / per_unit for one in own],
            [0.8 * one.num_contributors / most for one in own],
            [max(one.seconds, thinnest) / per_unit for one in own],
            bottom=fragment, align="edge", color=f"C{fragment % 10}",
        )  # fmt: skip
    if series.aborted:
        axes.plot(
            [at / per_unit for at, _ in series.aborted], [fragment - 0.07 for _, fragment in series.aborted], "kx",
            markersize=4, label="given up",
        )  # fmt: skip
        axes.legend(fontsize="small", loc="upper right")
    axes.set(
        xlabel=unit, ylabel="fragment", yticks=range(series.num_fragments),
        title=f"rounds of each fragment, from call to commit (height: contributors, {most} at most)",
    )  # fmt: skip
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


Curve = tuple[Life, Sequence[float], Sequence[float]]


def _draw_lines(axes: Any, curves: Sequence[Curve], per_unit: float) -> None:
    named: set[int] = set()
    for life, times, losses in curves:
        color = f"C{(life.number - 1) % 10}"
        label = "" if life.number in named or len(named) >= 10 else f"peer {life.number}"
        named.add(life.number)
        axes.plot([at / per_unit for at in times], losses, color=color, linewidth=0.8, alpha=0.7, label=label)
        if life.end is End.KILLED and times:
            axes.plot(times[-1] / per_unit, losses[-1], "x", color=color)


def _draw_band(axes: Any, curves: Sequence[Curve], span: float, per_unit: float) -> None:
    bins: list[list[float]] = [[] for _ in range(NUM_BINS)]
    for _, times, losses in curves:
        for at, loss in zip(times, losses, strict=True):
            bins[min(NUM_BINS - 1, max(0, int(NUM_BINS * at / span)))].append(loss)
    middles = [(index + 0.5) * span / NUM_BINS / per_unit for index, losses in enumerate(bins) if len(losses) > 1]
    deciles = [quantiles(losses, n=10) for losses in bins if len(losses) > 1]
    axes.fill_between(middles, [one[0] for one in deciles], [one[-1] for one in deciles], alpha=0.3, linewidth=0)
    axes.plot(middles, [one[4] for one in deciles], linewidth=1.0, label="training")


def _since(curve: tuple[Sequence[float], Sequence[float]], began_at: float) -> tuple[list[float], Sequence[float]]:
    return [at - began_at for at in curve[0]], curve[1]


def _unit(span: float) -> tuple[str, float]:
    """Return a unit of time in which a span is a number that people like, and its seconds."""
    if span > 7200.0:
        return "hours", 3600.0
    return ("minutes", 60.0) if span > 300.0 else ("seconds", 1.0)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")  # draws into files; needs no display
    from matplotlib import pyplot

    return pyplot
