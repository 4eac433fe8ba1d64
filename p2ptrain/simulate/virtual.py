"""The story of a simulation in virtual time: one process, hours in minutes, and the same judge as for real processes.

    start    the host, then the others, on the network and the devices that the profile draws
    train    for as long as was asked for; peers come and go by the network's sessions, faults happen as planned
    drain    nobody trains any more; what is pending is merged
    judge    by a last report of everybody, exactly as `simulate` judges real processes (judge.py)

What is simulated is in plan.py, what is remembered of it in recorder.py and series.py. A Ctrl-C ends it with the report of
what was seen so far; a checker that finds an invariant broken ends it with what a person needs to look further.
"""

import asyncio
import math
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

from rich.console import Console

from p2ptrain.errors import ExitCode, P2PTrainError, StorageError
from p2ptrain.monitor.observe import report
from p2ptrain.peer import PROGRESS_INTERVAL, VALIDATION_INTERVAL
from p2ptrain.runtime import Clock
from p2ptrain.sim.checkers import Violation
from p2ptrain.sim.learners import SharedTraining
from p2ptrain.sim.ports import WALL_START
from p2ptrain.sim.scenario import Outcome, run_scenario
from p2ptrain.sim.swarm import SimSwarm
from p2ptrain.sim.trace import Trace
from p2ptrain.simulate.judge import Observation, Summary, judge
from p2ptrain.simulate.options import VirtualOptions
from p2ptrain.simulate.plan import Plan, make_plan
from p2ptrain.simulate.progress import verdict
from p2ptrain.simulate.recorder import Recorder
from p2ptrain.simulate.report import write_report
from p2ptrain.simulate.series import LiveSeries
from p2ptrain.simulate.virtual_view import VirtualView

NUM_LOOKS: Final = 300  # at the swarm over the whole run: what the plots are drawn from
CROWD: Final = 64  # peers; so many and more give account of themselves less often
MAX_PROGRESS_INTERVAL: Final = 10.0  # seconds: gossip carries what they say, and newcomers go by it


class ViolationError(P2PTrainError):
    """An invariant was broken: a bug of p2ptrain, found."""

    exit_code = ExitCode.VIOLATION


def simulate_virtually(options: VirtualOptions, out: Console, clock: Clock) -> Summary:
    """Run a swarm in virtual time and return the summary; with a report folder, write it too.

    Raises ConfigError for what makes no sense, ViolationError when a checker complains, KeyboardInterrupt after the
    report of what was seen was written.
    """
    plan = make_plan(options)
    with ExitStack() as stack:
        trace = None
        if options.trace is not None:
            try:
                trace = stack.enter_context(options.trace.open("w", encoding="utf-8"))
            except OSError as error:
                raise StorageError(f"--trace {options.trace}: {error.strerror}") from None
        view = stack.enter_context(VirtualView(out, clock))
        view.say(plan.words)
        simulation = VirtualSimulation(plan, view)
        if trace is not None:
            Trace(simulation.swarm, trace)
        try:
            simulation.run()
        except Violation as violation:
            raise ViolationError(f"{violation}\nto see it again: {plan.command}") from None
        except AssertionError as error:  # a task of a peer failed: a bug like any other, and said in the same way
            raise ViolationError(f"{str(error).strip()}\nto see it again: {plan.command}") from None
        except KeyboardInterrupt:
            _conclude(simulation, options, view, interrupted=True)
            raise
        return _conclude(simulation, options, view)


