"""Volunteers with p2ptrain's own peers: the real protocol, on simulated home links, in virtual time.

A bootstrap peer that does not train stands where everybody can dial it and is always there; the others come, sync,
train, and vanish without a word, as a plan of sessions says. Each session is a new process on the same machine, with the
same identity. At the end everybody who is on merges what is pending, as `simulate` does.

Measured, from outside:

    goodput            tokens in the final chains (mean over the fragments) / tokens that always-on peers would have trained
    goodput_while_on   the same, divided by what the peers would have trained in the time that they were on
    trained            tokens that learners trained at all, divided by what always-on peers would have trained

The model is the stand-in `sim-quadratic`, so bytes cost next to nothing: the study is about coming and going. For
all-reduce beside it the same holds.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import fmean
from typing import Final

from p2ptrain.config import RunConfig
from p2ptrain.errors import P2PTrainError
from p2ptrain.events import Event, Events
from p2ptrain.goodput.budget import Budget, OutOfTime
from p2ptrain.goodput.sessions import Plan, Session, Sessions, seconds_on
from p2ptrain.goodput.timeline import chance
from p2ptrain.monitor.view import clock_time
from p2ptrain.sim.compute import REFERENCE
from p2ptrain.sim.ports import SimClock
from p2ptrain.sim.profiles import NetworkProfile
from p2ptrain.sim.swarm import SimSwarm
from p2ptrain.tasks import TaskOwner

TICK: Final = 60.0  # virtual seconds between two looks at the budget
RETRY_INTERVAL: Final = 30.0  # virtual seconds until a volunteer who could not join tries again
ARRIVAL_WINDOW: Final = 60.0  # virtual seconds in which those come that are on at the beginning
DRAIN_INTERVALS: Final = 3.0  # the swarm has so many round intervals to merge what is pending at the end


@dataclass(frozen=True, slots=True, kw_only=True)
class VolunteerRun:
    """What the volunteers train, for how long, from where. Times in seconds."""

    config: RunConfig
    network: NetworkProfile | None
    """None: a plain network, where everybody can dial everybody within 20 ms."""
    seconds: float
    sessions: Sessions = field(default_factory=Sessions)
    step_seconds: float = 15.0
    """One inner step of every volunteer: about what a small GPU needs for a batch of a model that fits it."""

    @property
    def interval(self) -> float:
        return self.config.rounds.inner_steps * self.step_seconds

    @property
    def tokens_per_second(self) -> float:
        return self.config.inner.windows_per_step * self.config.model.context / self.step_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class VolunteerResult:
    """What a swarm came to. Shares from 0 to 1."""

    goodput: float
    goodput_while_on: float
    trained: float
    participation: float
    """Mean over rounds of contributors / live trainers, of whom a leader takes at most G."""
    rounds: float
    """Commits in the final chains, mean over the fragments."""
    dropped: dict[str, float]
    """Shares of the trained tokens that learners gave up, by reason."""
    num_sessions: int
    num_failed_joins: int
    seconds_to_join: float
    """Mean virtual seconds from the start of a process until it trains."""
    real_seconds: float


@dataclass
class _Study:
    """One swarm, and what is counted while it runs."""

    swarm: SimSwarm
    run: VolunteerRun
    clock: SimClock = field(default_factory=SimClock)
    tokens: int = 0
    num_sessions: int = 0
    num_failed_joins: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    join_seconds: list[float] = field(default_factory=list)
    participation: float = 0.0
    heads: list[str] = field(default_factory=list)

    def hear(self, _host: str, event: Event) -> None:
        if event.kind == "dropped":
            reason, tokens = event.fields["reason"], event.fields["tokens"]
            self.dropped[reason] = self.dropped.get(reason, 0) + tokens

    def note_end_of_life(self, host: str) -> None:
        peer = self.swarm.peers.get(host)
        if peer is not None and peer.learner is not None:
            self.tokens += peer.learner.progress.tokens


def simulate_volunteers(
    num_peers: int, plan: Plan, run: VolunteerRun, *, seed: int, budget: Budget, on_progress: Callable[[str], None]
) -> VolunteerResult:
    """Run a swarm of real peers through a plan of sessions; OutOfTime when the budget does not suffice."""
    budget.check("p2ptrain", num_peers)
    began_at = budget.now()
    study = _Study(SimSwarm(run.config, seed=seed, network=run.network, step_seconds=run.step_seconds), run)
    study.swarm.on_event = study.hear
    study.swarm.keeps_event = lambda event: event.kind == "task-failed"  # hours of hundreds of peers fill the memory

    def look() -> None:
        at, spent = study.clock.monotonic(), budget.now() - began_at
        if not budget.seconds_left():
            raise OutOfTime(f"{clock_time(at)} of {clock_time(run.seconds)} virtual time was all that fitted")
        on_progress(
            f"{num_peers} peers: {clock_time(at)} of {clock_time(run.seconds)} virtual time in {clock_time(spent)}, "
            f"{clock_time(spent * (run.seconds / at - 1.0))} to go"
        )

    study.swarm.run(_story(plan, study, seed, look))
    seconds = budget.now() - began_at
    budget.note("p2ptrain", num_peers, seconds)
    return _result(plan, study, seconds)


async def _story(plan: Plan, study: _Study, seed: int, look: Callable[[], None]) -> None:
    swarm, run, clock = study.swarm, study.run, study.clock
    await swarm.host(train=False)
    failures: list[BaseException] = []
    volunteers = TaskOwner(Events(clock), on_failure=failures.append)
    for number, sessions in enumerate(plan):
        arrival = ARRIVAL_WINDOW * chance(seed, "arrival", number).random()
        shifted = [(max(since, arrival), until) for since, until in sessions if until > arrival]
        volunteers.spawn(f"volunteer {number}", _volunteer(shifted, study))
    try:
        while clock.monotonic() < run.seconds and not failures:
            await asyncio.sleep(min(TICK, run.seconds - clock.monotonic()))
            look()
    finally:
        await volunteers.close()
    if failures:
        raise failures[0]
    study.participation = swarm.participation(since=2.0 * run.interval)
    await _drain(study)
    for host in list(swarm.peers):
        study.note_end_of_life(host)
    study.heads = swarm.heads()


async def _volunteer(sessions: list[Session], study: _Study) -> None:
    """Be on when the plan says so, with one machine."""
    swarm, clock = study.swarm, study.clock
    host = swarm.new_host()
    swarm.compute(host).device = REFERENCE
    for since, until in sessions:
        await asyncio.sleep(since - clock.monotonic())
        study.num_sessions += 1
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await _come(host, study)
                await asyncio.Event().wait()
        study.note_end_of_life(host)
        swarm.kill(host, power_cut=True)


async def _come(host: str, study: _Study) -> None:
    """Join, trying again for as long as it takes."""
    while True:
        began_at = study.clock.monotonic()
        try:
            await study.swarm.restart(host)
        except P2PTrainError:
            study.num_failed_joins += 1
            await asyncio.sleep(RETRY_INTERVAL)
        else:
            study.join_seconds.append(study.clock.monotonic() - began_at)
            return


async def _drain(study: _Study) -> None:
    """Let those who are on merge what is pending, for as long as a few rounds take."""
    peers = study.swarm.peers.values()
    for peer in peers:
        peer.drain()

    def is_done() -> bool:
        learners = [peer.learner for peer in peers if peer.learner is not None]
        return not any(tally.pending for learner in learners for tally in learner.tallies())

    with suppress(TimeoutError):
        await study.swarm.until(is_done, timeout=DRAIN_INTERVALS * study.run.interval, every=1.0)


def _result(plan: Plan, study: _Study, real_seconds: float) -> VolunteerResult:
    run, swarm = study.run, study.swarm
    heads = study.heads
    num_rounds = sum(len(swarm.history.chain(head)) for head in heads)
    merged = sum(swarm.history.merged_tokens(heads).values())
    always_on = len(plan) * run.seconds * run.tokens_per_second
    return VolunteerResult(
        goodput=merged / always_on,
        goodput_while_on=merged / (seconds_on(plan, run.seconds) * run.tokens_per_second),
        trained=study.tokens / always_on,
        participation=study.participation,
        rounds=num_rounds / len(heads),
        dropped={reason: tokens / len(heads) / max(1, study.tokens) for reason, tokens in study.dropped.items()},
        num_sessions=study.num_sessions,
        num_failed_joins=study.num_failed_joins,
        seconds_to_join=fmean(study.join_seconds) if study.join_seconds else 0.0,
        real_seconds=real_seconds,
    )
