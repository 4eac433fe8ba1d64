"""The study in order: the paper's part, which takes some seconds, then the volunteers, size by size."""

from collections.abc import Callable
from dataclasses import dataclass

from p2ptrain.goodput.all_reduce import AllReduce, AllReduceResult, tuned
from p2ptrain.goodput.failures import Cell, simulate_table
from p2ptrain.goodput.heterogeneity import PolicyResult, simulate_policies
from p2ptrain.goodput.options import GoodputOptions
from p2ptrain.goodput.scavenging import simulate_scavenging
from p2ptrain.goodput.sessions import Plan, num_departures, seconds_on
from p2ptrain.goodput.volunteers import Budget, OutOfTime, VolunteerResult, VolunteerRun, simulate_volunteers
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
    left_out: str = ""
    """Why p2ptrain's own peers were not run at this size, or not to the end."""


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
    rows: list[VolunteerRow] = []
    for num_peers in options.peers:
        plan = run.sessions.plan(num_peers, run.seconds, seed=options.seed)
        ours, left_out = _ours(num_peers, plan, options, run, budget, on_progress)
        rows.append(_row(num_peers, plan, run, options.seed, ours, left_out))
    return rows


def _ours(
    num_peers: int,
    plan: Plan,
    options: GoodputOptions,
    run: VolunteerRun,
    budget: Budget,
    on_progress: Callable[[str], None],
) -> tuple[VolunteerResult | None, str]:
    expected = budget.expected_seconds(num_peers)
    if expected > budget.seconds_left():
        left = max(0.0, budget.seconds_left()) / 60.0
        return None, f"needs about {expected / 60.0:.0f} minutes, {left:.0f} of --minutes {options.minutes:g} are left"
    try:
        return simulate_volunteers(num_peers, plan, run, seed=options.seed, budget=budget, on_progress=on_progress), ""
    except OutOfTime as reason:
        return None, f"{reason} of --minutes {options.minutes:g}"


def _row(
    num_peers: int, plan: Plan, run: VolunteerRun, seed: int, ours: VolunteerResult | None, left_out: str
) -> VolunteerRow:
    every_step = AllReduce(step_seconds=run.step_seconds)
    every_round = AllReduce(step_seconds=run.step_seconds, steps_per_round=run.config.rounds.inner_steps)
    return VolunteerRow(
        num_peers=num_peers,
        num_departures=num_departures(plan, run.seconds),
        time_on=seconds_on(plan, run.seconds) / (num_peers * run.seconds),
        all_reduce=tuned(plan, run.seconds, seed=seed, model=every_step),
        local_sgd=tuned(plan, run.seconds, seed=seed, model=every_round),
        p2ptrain=ours,
        left_out=left_out,
    )
