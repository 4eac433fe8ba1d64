"""The study as tables, each with what it stands beside: for a terminal of 80 columns, and for Markdown."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from p2ptrain.goodput import published
from p2ptrain.goodput.all_reduce import AllReduceResult
from p2ptrain.goodput.failures import FailureModel, differences, inelastic, root_mean_square
from p2ptrain.goodput.hivemind import HivemindResult
from p2ptrain.goodput.scavenging import Scavenging, ideal_time
from p2ptrain.goodput.study import PaperPart, VolunteerRow
from p2ptrain.goodput.volunteers import VolunteerResult, VolunteerRun
from p2ptrain.sim.churn import Durations

ROWS = {row: f"M = {row}" if row.isdigit() else "elastic DP" for row in published.GOODPUT}
CHIPS = [f"{chips / 1e6:g}M" if chips >= 1_000_000 else f"{chips / 1e3:g}k" for chips in published.CHIPS]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """One table."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()

    def show(self, console: Console) -> None:
        console.print(Text(self.title, style="bold"))
        table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
        for number, name in enumerate(self.columns):
            table.add_column(name, justify="right" if number else "left")
        for row in self.rows:
            table.add_row(*row)
        console.print(table)
        for note in self.notes:
            console.print(Text(note))
        console.print()

    def to_markdown(self) -> str:
        lines = [self.columns, ["---", *("---:" for _ in self.columns[1:])], *self.rows]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return "\n\n".join([f"### {self.title}", table, *self.notes]) + "\n"


def paper_sheets(paper: PaperPart) -> list[Sheet]:
    """Return what reproduces the paper."""
    return [_goodput(paper), _uptime(paper), _policies(paper), _scavenging(paper)]


def _goodput(paper: PaperPart) -> Sheet:
    model, off = FailureModel(), differences(paper.table)
    worst = max((error for errors in off.values() for error in errors), key=abs)
    rows = {ROWS[row]: [100 * cell.goodput for cell in cells] for row, cells in paper.table.items()}
    rows["restart *"] = [100 * inelastic(chips) for chips in published.CHIPS]
    theirs = [*published.GOODPUT.values(), published.INELASTIC_GOODPUT]
    return Sheet(
        title="Goodput under failures, %: ours, the paper's, difference",
        columns=["chips", *CHIPS],
        rows=[
            [
                name,
                *(f"{our:.1f} {their:.0f} {_signed(our - their)}" for our, their in zip(ours, paper_row, strict=True)),
            ]
            for (name, ours), paper_row in zip(rows.items(), theirs, strict=True)
        ],
        notes=[
            f"RMS difference over the {sum(map(len, off.values()))} elastic and decoupled cells: "
            f"{root_mean_square(paper.table):.2f} points; worst cell {worst:+.1f}.",
            "* data parallelism without elasticity: a closed form, not in the RMS.",
            "Published: a chip is interrupted once a year; the numbers of chips and learners; quorum 1.",
            f"Fitted to these numbers (not the paper's, and of no real machine): stop {model.stop_seconds:g} s; readmission "
            f"{model.readmission_seconds:g} s, at most every {model.readmission_interval:g} s; repair "
            f"{model.mean_repair_seconds:g} s, exponential; restart {model.restart_seconds:g} s (*). "
            f"Chosen: slices of {model.slice_chips} chips.",
        ],
    )


def _signed(points: float) -> str:
    return f"{round(points, 1) + 0.0:+.1f}"  # without a minus before zero


def _uptime(paper: PaperPart) -> Sheet:
    return Sheet(
        title="Uptime, %: time in which at least one learner trains",
        columns=["chips", *CHIPS],
        rows=[[ROWS[row], *(f"{100 * cell.uptime:.2f}" for cell in cells)] for row, cells in paper.table.items()],
        notes=["The paper: about 100 % from M = 4 on."],
    )


