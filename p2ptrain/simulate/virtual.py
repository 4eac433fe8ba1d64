"""The story of a simulation in virtual time: one process, hours in minutes, and the same judge as for real processes.

    start    the host, then the others, one after the other; on the network and the devices that the profile draws
    train    for the hours that were asked for; peers come and go by the network's sessions, faults are those of the scenario
    drain    nobody trains any more; what is pending is merged
    judge    by a last report of everybody, exactly as `simulate` judges real processes (judge.py)

What the command line asks for becomes a scenario (sim/scenario.py); a scenario file is played as it is.
"""

import asyncio
import math
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from rich.console import Console

from p2ptrain.config import DataConfig, RunConfig, load_run_config
from p2ptrain.errors import DataError, ExitCode, P2PTrainError, StorageError
from p2ptrain.events import Event
from p2ptrain.monitor.observe import report
from p2ptrain.peer import PeerOptions
from p2ptrain.run import HeldOut
from p2ptrain.runtime import Clock
from p2ptrain.sim.checkers import Violation
from p2ptrain.sim.churn import ChurnConfig
from p2ptrain.sim.faults import Fault, Join, Kill, Who
from p2ptrain.sim.ports import WALL_START
from p2ptrain.sim.profiles import NetworkProfile, load_network_profile
from p2ptrain.sim.scenario import Outcome, Scenario, load_scenario, run_scenario
from p2ptrain.sim.swarm import SimSwarm
from p2ptrain.sim.trace import Trace
from p2ptrain.simulate.judge import Observation, Summary, judge
from p2ptrain.simulate.lives import End, Life
from p2ptrain.simulate.options import MAX_TORCH_PEERS, VirtualOptions
from p2ptrain.simulate.progress import VirtualView, verdict
from p2ptrain.simulate.report import write_virtual_report
from p2ptrain.simulate.series import Series
from p2ptrain.training.corpus import Corpus, load_corpus
from p2ptrain.training.preparation import Training
from p2ptrain.training.task import make_task, tensor_specs

NUM_LOOKS: Final = 300  # at the swarm over the whole run: what the plots are drawn from
CROWD: Final = 64  # peers of whom nobody wants to read who met whom
RAISE_WITHIN: Final = 120.0  # virtual seconds in which all peers begin to join
RESTART_AFTER: Final = 60.0  # virtual seconds that a killed peer stays dead
CHATTY: Final = frozenset({"progress", "adopted", "peer-up", "peer-down", "round-called", "reachability"})


class ViolationError(P2PTrainError):
    """An invariant was broken: a bug of p2ptrain, found."""

    exit_code = ExitCode.VIOLATION


def simulate_virtually(options: VirtualOptions, out: Console, clock: Clock) -> Summary:
    """Run a swarm in virtual time and return the summary; with a report folder, write it too.

    Raises ConfigError for what makes no sense, ViolationError when a checker complains, KeyboardInterrupt after the
    report of what was seen was written.
    """
    options.check()
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
            raise ViolationError(f"{violation}\nreplay it with: {replay_command(options)}") from None
        except KeyboardInterrupt:
            conclude(simulation, options, view, interrupted=True)
            raise
        return conclude(simulation, options, view)


