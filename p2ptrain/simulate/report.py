"""What a simulation leaves in its report folder: summary.json, events.jsonl, loss.png, and of virtual swarms more."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

from p2ptrain.errors import StorageError
from p2ptrain.simulate.judge import Summary
from p2ptrain.simulate.lives import End, Life
from p2ptrain.simulate.plots import draw_rounds, draw_swarm
from p2ptrain.simulate.series import Series


def write_report(folder: Path, summary: Summary, lives: Sequence[Life], trained_from: float) -> None:
    """Write the three files; StorageError names the one that cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
        write_events(folder / "events.jsonl", lives)
        draw_losses(folder / "loss.png", lives, trained_from)
    except OSError as error:
        raise StorageError(f"--report {error.filename or folder}: {error.strerror}") from None


def write_virtual_report(
    folder: Path, summary: Summary, lives: Sequence[Life], trained_from: float, series: Series, num_fragments: int
) -> None:
    """Write the same, and what is seen from outside a simulated world: swarm.png and rounds.png."""
    write_report(folder, summary, lives, trained_from)
    try:
        draw_swarm(folder / "swarm.png", series)
        draw_rounds(folder / "rounds.png", series, num_fragments)
    except OSError as error:
        raise StorageError(f"--report {error.filename or folder}: {error.strerror}") from None


def write_events(path: Path, lives: Sequence[Life]) -> None:
    """Write all events of all peers by time, each with the number, life and id of the peer that it comes from."""
    num_lives: dict[int, int] = {}
    rows: list[tuple[float, int, str]] = []
    for life in lives:
        num_lives[life.number] = num_lives.get(life.number, 0) + 1
        origin = {"peer_number": life.number, "peer_life": num_lives[life.number], "peer_id": life.peer}
        for event in life.events:
            rows.append((event.at, len(rows), json.dumps({**origin, **json.loads(event.to_json())})))
        if life.end is End.KILLED and life.ended_at is not None:
            rows.append((life.ended_at, len(rows), json.dumps({**origin, "kind": "killed", "at": life.ended_at})))
    path.write_text("".join(f"{line}\n" for _, _, line in sorted(rows)))


def draw_losses(path: Path, lives: Sequence[Life], trained_from: float) -> None:
    """Draw each peer's training loss and the anchors' validation loss over the seconds since training began."""
    import matplotlib

    matplotlib.use("Agg")  # draws into files; needs no display
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5), layout="constrained")
    named: set[int] = set()
    for life in lives:
        label = "" if life.number in named else f"peer {life.number}"
        named.add(life.number)
        points = _points(life, "progress", trained_from)
        axes.plot(*points, color=f"C{(life.number - 1) % 10}", linewidth=0.8, alpha=0.7, label=label)
        if life.end is End.KILLED and points[0]:
            axes.plot(points[0][-1], points[1][-1], "x", color=f"C{(life.number - 1) % 10}")
    validations = sorted(
        point for life in lives for point in zip(*_points(life, "validation", trained_from), strict=True)
    )
    axes.plot(*(zip(*validations, strict=True) if validations else ([], [])), "k.-", label="anchors (validation)")
    axes.set(
        xlabel="seconds since the first inner step",
        ylabel="loss (nats per token)",
        title="training loss of each peer (x: killed) and validation loss of what they share",
    )
    axes.legend(loc="upper right", fontsize="small")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _points(life: Life, kind: str, trained_from: float) -> tuple[list[float], list[float]]:
    """Return times and finite losses of a life's events of a kind."""
    points = [
        (event.at - trained_from, event.fields["loss"])
        for event in life.all(kind)
        if math.isfinite(event.fields["loss"])
    ]
    return [seconds for seconds, _ in points], [loss for _, loss in points]
