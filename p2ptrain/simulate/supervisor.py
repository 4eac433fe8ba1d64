"""The story of a simulation: start, train and disturb, drain, judge, leave.

    start    the host; when its link can be used, all others at once
    train    from the first inner step of anybody, for the seconds that were asked for; meanwhile processes are killed
             (faults.py) and started again, and one more peer may join
    drain    nobody trains any more; what is pending is merged, until all agree or ten seconds have passed
    judge    by a last report of everybody (judge.py)

It polls and spawns nothing, so a Ctrl-C ends it between two looks: the peers leave, and what was seen is judged and
written all the same.
"""

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rich.console import Console

from p2ptrain.config import RunConfig, load_run_config
from p2ptrain.errors import NetworkError
from p2ptrain.real.clock import SystemClock
from p2ptrain.runtime import Clock
from p2ptrain.simulate.faults import QUIET_BEFORE_STOP, RESTART_AFTER, Fault, choose_victim, plan_faults
from p2ptrain.simulate.fleet import HOST, POLL_INTERVAL, Fleet
from p2ptrain.simulate.judge import Observation, Summary, judge
from p2ptrain.simulate.lives import Life
from p2ptrain.simulate.options import SimulateOptions
from p2ptrain.simulate.progress import SimulationView, verdict
from p2ptrain.simulate.report import write_report
from p2ptrain.simulate.series import series_of

__all__ = ["SimulateOptions", "simulate"]

START_TIMEOUT: Final = 120.0  # seconds to the host's link, and again to the first inner step: many peers on few cores
DRAIN_TIMEOUT: Final = 10.0  # seconds after which the swarm is judged, settled or not
REPORT_INTERVAL: Final = 1.0  # seconds between two reports: each validates the anchors once
REPORT_TIMEOUT: Final = 5.0  # seconds for everybody to make the final report
INTERRUPTED_REPORT_TIMEOUT: Final = 1.0  # seconds for it after a Ctrl-C, when somebody waits for the prompt


async def simulate(options: SimulateOptions, out: Console) -> Summary:
    """Run a swarm as the options say and return the summary; with --report, write it too.

    When it is cancelled (Ctrl-C), the peers leave and the report of what was seen is written before it ends.
    """
    options.check()
    config = load_run_config(options.run)
    clock = SystemClock()
    with tempfile.TemporaryDirectory(prefix="p2ptrain-simulate-", ignore_cleanup_errors=True) as folder:
        fleet = Fleet(
            run=options.run, data=options.data, folder=Path(folder), clock=clock, arguments=options.peer_arguments()
        )
        with SimulationView(out, clock) as view:
            supervisor = Supervisor(options, config, fleet, view, clock)
            try:
                await supervisor.train()
                await supervisor.drain()
            except asyncio.CancelledError:
                await supervisor.ask_for_reports(timeout=INTERRUPTED_REPORT_TIMEOUT)
                await fleet.end()
                supervisor.conclude(interrupted=True)
                raise
            finally:
                await fleet.end()
        return supervisor.conclude()