def replay_command(options: VirtualOptions) -> str:
    """Return the command that tells the same story again."""
    words = ["p2ptrain simulate", options.run, "--virtual"]
    if options.scenario is not None:
        words.append(f"--scenario {options.scenario}")
    else:
        words.append(f"--peers {options.num_peers} --network {options.network} --hours {options.hours:g}")
        words += ["--no-churn"] * (not options.churn) + [f"--learner {options.learner}"] * (options.learner is not None)
        for name in ("step_seconds", "kill_one_every", "kill_leader_every", "late_join_at"):
            value = getattr(options, name)
            words += [f"--{name.replace('_', '-')} {value:g}"] * (value is not None)
    return " ".join([*words, f"--seed {options.seed}"])


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be simulated."""

    scenario: Scenario
    config: RunConfig
    seed: int
    network: NetworkProfile | None
    is_stand_in: bool
    data: str
    words: str
    """For the user: what is simulated, in a line."""


def make_plan(options: VirtualOptions) -> Plan:
    """Return the scenario that the options ask for, with everything that has to be read; ConfigError, DataError."""
    if options.scenario is not None:
        scenario = load_scenario(options.scenario)
        scenario = scenario.model_copy(update={"run": options.run, "seed": options.seed or scenario.seed})
        network = load_network_profile(scenario.network) if scenario.network else None
        config = scenario.config()
    else:
        config = load_run_config(options.run)
        network = load_network_profile(options.network)
        scenario = _scenario(options, config, network)
        config = scenario.config()
    is_stand_in = config.model.kind == "quadratic"
    learner = "stand-in: a noisy quadratic" if is_stand_in else f"torch: {num_parameters(config):,} parameters"
    where = f"network {network.name}" if network is not None else f"{scenario.latency_ms:g} ms apart"
    words = (
        f"{scenario.peers} peers, {where}, {scenario.minutes / 60:g} virtual hours, seed {scenario.seed}, learner {learner}, "
        f"{scenario.step_seconds:g} s a step on the reference device"
    )
    return Plan(
        scenario=scenario, config=config, seed=scenario.seed, network=network, is_stand_in=is_stand_in, data=options.data, words=words
    )  # fmt: skip


def num_parameters(config: RunConfig) -> int:
    return sum(spec.num_elements for spec in tensor_specs(config))


def _scenario(options: VirtualOptions, config: RunConfig, network: NetworkProfile) -> Scenario:
    is_quadratic = config.model.kind == "quadratic"
    learner = options.learner or ("stand-in" if is_quadratic or options.num_peers > MAX_TORCH_PEERS else "torch")
    faults: list[Fault] = []
    seconds = 3600.0 * options.hours
    targets: tuple[tuple[float | None, Who], ...] = (
        (options.kill_one_every, "any"),
        (options.kill_leader_every, "leader"),
    )
    for every, target in targets:
        due_at = every or math.inf
        while due_at < seconds - RESTART_AFTER:
            faults.append(Kill(kind="kill", at=due_at, peers=target, restart_after=RESTART_AFTER))
            due_at += every or math.inf
    if options.late_join_at is not None:
        faults.append(Join(kind="join", at=options.late_join_at))
    sessions = network.sessions if options.churn else None
    return Scenario(
        name="command-line",
        run=options.run,
        learner="stand-in" if learner == "stand-in" else "own",
        peers=options.num_peers,
        network=options.network,
        seed=options.seed,
        step_seconds=options.step_seconds or 1.0,
        seconds_between_starts=min(1.0, RAISE_WITHIN / options.num_peers),
        minutes=60.0 * options.hours,
        faults=faults,
        churn=ChurnConfig(sessions=sessions, spare=[1]) if sessions is not None else None,
    )


class VirtualSimulation:
    """Plays a plan and remembers what the judge and the plots want to know."""

    def __init__(self, plan: Plan, view: VirtualView) -> None:
        self.plan, self._view = plan, view
        self.swarm = SimSwarm(
            plan.config, seed=plan.seed, latency=plan.scenario.latency_ms / 1000, network=plan.network,
            use_directory=plan.scenario.directory, step_seconds=plan.scenario.step_seconds,
        )  # fmt: skip
        self.recorder = Recorder(self.swarm, thin=60.0 * plan.scenario.minutes / NUM_LOOKS)
        self.series = Series(self.swarm)
        self.outcome: Outcome | None = None
        self.began_at = 0.0
        self.stopped_at = 0.0
        self.reports_from = math.inf
        if not plan.is_stand_in:
            self.swarm.make_options = lambda **given: SharedTextOptions(data=plan.data, **given)

    def run(self) -> None:
        """Play the plan; Violation, or KeyboardInterrupt, ends it early."""
        self.swarm.run(self._story())

    async def _story(self) -> None:
        looking = self.swarm.spawn(self._look())
        try:
            self.outcome = await run_scenario(self.plan.scenario, self.swarm, on_tick=self._tick, on_stop=self._stop)
            self.reports_from = WALL_START + self.swarm.now
            for peer in list(self.swarm.peers.values()):
                await report(peer, rss_bytes=0)
        finally:
            looking.cancel()
            self.recorder.close()
            self.series.look()
            self.stopped_at = self.stopped_at or WALL_START + self.swarm.now

    def _stop(self) -> None:
        self.stopped_at = WALL_START + self.swarm.now

    def _tick(self, fraction: float) -> None:
        self.began_at = self.began_at or self.swarm.now
        self._view.update(self.swarm, fraction)

    async def _look(self) -> None:
        while True:
            self.series.look()
            self._view.update(self.swarm, None)
            await asyncio.sleep(max(1.0, 60.0 * self.plan.scenario.minutes / NUM_LOOKS))


class Recorder:
    """Writes down the lives of a swarm as the supervisor of real processes does, in true time."""

    def __init__(self, swarm: SimSwarm, *, thin: float) -> None:
        """`thin`: seconds between two progress events that are kept of each life; what lies between is added up."""
        self.lives: list[Life] = []
        self._swarm, self._thin = swarm, max(1.0, thin)
        self._open: dict[str, Life] = {}
        self._drawn: dict[str, list[int]] = {}
        self._kept_at: dict[str, float] = {}
        self._is_closed = False
        swarm.on_life = self._life
        swarm.on_event = self._event
        swarm.keeps_event = lambda event: event.kind not in CHATTY

    def close(self) -> None:
        """What happens from now on is the end of the simulation, not of a peer."""
        self._is_closed = True

    def _now(self) -> float:
        return WALL_START + self._swarm.now

    def _life(self, host: str, what: str) -> None:
        if self._is_closed:
            return
        if what == "began":
            life = self._open[host] = Life(number=self._swarm.host_names.index(host) + 1, born_at=self._now())
            self.lives.append(life)
        elif host in self._open:
            self._open.pop(host).close(End.KILLED if what == "killed" else End.LEFT, self._now())
            self._drawn.pop(host, None)
            self._kept_at.pop(host, None)

    def _event(self, host: str, event: Event) -> None:
        life = self._open.get(host)
        if life is None or (event.kind in ("peer-up", "peer-down") and len(self._swarm.host_names) > CROWD):
            return
        event = replace(event, at=self._now())
        if event.kind == "progress":
            drawn = self._drawn.setdefault(host, [])
            drawn += event.fields["drawn"]
            if event.at - self._kept_at.get(host, -math.inf) < self._thin:
                return
            self._kept_at[host] = event.at
            event = replace(event, fields={**event.fields, "drawn": drawn})
            self._drawn[host] = []
        life.hear([event])


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedTextOptions(PeerOptions):
    """Options of a peer that shares the text with all others in this process: it is read once."""

    def prepare(self, config: RunConfig, held_out: HeldOut | None) -> Training:
        corpus = _shared_corpus(config.data, self.data)
        if held_out is not None and list(held_out) != list(corpus.validation_manifest()):
            raise DataError("this machine's text is not that of the run's held-out files")
        corpus = _for_run(corpus)
        task = make_task(config, corpus, threads=1, device="cpu")
        return Training(task=task, evaluator=task.evaluator(), corpus=corpus)


@lru_cache(maxsize=1)
def _shared_corpus(data: DataConfig, own_path: str) -> Corpus:
    return load_corpus(data, own_path=own_path)


@lru_cache(maxsize=1)
def _for_run(corpus: Corpus) -> Corpus:
    return corpus.for_run(corpus.validation_manifest())


def conclude(
    simulation: VirtualSimulation, options: VirtualOptions, view: VirtualView, *, interrupted: bool = False
) -> Summary:
    """Judge what was seen; tell it, and write it if that was asked for."""
    lives = simulation.recorder.lives
    trained_from = min((life.trained_from for life in lives if life.trained_from), default=WALL_START)
    alive = sorted(life.number for life in lives if life.is_running)
    seen = Observation(
        config=simulation.plan.config, num_peers=simulation.plan.scenario.peers, expected=alive, lives=lives,
        trained_from=trained_from, stopped_at=simulation.stopped_at, reports_from=simulation.reports_from, interrupted=interrupted,
    )  # fmt: skip
    summary = {**judge(seen), **_virtual_facts(simulation, view)}
    for line in verdict(summary):
        view.say(line)
    for failure in simulation.outcome.failures if simulation.outcome else []:
        view.say(f"NOT MET: {failure}")
    if options.report is not None:
        write_virtual_report(
            options.report, summary, lives, trained_from, simulation.series, simulation.plan.config.fragments.count
        )
        view.say(f"wrote {options.report}")
    return summary


def _virtual_facts(simulation: VirtualSimulation, view: VirtualView) -> Summary:
    """Return what only the outside of a simulated world knows."""
    swarm, plan, outcome = simulation.swarm, simulation.plan, simulation.outcome
    return {
        "virtual": True,
        "utilisation": None,  # a simulated step takes no time of any processor
        "seed": plan.seed,
        "network": plan.network.name if plan.network is not None else "",
        "learner": "stand-in" if plan.is_stand_in else "torch",
        "virtual_hours": round(plan.scenario.minutes / 60, 4),
        "real_seconds": round(view.seconds, 1),
        "num_messages": simulation.series.num_messages,
        "bytes_sent_per_peer": simulation.series.bytes_sent_per_peer(),
        "staleness": round(simulation.series.mean_staleness(), 3),
        "participation_of_group_limit": round(simulation.series.participation(), 4),
        "num_adoptions_checked": swarm.checkers.num_adoptions,
        "agreed_after_seconds": None
        if outcome is None or outcome.agreed_after is None
        else round(outcome.agreed_after, 1),
        "expectations_not_met": outcome.failures if outcome is not None else [],
    }