def _policies(paper: PaperPart) -> Sheet:
    rows = []
    for result in paper.policies:
        goodput, text, vision = published.POLICIES[result.name]
        rows.append(
            [
                result.name, f"{100 * result.goodput:.1f} {goodput:.0f}", f"{result.contributions:.2f}",
                f"{100 * result.fast_share:.0f} % {100 * result.slow_share:.0f} %", f"{text:.1f} {vision:.1f}",
            ]
        )  # fmt: skip
    return Sheet(
        title="Learners of two speeds: whom a merge waits for. Goodput %: ours, the paper's",
        columns=["", "goodput", "heard", "fast, slow", "text, vision"],
        rows=rows,
        notes=[
            f"Heard: how many of {published.NUM_MIXED_LEARNERS} learners a round merges, and in how many rounds a fast, a slow one "
            "is; it stands in for quality. Text, vision: the scores in the paper.",
            "Published: 18 % slower, 10 % jitter. Fitted: one learner is slow. Chosen: a merge takes half a step.",
        ],
    )


def _scavenging(paper: PaperPart) -> Sheet:
    model = Scavenging()
    return Sheet(
        title="Extra chips for half of the work: time to finish, ours and the paper's",
        columns=["extra", *(f"+{100 * extra:.0f} %" for extra in published.EXTRA_COMPUTE)],
        rows=[
            *(
                [
                    name,
                    *(
                        f"{our:.2f} {their:.2f}"
                        for our, their in zip(times, published.SCAVENGING_TIME[name], strict=True)
                    ),
                ]
                for name, times in paper.scavenging.items()
            ),
            ["ideal", *(f"{ideal_time(extra):.3f}" for extra in published.EXTRA_COMPUTE)],
        ],
        notes=[
            f"Fitted to the first row: a unit of 25 % is replaced every {model.unit_lifetime:g} s; re-sharding takes "
            f"{model.reshard_seconds:g} s. Chosen: a learner copies the model in {model.copy_seconds:g} s."
        ],
    )


def volunteers_sheet(rows: Sequence[VolunteerRow], run: VolunteerRun) -> Sheet:
    """Return goodput by size for every way to train."""
    sessions, inner_steps = run.sessions, run.config.rounds.inner_steps
    return Sheet(
        title=f"Volunteers for {run.seconds / 3600:g} h: goodput, % of always-on peers (% of their time on)",
        columns=["peers", "leave", "on %", "p2ptrain", "hivemind", "in one", f"all-reduce/{inner_steps}", "all-reduce/1"],
        rows=[
            [
                str(row.num_peers), str(row.num_departures), f"{100 * row.time_on:.1f}", _both(row.p2ptrain), _both(row.hivemind),
                "–" if row.hivemind is None else f"{100 * row.hivemind.largest_group:.0f} %",
                _both(row.local_sgd), _both(row.all_reduce),
            ]
            for row in rows
        ],
        notes=[
            f"Sessions: on {_durations(sessions.on)}, off {_durations(sessions.off)}; steps of {run.step_seconds:g} s, "
            f"H = {inner_steps}; network {run.network.name if run.network else 'plain'}.",
            "p2ptrain: its own peers, in the simulated world. hivemind: its own matchmaking, on plain delays; work counts in "
            "whatever group it was merged, and the largest group had so many of the peers (in one).",
            f"all-reduce/{inner_steps}, /1: an event model of a synchronous swarm that reduces every {inner_steps} steps or every "
            f"step, with the time-out that suits it best: {_by_size(rows, lambda one: f'{one.timeout:g} s')}. If nobody "
            f"came or left they had {_by_size(rows, lambda one: f'{100 * one.undisturbed:.0f} %')}.",
            *(
                f"{row.num_peers} peers: {name} is left out: {reason}"
                for row in rows
                for name, reason in row.left_out.items()
            ),
        ],
    )  # fmt: skip


def _by_size(rows: Sequence[VolunteerRow], tell: Callable[[AllReduceResult], str]) -> str:
    return ", ".join(f"{row.num_peers} peers {tell(row.local_sgd)} and {tell(row.all_reduce)}" for row in rows)


def _durations(durations: Durations) -> str:
    return f"{durations.mean_minutes:g} min ({durations.kind})"


def _both(result: VolunteerResult | HivemindResult | AllReduceResult | None) -> str:
    return "–" if result is None else f"{100 * result.goodput:.1f} ({100 * result.goodput_while_on:.1f})"