class VirtualSimulation:
    """Plays a plan and remembers what the judge and the plots want to know."""

    def __init__(self, plan: Plan, view: VirtualView) -> None:
        self.plan, self._view = plan, view
        scenario = plan.scenario
        self.swarm = SimSwarm(
            plan.config, seed=scenario.seed, latency=scenario.latency_ms / 1000, network=plan.network,
            use_directory=scenario.directory, step_seconds=scenario.step_seconds,
        )  # fmt: skip
        apart: dict[str, Any] = _intervals(scenario.peers, plan.seconds)
        self.swarm.make_options = partial(self.swarm.make_options, make_training=SharedTraining(plan.data), **apart)
        self.recorder = Recorder(
            self.swarm, curve_interval=plan.seconds / NUM_LOOKS,
            keeps_validations=scenario.expect.loss_falls_to is not None,
        )  # fmt: skip
        self.series = LiveSeries(self.swarm)
        self.outcome: Outcome | None = None
        self.stopped_at = 0.0
        self.reports_from = math.inf
        self.alive: list[int] = []
        """The numbers of the peers that are there at the end."""

    def run(self) -> None:
        """Play the plan; Violation, or KeyboardInterrupt, ends it early."""
        self.swarm.run(self._story())

    async def _story(self) -> None:
        looking = self.swarm.spawn(self._look())
        try:
            self.outcome = await run_scenario(self.plan.scenario, self.swarm, on_tick=self._tick, on_stop=self._stop)
        finally:
            looking.cancel()
            if not self.stopped_at:
                self._stop()
            if self.swarm.checkers.violation is None:
                await self._ask_for_reports()
            self.recorder.close()

    async def _ask_for_reports(self) -> None:
        swarm = self.swarm
        self.reports_from = WALL_START + swarm.now
        self.alive = sorted(swarm.host_names.index(host) + 1 for host in swarm.peers)
        for peer in list(swarm.peers.values()):
            await report(peer, rss_bytes=0)

    def _stop(self) -> None:
        self.stopped_at = WALL_START + self.swarm.now
        self.series.look()
        self.recorder.stop()
        self._view.draining = True

    def _tick(self, fraction: float) -> None:
        self._view.update(self.swarm, fraction)

    async def _look(self) -> None:
        while True:
            self.series.look()
            self._view.update(self.swarm, None)
            await asyncio.sleep(max(1.0, self.plan.seconds / NUM_LOOKS))


def _intervals(num_peers: int, seconds: float) -> dict[str, float]:
    """Return how often a peer gives account of itself and validates: of a crowd nobody reads all of it."""
    if num_peers < CROWD:
        return {}
    apart = seconds / NUM_LOOKS
    return {
        "progress_interval": max(PROGRESS_INTERVAL, min(MAX_PROGRESS_INTERVAL, apart)),
        "validation_interval": max(VALIDATION_INTERVAL, apart),
    }


def _conclude(
    simulation: VirtualSimulation, options: VirtualOptions, view: VirtualView, *, interrupted: bool = False
) -> Summary:
    """Judge what was seen; tell it, and write it if that was asked for."""
    plan, recorder = simulation.plan, simulation.recorder
    trained_from = min((life.trained_from for life in recorder.lives if life.trained_from), default=WALL_START)
    seen = Observation(
        config=plan.config, num_peers=plan.scenario.peers, expected=simulation.alive, lives=recorder.lives,
        trained_from=trained_from, stopped_at=simulation.stopped_at, reports_from=simulation.reports_from,
        interrupted=interrupted, num_double_windows=recorder.draws.num_double,
    )  # fmt: skip
    summary = {**judge(seen), **_virtual_facts(simulation)}
    for line in [
        *verdict(summary),
        *(f"NOT MET: {failure}" for failure in summary["expectations_not_met"]),
        view.spent(),
    ]:
        view.say(line)
    if options.report is not None:
        simulation.series.begin_at(trained_from - WALL_START)
        write_report(
            options.report, summary, recorder.lives, trained_from, config=plan.config, series=simulation.series
        )
        view.say(f"wrote {options.report}")
    return summary


def _virtual_facts(simulation: VirtualSimulation) -> Summary:
    """Return what only the outside of a simulated world knows. All of it follows from the seed."""
    plan, outcome, series = simulation.plan, simulation.outcome, simulation.series
    agreed = outcome.agreed_after if outcome is not None else None
    return {
        "virtual": True,
        "command": plan.command,
        "seed": plan.scenario.seed,
        "network": plan.network.name if plan.network is not None else "",
        "learner": "stand-in" if plan.is_stand_in else "torch",
        "step_seconds": plan.scenario.step_seconds,
        "virtual_hours": round(plan.seconds / 3600.0, 4),
        "goodput_while_on": round(series.looks[-1].goodput, 4) if series.looks else 0.0,
        "staleness": round(series.mean_staleness(), 3),
        "behind": round(series.mean_behind(), 3),
        "num_messages": series.num_messages,
        "bytes_per_machine": series.bytes_sent_per_machine(),
        "num_adoptions_checked": simulation.swarm.checkers.num_adoptions,
        "num_events": dict(sorted(simulation.recorder.num_events.items())),
        "agreed_after_seconds": None if agreed is None else round(agreed, 1),
        "expectations_not_met": outcome.failures if outcome is not None else [],
    }


__all__ = ["ViolationError", "VirtualOptions", "VirtualSimulation", "simulate_virtually"]
