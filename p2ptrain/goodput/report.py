"""What the study leaves in its report folder: goodput.json, table.md and plots."""

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from p2ptrain.errors import StorageError
from p2ptrain.goodput import published, tables
from p2ptrain.goodput.failures import FailureModel, differences, inelastic, root_mean_square
from p2ptrain.goodput.heterogeneity import MixedLearners
from p2ptrain.goodput.scavenging import Scavenging, ideal_time
from p2ptrain.goodput.study import PaperPart, VolunteerRow
from p2ptrain.goodput.volunteers import VolunteerRun


def write_report(
    folder: Path, seed: int, paper: PaperPart, rows: Sequence[VolunteerRow] | None, run: VolunteerRun | None
) -> None:
    """Write the files; StorageError names the one that cannot be written. `rows` is None for the paper's part alone."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "goodput.json").write_text(json.dumps(to_json(seed, paper, rows, run), indent=2) + "\n")
        (folder / "table.md").write_text("\n".join(sheet.to_markdown() for sheet in sheets(paper, rows, run)))
        draw_goodput(folder / "goodput.png", paper)
        draw_scavenging(folder / "scavenging.png", paper)
        if rows:
            draw_volunteers(folder / "volunteers.png", rows)
    except OSError as error:
        raise StorageError(f"--report {error.filename or folder}: {error.strerror}") from None


def sheets(paper: PaperPart, rows: Sequence[VolunteerRow] | None, run: VolunteerRun | None) -> list[tables.Sheet]:
    """Return all tables of the study."""
    return tables.paper_sheets(paper) + ([tables.volunteers_sheet(rows, run)] if rows and run else [])


def to_json(
    seed: int, paper: PaperPart, rows: Sequence[VolunteerRow] | None, run: VolunteerRun | None
) -> dict[str, Any]:
    """Return the whole study in plain values: shares in percent, times in seconds."""
    off = differences(paper.table)
    return {
        "seed": seed,
        "chips": list(published.CHIPS),
        "table": {row: [_percent(cell.goodput) for cell in cells] for row, cells in paper.table.items()},
        "paper": {row: list(cells) for row, cells in published.GOODPUT.items()},
        "difference": {row: [round(error, 2) for error in errors] for row, errors in off.items()},
        "rms_points": round(root_mean_square(paper.table), 3),
        "worst_points": round(max(abs(error) for errors in off.values() for error in errors), 2),
        "uptime": {row: [_percent(cell.uptime) for cell in cells] for row, cells in paper.table.items()},
        "not_elastic": {
            "ours": [_percent(inelastic(chips)) for chips in published.CHIPS],
            "paper": list(published.INELASTIC_GOODPUT),
        },
        "parameters": _parameters(),
        "heterogeneity": [
            {
                "policy": result.name,
                "goodput": _percent(result.goodput),
                "contributions_per_round": round(result.contributions, 3),
                "rounds_with_a_fast_learner": _percent(result.fast_share),
                "rounds_with_a_slow_learner": _percent(result.slow_share),
                "paper": dict(zip(("goodput", "text", "vision"), published.POLICIES[result.name], strict=True)),
            }
            for result in paper.policies
        ],
        "scavenging": {
            "extra": [100.0 * extra for extra in published.EXTRA_COMPUTE],
            "ideal": [round(ideal_time(extra), 4) for extra in published.EXTRA_COMPUTE],
            **{
                name: {"ours": [round(time, 4) for time in times], "paper": list(published.SCAVENGING_TIME[name])}
                for name, times in paper.scavenging.items()
            },
        },
        "volunteers": None if rows is None or run is None else _volunteers(rows, run),
    }


def _parameters() -> dict[str, dict[str, Any]]:
    """Return each parameter by where it comes from."""
    failures = asdict(FailureModel())
    interval, slice_chips = failures.pop("interruption_interval"), failures.pop("slice_chips")
    mix, scavenging = asdict(MixedLearners()), asdict(Scavenging())
    return {
        "published": {
            "interruption_interval_per_chip": interval, "num_learners": mix["num_learners"], "slow_step": mix["slow_step"],
            "jitter": mix["jitter"],
        },
        "fitted": {
            **failures, "num_slow": mix["num_slow"], "unit_lifetime": scavenging["unit_lifetime"],
            "reshard_seconds": scavenging["reshard_seconds"],
        },
        "chosen": {
            "slice_chips": slice_chips, "sync_time": mix["sync_time"], "safety": mix["safety"],
            "copy_seconds": scavenging["copy_seconds"], "reshard_interval": scavenging["reshard_interval"],
        },
    }  # fmt: skip


def _volunteers(rows: Sequence[VolunteerRow], run: VolunteerRun) -> dict[str, Any]:
    return {
        "seconds": run.seconds,
        "step_seconds": run.step_seconds,
        "inner_steps": run.config.rounds.inner_steps,
        "network": run.network.name if run.network else None,
        "sessions": {"on": run.sessions.on.model_dump(), "off": run.sessions.off.model_dump()},
        "rows": [
            {
                "peers": row.num_peers,
                "departures": row.num_departures,
                "time_on": _percent(row.time_on),
                "p2ptrain": None if row.p2ptrain is None else _shares(row.p2ptrain),
                "hivemind": None if row.hivemind is None else _shares(row.hivemind),
                "left_out": row.left_out,
                "all_reduce_every_step": _shares(row.all_reduce),
                "all_reduce_every_round": _shares(row.local_sgd),
            }
            for row in rows
        ],
    }


_SHARES = ("goodput", "goodput_while_on", "undisturbed", "trained", "participation", "largest_group")


def _shares(result: Any) -> dict[str, Any]:
    """Return a result as a dict, its shares in percent."""
    values = {field.name: getattr(result, field.name) for field in fields(result)}
    values |= {name: _percent(values[name]) for name in _SHARES if name in values}
    if "dropped" in values:
        values["dropped"] = {reason: _percent(share) for reason, share in values["dropped"].items()}
    return values


def _percent(share: float) -> float:
    return round(100.0 * share, 2)


# Plots


def draw_goodput(path: Path, paper: PaperPart) -> None:
    """Draw goodput over chips: ours as lines, the paper's as points."""
    figure, axes = _figure()
    for number, (row, cells) in enumerate(paper.table.items()):
        color = f"C{number}"
        axes.plot(published.CHIPS, [100 * cell.goodput for cell in cells], color=color, label=_label(row))
        axes.plot(published.CHIPS, published.GOODPUT[row], "o", color=color)
    axes.plot(published.CHIPS, [100 * inelastic(chips) for chips in published.CHIPS], ":k", label="DP, not elastic")
    axes.plot(published.CHIPS, published.INELASTIC_GOODPUT, "ok")
    axes.set_xscale("log", base=2)
    axes.set_xticks(published.CHIPS, tables.CHIPS)
    axes.set(
        xlabel="chips",
        ylabel="goodput (%)",
        ylim=(0, 100),
        title="goodput under failures: ours (lines), paper (points)",
    )
    _save(figure, axes, path)


