"""What a simulation leaves in its report folder: summary.json, events.jsonl, and three pictures (plots.py)."""

import json
from collections.abc import Sequence
from pathlib import Path

from p2ptrain.config import RunConfig
from p2ptrain.errors import StorageError
from p2ptrain.simulate.judge import Summary
from p2ptrain.simulate.lives import End, Life
from p2ptrain.simulate.plots import draw_losses, draw_rounds, draw_swarm
from p2ptrain.simulate.series import Series


def write_report(
    folder: Path,
    summary: Summary,
    lives: Sequence[Life],
    trained_from: float,
    *,
    config: RunConfig | None = None,
    series: Series | None = None,
) -> None:
    """Write the files; StorageError names the one that cannot be written. Without a series, only losses are drawn."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
        write_events(folder / "events.jsonl", lives)
        draw_losses(folder / "loss.png", lives, trained_from, config)
        if series is not None:
            draw_swarm(folder / "swarm.png", series)
            draw_rounds(folder / "rounds.png", series)
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
