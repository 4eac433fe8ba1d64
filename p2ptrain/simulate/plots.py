"""The pictures of a report: how a simulated swarm fared over time. Hours of virtual time lie on every x axis."""

from pathlib import Path
from typing import Any

from p2ptrain.simulate.series import Series


def draw_swarm(path: Path, series: Series) -> None:
    """Draw peers alive, participation, goodput, staleness, bytes per peer and the rounds per hour."""
    pyplot = _pyplot()
    figure, panels = pyplot.subplots(3, 2, figsize=(11, 9), layout="constrained", sharex=True)
    hours = [look.at / 3600 for look in series.looks]
    alive, part, good, stale, sent, size = panels.flat
    alive.plot(hours, [look.num_alive for look in series.looks], label="alive")
    alive.plot(hours, [look.num_trainers for look in series.looks], label="training")
    alive.legend(fontsize="small")
    alive.set(ylabel="peers", title="peers")
    round_hours = [one.at / 3600 for one in series.rounds]
    part.plot(round_hours, [one.share for one in series.rounds], ".", markersize=3, alpha=0.5)
    part.set(ylabel="contributors / live trainers", ylim=(0, 1.05), title="participation, of what a leader takes")
    good.plot(hours, [look.goodput for look in series.looks])
    good.set(ylabel="merged / possible", ylim=(0, 1.1), title="goodput so far")
    stale.plot(round_hours, [one.staleness for one in series.rounds], ".", markersize=3, alpha=0.5)
    stale.set(ylabel="commits", title="staleness: age of the oldest base in a round")
    peers = [max(1, look.num_alive) for look in series.looks]
    sent.plot(hours, [look.bytes_sent / 1e6 / count for look, count in zip(series.looks, peers, strict=True)])
    sent.set(ylabel="MB", xlabel="virtual hours", title="bytes sent per live peer")
    size.plot(round_hours, [one.seconds for one in series.rounds], ".", markersize=3, alpha=0.5)
    size.set(ylabel="seconds", xlabel="virtual hours", title="a round, from its call to its commit")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def draw_rounds(path: Path, series: Series, num_fragments: int) -> None:
    """Draw the timeline of rounds: a row for each fragment, a bar from call to commit, as high as it has contributors."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(11, 1.2 + 0.5 * num_fragments), layout="constrained")
    most = max((one.num_contributors for one in series.rounds), default=1)
    thinnest = max((one.at for one in series.rounds), default=0.0) / 400  # or some fall between the pixels
    for fragment in range(num_fragments):
        own = [one for one in series.rounds if one.fragment == fragment]
        for one in own:
            width = max(one.seconds, thinnest) / 3600
            height = 0.8 * one.num_contributors / most
            axes.bar(
                (one.at - one.seconds) / 3600, height, width, bottom=fragment, align="edge", color=f"C{fragment % 10}"
            )
    axes.set(
        xlabel="virtual hours", ylabel="fragment", yticks=range(num_fragments),
        title=f"rounds of each fragment (height: contributors, {most} at most)",
    )  # fmt: skip
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")  # draws into files; needs no display
    from matplotlib import pyplot

    return pyplot
