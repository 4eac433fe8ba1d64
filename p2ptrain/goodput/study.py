"""The study in order: the paper's part, which takes some seconds, then the volunteers, size by size."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from p2ptrain.goodput.all_reduce import AllReduce, AllReduceResult, tuned
from p2ptrain.goodput.budget import Budget, OutOfTime
from p2ptrain.goodput.failures import Cell, simulate_table
from p2ptrain.goodput.heterogeneity import PolicyResult, simulate_policies
from p2ptrain.goodput.hivemind import HivemindResult, simulate_hivemind
from p2ptrain.goodput.options import GoodputOptions
from p2ptrain.goodput.scavenging import simulate_scavenging
from p2ptrain.goodput.sessions import Plan, num_departures, seconds_on
from p2ptrain.goodput.volunteers import VolunteerResult, VolunteerRun, simulate_volunteers
from p2ptrain.monitor.view import clock_time
from p2ptrain.runtime import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperPart:
    """What reproduces the paper."""

    table: dict[str, list[Cell]]
    policies: list[PolicyResult]
    scavenging: dict[str, list[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class VolunteerRow:
    """One size of swarm under every way to train, with the same sessions."""

    num_peers: int
    num_departures: int
    time_on: float
    """Share of all peers' time in which they were on."""
    all_reduce: AllReduceResult
    """Synchronous, every step."""
    local_sgd: AllReduceResult
    """Synchronous, every H steps."""
    p2ptrain: VolunteerResult | None
    hivemind: HivemindResult | None
    left_out: dict[str, str]
    """Why p2ptrain's or hivemind's peers were not run at this size, or not to the end."""


def simulate_paper(seed: int) -> PaperPart:
    """Run the event simulations of the paper's three tables."""
    return PaperPart(
        table=simulate_table(seed=seed),
        policies=simulate_policies(seed=seed),
        scavenging=simulate_scavenging(seed=seed),
    )


def simulate_sizes(
    options: GoodputOptions, run: VolunteerRun, clock: Clock, on_progress: Callable[[str], None]
) -> list[VolunteerRow]:
    """Run the volunteers' part; sizes that do not fit into the rest of the time are left out."""
    budget = Budget(clock, options.minutes * 60.0)
    return [_simulate_size(num_peers, options.seed, run, budget, on_progress) for num_peers in options.peers]


def _simulate_size(
    num_peers: int, seed: int, run: VolunteerRun, budget: Budget, on_progress: Callable[[str], None]
) -> VolunteerRow:
    plan = run.sessions.plan(num_peers, run.seconds, seed=seed)
    every_step = AllReduce(step_seconds=run.step_seconds)
    every_round = replace(every_step, steps_per_round=run.config.rounds.inner_steps)
    left_out: dict[str, str] = {}
    ours, hivemind = None, None
    try:
        ours = simulate_volunteers(num_peers, plan, run, seed=seed, budget=budget, on_progress=on_progress)
    except OutOfTime as reason:
        left_out["p2ptrain"] = str(reason)
    try:
        hivemind = _hivemind(num_peers, plan, run, seed, budget, on_progress)
    except OutOfTime as reason:
        left_out["hivemind"] = str(reason)
    return VolunteerRow(
        num_peers=num_peers,
        num_departures=num_departures(plan, run.seconds),
        time_on=seconds_on(plan, run.seconds) / (num_peers * run.seconds),
        all_reduce=tuned(plan, run.seconds, seed=seed, model=every_step),
        local_sgd=tuned(plan, run.seconds, seed=seed, model=every_round),
        p2ptrain=ours,
        hivemind=hivemind,
        left_out=left_out,
    )


def _hivemind(
    num_peers: int, plan: Plan, run: VolunteerRun, seed: int, budget: Budget, on_progress: Callable[[str], None]
) -> HivemindResult:
    budget.check("hivemind", num_peers)
    expected = budget.expected_seconds("hivemind", num_peers)
    about = "" if expected is None else f", about {clock_time(expected)} to go"
    on_progress(f"{num_peers} peers: hivemind's matchmaking for {clock_time(run.seconds)} of virtual time{about}")
    began_at = budget.now()
    result = simulate_hivemind(num_peers, plan, seconds=run.seconds, interval=run.interval, seed=seed)
    seconds = budget.now() - began_at
    budget.note("hivemind", num_peers, seconds)
    return replace(result, real_seconds=seconds)