def draw_scavenging(path: Path, paper: PaperPart) -> None:
    """Draw the time to finish over the extra chips."""
    figure, axes = _figure()
    extra = [100 * one for one in published.EXTRA_COMPUTE]
    for number, (name, times) in enumerate(paper.scavenging.items()):
        axes.plot(extra, times, color=f"C{number}", label=name)
        axes.plot(extra, published.SCAVENGING_TIME[name], "o", color=f"C{number}")
    axes.plot(extra, [ideal_time(one) for one in published.EXTRA_COMPUTE], ":k", label="ideal")
    axes.set(
        xlabel="extra chips for half of the work (%)",
        ylabel="relative time to finish",
        title="scavenged compute: ours (lines), paper (points)",
    )
    _save(figure, axes, path)


def draw_volunteers(path: Path, rows: Sequence[VolunteerRow]) -> None:
    """Draw the volunteers' goodput over the size of the swarm."""
    figure, axes = _figure()
    sizes = [row.num_peers for row in rows]
    axes.plot(sizes, [100 * row.time_on for row in rows], ":k", label="time on: nobody can do better")
    for label, style, results in (
        ("p2ptrain", "o-", [(row.num_peers, row.p2ptrain) for row in rows]),
        ("hivemind, in whatever groups", "d-", [(row.num_peers, row.hivemind) for row in rows]),
    ):
        there = [(size, 100 * result.goodput) for size, result in results if result is not None]
        axes.plot([size for size, _ in there], [goodput for _, goodput in there], style, label=label)
    axes.plot(sizes, [100 * row.local_sgd.goodput for row in rows], "s-", label="all-reduce every H steps")
    axes.plot(sizes, [100 * row.all_reduce.goodput for row in rows], "^-", label="all-reduce every step")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set(xlabel="peers", ylabel="goodput (%)", ylim=(0, 100), title="volunteers: goodput of always-on peers")
    _save(figure, axes, path)


def _label(row: str) -> str:
    return f"Decoupled, {tables.ROWS[row]}" if row.isdigit() else tables.ROWS[row]


def _figure() -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")  # draws into files; needs no display
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(8, 5), layout="constrained")


def _save(figure: Any, axes: Any, path: Path) -> None:
    from matplotlib import pyplot

    axes.legend(fontsize="small")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