class Supervisor:
    """Takes a fleet through a simulation, one look at a time."""

    def __init__(
        self, options: SimulateOptions, config: RunConfig, fleet: Fleet, view: SimulationView, clock: Clock
    ) -> None:
        self._options, self._config, self._fleet, self._view, self._clock = options, config, fleet, view, clock
        self._trained_from: float | None = None
        self._stopped_at: float | None = None
        self._reports_from = 0.0
        self._faults: list[Fault] | None = None  # planned at the first commit
        self._restarts: list[tuple[float, int]] = []  # when which peer comes back
        self._late_joined = options.late_join_at is None

    async def train(self) -> None:
        """Start the swarm, and let it train and suffer."""
        await self._fleet.start(HOST)
        await self._until(lambda: self._fleet.lives[0].is_up, START_TIMEOUT, "the host did not come up")
        for number in range(HOST + 1, HOST + self._options.num_peers):
            await self._fleet.start(number)
        await self._until(self._has_begun, START_TIMEOUT, "no peer made an inner step")
        assert self._trained_from is not None  # _has_begun set it
        stop_at = self._trained_from + self._options.seconds
        while (now := self._clock.wall()) < stop_at:
            await self._look()
            self._plan(stop_at)
            if now <= stop_at - QUIET_BEFORE_STOP:
                await self._kill(now)
            await self._start_again(now)
            if not self._late_joined and now >= self._trained_from + (self._options.late_join_at or 0.0):
                await self._let_one_more_join()

    async def drain(self) -> None:
        """Stop training, and let the swarm merge what is pending; then have everybody report."""
        self._stopped_at = self._clock.wall()
        self._view.say("training has stopped; the swarm merges what is pending")
        self._fleet.tell("drain")
        deadline = self._clock.monotonic() + DRAIN_TIMEOUT
        ask_at = 0.0
        while (now := self._clock.monotonic()) < deadline and not self._is_settled():
            if now >= ask_at:
                self._fleet.tell("report")
                ask_at = now + REPORT_INTERVAL
            await self._look()
        await self.ask_for_reports()

    async def ask_for_reports(self, timeout: float = REPORT_TIMEOUT) -> None:
        """Have everybody who runs report once more, and wait for it."""
        self._reports_from = self._clock.wall()
        self._fleet.tell("report")
        deadline = self._clock.monotonic() + timeout
        while self._clock.monotonic() < deadline and not all(map(self._has_reported, self._fleet.running)):
            await self._look()

    def conclude(self, *, interrupted: bool = False) -> Summary:
        """Return the judgement; tell it, and write it if that was asked for."""
        trained_from = self._trained_from or self._reports_from
        num_expected = self._options.num_peers + (self._options.late_join_at is not None)
        seen = Observation(
            config=self._config, num_peers=self._options.num_peers, expected=range(HOST, HOST + num_expected),
            lives=self._fleet.lives, trained_from=trained_from, stopped_at=self._stopped_at or self._reports_from,
            reports_from=self._reports_from, interrupted=interrupted,
        )  # fmt: skip
        summary = judge(seen)
        for line in verdict(summary):
            self._view.say(line)
        if self._options.report is not None:
            series = series_of(
                seen.lives, seen.rounds, num_fragments=seen.num_fragments, largest=self._config.limits.max_members,
                interval=seen.interval, began_at=trained_from, stopped_at=seen.stopped_at,
            )  # fmt: skip
            write_report(
                self._options.report, summary, self._fleet.lives, trained_from, config=self._config, series=series
            )
            self._view.say(f"wrote {self._options.report}")
        return summary

    async def _look(self) -> None:
        """Hear what everybody says, note who crashed, and show it."""
        await asyncio.sleep(POLL_INTERVAL)
        self._fleet.listen()
        for life, words in await self._fleet.bury_the_crashed():
            self._view.say(f"peer {life.number} ended by itself: {words}")
        seconds = 0.0 if self._trained_from is None else self._clock.wall() - self._trained_from
        self._view.update(self._fleet.lives, seconds)

    async def _until(self, condition: Callable[[], bool], timeout: float, failure: str) -> None:
        """Wait for the start; what ends or takes too long before it is an error of this command."""
        deadline = self._clock.monotonic() + timeout
        while not condition():
            if self._clock.monotonic() > deadline:
                raise NetworkError(f"{failure} within {timeout:.0f} s")
            await asyncio.sleep(POLL_INTERVAL)
            self._fleet.listen()
            self._fleet.check_started()
            self._view.update(self._fleet.lives, 0.0)

    def _has_begun(self) -> bool:
        self._trained_from = min((life.trained_from for life in self._fleet.lives if life.trained_from), default=None)
        return self._trained_from is not None

    def _plan(self, stop_at: float) -> None:
        """Plan the faults once there is a commit."""
        if self._faults is not None:
            return
        commits = [event.at for life in self._fleet.lives for event in life.all("adopted")]
        if commits:
            self._faults = plan_faults(
                first_commit_at=min(commits), stop_at=stop_at,
                kill_one_every=self._options.kill_one_every, kill_leader_every=self._options.kill_leader_every,
            )  # fmt: skip

    async def _kill(self, now: float) -> None:
        """Carry out the faults that are due; one that finds no victim stays due."""
        faults = self._faults or []
        for fault in [fault for fault in faults if fault.due_at <= now]:
            victim = choose_victim(fault, self._fleet.lives, seed=self._options.seed)
            if victim is None:
                continue
            faults.remove(fault)
            leading = ", which leads an open round" if victim.open_rounds else ""
            await self._fleet.kill(victim)
            self._restarts.append((now + RESTART_AFTER, victim.number))
            self._view.say(f"killed peer {victim.number}{leading} ({fault.kind})")

    async def _start_again(self, now: float) -> None:
        for due in [one for one in self._restarts if one[0] <= now]:
            self._restarts.remove(due)
            await self._fleet.start(due[1])
            self._view.say(f"started peer {due[1]} again")

    async def _let_one_more_join(self) -> None:
        self._late_joined = True
        number = HOST + self._options.num_peers
        await self._fleet.start(number)
        self._view.say(f"started peer {number}, the late joiner")

    def _has_reported(self, life: Life) -> bool:
        report = life.last("report")
        return report is not None and report.at >= self._reports_from

    def _is_settled(self) -> bool:
        """Whether the latest reports name the same heads and nothing that is pending."""
        reports = [life.last("report") for life in self._fleet.running]
        if not reports:
            return False
        heads: set[tuple[str, ...]] = set()
        for report in reports:
            if report is None or any(tally["pending"] for tally in report.fields["tallies"]):
                return False
            heads.add(tuple(head["commit"] for head in report.fields["heads"]))
        return len(heads) == 1
