"""The command `goodput`: runs the study, shows it as it comes, writes the report."""

from rich.console import Console
from rich.text import Text

from p2ptrain.config import RunConfig, load_run_config
from p2ptrain.goodput import tables
from p2ptrain.goodput.options import GoodputOptions
from p2ptrain.goodput.report import write_report
from p2ptrain.goodput.study import VolunteerRow, simulate_paper, simulate_sizes
from p2ptrain.goodput.volunteers import VolunteerRun
from p2ptrain.runtime import Clock
from p2ptrain.sim.profiles import load_network_profile

SAY_INTERVAL = 5.0  # real seconds between two lines of progress where there is no terminal


def run_study(options: GoodputOptions, console: Console, clock: Clock) -> None:
    """Run the study that the options name; ConfigError for options that make no sense, before anything is run."""
    options.check()
    run = None if options.quick else volunteer_run(options)
    paper = simulate_paper(options.seed)
    for sheet in tables.paper_sheets(paper):
        sheet.show(console)
    rows: list[VolunteerRow] | None = None
    if run is not None:
        progress = _Progress(console, clock)
        with progress:
            rows = simulate_sizes(options, run, clock, progress.say)
        tables.volunteers_sheet(rows, run).show(console)
    if options.report is not None:
        write_report(options.report, options.seed, paper, rows, run)
        console.print(Text(f"report in {options.report}"), soft_wrap=True)


def volunteer_run(options: GoodputOptions) -> VolunteerRun:
    """Return what the volunteers train."""
    config: RunConfig = load_run_config(options.run)
    return VolunteerRun(config=config, network=load_network_profile(options.network), seconds=options.hours * 3600.0)


class _Progress:
    """One line that is replaced in a terminal; a plain line every few seconds elsewhere."""

    def __init__(self, console: Console, clock: Clock) -> None:
        self._console, self._clock = console, clock
        self._status = console.status("") if console.is_terminal else None
        self._next_at = clock.monotonic() + SAY_INTERVAL

    def __enter__(self) -> None:
        if self._status is not None:
            self._status.start()

    def __exit__(self, *error: object) -> None:
        if self._status is not None:
            self._status.stop()

    def say(self, words: str) -> None:
        if self._status is not None:
            self._status.update(words)
        elif self._clock.monotonic() >= self._next_at:
            self._next_at = self._clock.monotonic() + SAY_INTERVAL
            self._console.print(Text(words), soft_wrap=True)
