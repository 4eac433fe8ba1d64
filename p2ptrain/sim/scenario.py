"""A scenario: a story of a simulated swarm as a file, and what must be true at its end.

    name = "partition"
    peers = 6
    minutes = 60
    step_seconds = 5.0

    [[faults]]
    kind = "partition"
    at = 600
    left = [1, 2, 3]
    seconds = 900

    [expect]
    heads_agree_within_seconds = 300

The swarm is raised; from then on times count. Faults happen when they are due, churn goes on beside them, and when the
minutes are over the swarm is drained. Then every expectation is judged.
"""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from p2ptrain.config import Count, Fraction, RunConfig, Section, line_of, load_config, load_run_config, validated
from p2ptrain.errors import ConfigError, P2PTrainError
from p2ptrain.sim.churn import Churn, ChurnConfig
from p2ptrain.sim.faults import Fault, FaultBase, Join, Partition, apply
from p2ptrain.sim.profiles import load_network_profile
from p2ptrain.sim.swarm import SimSwarm

TICK: Final = 1.0  # virtual seconds between two looks at the swarm
AGREE_PATIENCE: Final = 3600.0  # virtual seconds after the last fault for which a common head is waited for

Value = int | float | str | bool


class Expect(Section):
    """What must be true; what is not given is not judged. That no checker complains is always expected."""

    heads_agree_within_seconds: Annotated[float, Field(gt=0.0, le=AGREE_PATIENCE)] | None = 600.0
    """After the last fault has ended, all live peers have the same head of every fragment within this time."""
    settles: bool = True
    """At the end everything pending can be merged, and all books are right."""
    alive_at_least: Annotated[int, Field(ge=1)] | None = None
    """Peers that are alive at the end."""
    commits_at_least: Count | None = None
    """Of each fragment."""
    participation_at_least: Fraction | None = None
    """Contributors / live trainers, as a mean over all rounds of the final chains."""
    goodput_at_least: Annotated[float, Field(ge=0.0, le=2.0)] | None = None
    """Tokens in the final chains / tokens that the machines could have trained while their peers ran."""
    merged_share_at_least: Fraction | None = None
    """Of what each peer trained that is alive at the end, in its present life."""
    sides_merged_at_least: Fraction | None = None
    """Of what the peers on each side of each partition trained together."""
    longest_gap_intervals: Annotated[float, Field(gt=0.0, le=1e6)] | None = None
    """Between two commits of a fragment, once the swarm stands, in intervals of H steps of a reference device."""
    loss_falls_to: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """The last validation loss as a fraction of the first."""
    events: list[str] = []
    """Kinds of events that must occur."""
    no_events: list[str] = []
    """Kinds of events that must not."""


class Scenario(Section):
    """A scenario file."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,79}$")]
    story: str = ""
    """One sentence for people."""
    run: str = "sim-quadratic"
    """A name in configs/ or a path to a .toml file."""
    learner: Literal["own", "stand-in"] = "own"
    """`own`: the run's; `stand-in`: the noisy quadratic in its place, with the run's rounds."""
    peers: Annotated[int, Field(ge=1, le=10_000)] = 8
    """How many begin. Who joins later has the next numbers."""
    network: str = ""
    """A name in configs/networks/ or a path; empty: any two peers are `latency_ms` apart, and nothing else."""
    latency_ms: Annotated[float, Field(ge=0.0, le=60_000.0)] = 20.0
    """One way."""
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = 1
    step_seconds: Annotated[float, Field(gt=0.0, le=1e5)] = 5.0
    """Of an inner step on a reference device."""
    minutes: Annotated[float, Field(gt=0.0, le=1e6)] = 30.0
    """For how long it goes on after the swarm stands."""
    together: bool = False
    """Whether all begin at the same instant, instead of one after the other."""
    seconds_between_starts: Annotated[float, Field(gt=0.0, le=3600.0)] | None = None
    """Peers begin so far apart, whether those before have arrived or not."""
    counts_from_first_step: bool = False
    """Whether the minutes count from the first inner step of anybody, as those of real processes do, not from when all
    have joined."""
    bootstrap_trains: bool = True
    directory: bool = False
    """Whether peers take part in the DHT."""
    changes: dict[str, dict[str, Value]] = {}
    """[changes.rounds] and so on: keys of the run config that are another in this scenario."""
    faults: list[Fault] = []
    churn: ChurnConfig | None = None
    expect: Expect = Expect()

    def config(self) -> RunConfig:
        """Return the run config with this scenario's changes."""
        config = load_run_config(self.run)
        values: dict[str, Any] = config.model_dump()
        if self.learner == "stand-in":
            stand_in = load_run_config("sim-quadratic").model_dump()
            values |= {section: stand_in[section] for section in ("model", "data", "inner")}
        for section, keys in self.changes.items():
            values[section] = {**values[section], **keys} if isinstance(values.get(section), dict) else keys
        return validated(RunConfig, values, f"scenario {self.name}, [changes]")

    def swarm(self, *, seed: int | None = None) -> SimSwarm:
        """Return the swarm in which this scenario is to be played; no peer has started yet."""
        return SimSwarm(
            self.config(),
            seed=self.seed if seed is None else seed,
            latency=self.latency_ms / 1000,
            network=load_network_profile(self.network) if self.network else None,
            use_directory=self.directory,
            step_seconds=self.step_seconds,
        )


def load_scenario(path: str | Path) -> Scenario:
    """Return the scenario in a file; ConfigError says in one line, with its place, what is wrong."""
    scenario = load_config(Scenario, str(path), folder="scenarios", what="scenario")
    text = Path(path).read_text()
    num_peers = scenario.peers + sum(fault.count for fault in scenario.faults if isinstance(fault, Join))
    for index, fault in enumerate(scenario.faults):
        keys = ("left", "right") if isinstance(fault, Partition) else ("peers",)
        for key in keys:
            numbers = getattr(fault, key, [])
            missing = [number for number in numbers if number > num_peers] if isinstance(numbers, list) else []
            if missing:
                place = f"{path}:{line_of(text, ['faults', str(index), key])}"
                raise ConfigError(f"{place}: faults.{index}.{key}: there is no peer {missing[0]}, only {num_peers}")
    if scenario.churn is not None:
        missing = [number for number in scenario.churn.spare if number > scenario.peers]
        if missing:
            place = f"{path}:{line_of(text, ['churn', 'spare'])}"
            raise ConfigError(f"{place}: churn.spare: there is no peer {missing[0]}, only {scenario.peers}")
    return scenario


@dataclass
class Outcome:
    """What came of it."""

    seconds: float = 0.0
    """Virtual, from the first start to the end of the minutes."""
    agreed_after: float | None = None
    """Seconds from the end of the last fault to a common head of every fragment; None when there was none."""
    settled: bool = False
    num_alive: int = 0
    versions: list[int] = field(default_factory=list)
    participation: float = 0.0
    goodput: float = 0.0
    merged_shares: dict[str, float] = field(default_factory=dict)
    """By host: what of its present life's work the final chains hold."""
    side_shares: list[float] = field(default_factory=list)
    longest_gap: float = 0.0
    """Seconds."""
    loss_ratio: float = 1.0
    failures: list[str] = field(default_factory=list)
    """Expectations that were not met, a sentence each."""


async def run_scenario(
    scenario: Scenario,
    swarm: SimSwarm,
    *,
    on_tick: Callable[[float], None] = lambda fraction: None,
    on_stop: Callable[[], None] = lambda: None,
) -> Outcome:
    """Play a scenario in a swarm and judge it.

    `on_tick` is told how much of its time is over, from 0 to 1; `on_stop` is called when training is about to stop.
    """
    loop, outcome = asyncio.get_running_loop(), Outcome()
    await _raise(scenario, swarm)
    began_at = await _first_step(swarm, 60.0 * scenario.minutes) if scenario.counts_from_first_step else None
    stood_at = loop.time()
    began_at = stood_at if began_at is None else began_at
    until = max(stood_at + TICK, began_at + 60.0 * scenario.minutes)
    churn = _begin_churn(scenario, swarm)
    faults = [swarm.spawn(_at(stood_at, fault, swarm)) for fault in scenario.faults]
    agreeing = swarm.spawn(_agree(swarm, faults, churn, stood_at, until, scenario))
    while loop.time() < until:
        await asyncio.sleep(min(TICK, until - loop.time()))
        on_tick(min(1.0, (loop.time() - stood_at) / (until - stood_at)))
    if churn is not None:
        churn.stop()
    outcome.seconds = loop.time()
    outcome.agreed_after = await agreeing if scenario.expect.heads_agree_within_seconds is not None else None
    if churn is not None:
        churn.cancel()
    _measure(outcome, scenario, swarm, stood_at)
    on_stop()
    if scenario.expect.settles:
        try:
            await swarm.settle()
            outcome.settled = True
        except TimeoutError:
            outcome.settled = False
    _measure_work(outcome, scenario, swarm)
    outcome.failures = judge(outcome, scenario, swarm)
    return outcome


async def _raise(scenario: Scenario, swarm: SimSwarm) -> None:
    await swarm.host(train=scenario.bootstrap_trains)
    apart = 0.0 if scenario.together else scenario.seconds_between_starts
    if apart is not None:
        joining = []
        for _ in range(scenario.peers - 1):
            await asyncio.sleep(apart)
            joining.append(swarm.spawn(_join(swarm)))
        await asyncio.gather(*joining)
    else:
        for _ in range(scenario.peers - 1):
            await _join(swarm)


async def _first_step(swarm: SimSwarm, patience: float) -> float | None:
    """Return when anybody made the first inner step; wait for it, if need be. None when nobody ever does."""
    with suppress(TimeoutError):
        await swarm.until(lambda: swarm.first_trained_at is not None, timeout=patience)
    return swarm.first_trained_at


async def _join(swarm: SimSwarm) -> None:
    name = swarm.new_host()
    try:
        await swarm.restart(name)
    except P2PTrainError:  # noted by the swarm; on a bad network the first try may fail
        await swarm.bring_back(name)


def _begin_churn(scenario: Scenario, swarm: SimSwarm) -> Churn | None:
    if scenario.churn is None:
        return None
    churn = Churn(swarm, scenario.churn)

    async def from_until() -> None:
        assert scenario.churn is not None
        await asyncio.sleep(60.0 * scenario.churn.from_minutes)
        churn.start()
        if scenario.churn.until_minutes is not None:
            await asyncio.sleep(60.0 * (scenario.churn.until_minutes - scenario.churn.from_minutes))
            churn.stop()

    swarm.spawn(from_until())
    return churn


async def _at(stood_at: float, fault: FaultBase, swarm: SimSwarm) -> float:
    """Let a fault happen when it is due; return when it is over."""
    loop = asyncio.get_running_loop()
    await asyncio.sleep(max(0.0, stood_at + fault.at - loop.time()))
    await apply(fault, swarm)
    return loop.time() + fault.lasts


async def _agree(
    swarm: SimSwarm,
    faults: Sequence[asyncio.Task[float]],
    churn: Churn | None,
    stood_at: float,
    until: float,
    scenario: Scenario,
) -> float | None:
    """Return how long after the last fault all live peers had one head of every fragment."""
    loop = asyncio.get_running_loop()
    over_at = max([stood_at, *(await asyncio.gather(*faults))])
    if churn is not None and scenario.churn is not None:
        minutes = scenario.churn.until_minutes
        over_at = max(over_at, until if minutes is None else stood_at + 60.0 * minutes)
    await asyncio.sleep(max(0.0, over_at - loop.time()))
    try:
        await swarm.until(lambda: bool(swarm.peers) and swarm.heads_agree(), AGREE_PATIENCE, every=0.5)
    except TimeoutError:
        return None
    return loop.time() - over_at


def _measure(outcome: Outcome, scenario: Scenario, swarm: SimSwarm, stood_at: float) -> None:
    """Take what can be said while the swarm still trains."""
    outcome.num_alive = len(swarm.peers)
    if not swarm.peers:
        return
    heads = swarm.heads()
    outcome.participation, outcome.goodput = swarm.participation(), swarm.goodput()
    for head in heads:
        seen = [outcome.seconds, *(commit.seen_at for commit in swarm.history.chain(head)), stood_at]
        seen = [at for at in seen if at >= stood_at]
        gaps = [later - earlier for later, earlier in itertools.pairwise(seen)]
        outcome.longest_gap = max([outcome.longest_gap, *gaps])
    losses = [loss for loss in (event["loss"] for event in swarm.of_kind("validation")) if loss == loss]
    outcome.loss_ratio = losses[-1] / losses[0] if losses else 1.0


def _measure_work(outcome: Outcome, scenario: Scenario, swarm: SimSwarm) -> None:
    """Take what is true of the work once the swarm has settled."""
    if not swarm.peers:
        return
    outcome.versions = swarm.versions()
    books: dict[str, tuple[int, int]] = {}
    for host, peer in swarm.peers.items():
        if peer.learner is not None:
            tallies = peer.learner.tallies()
            books[host] = sum(one.merged for one in tallies), sum(one.trained for one in tallies)
    outcome.merged_shares = {host: _share([one]) for host, one in books.items()}
    for fault in scenario.faults:
        if isinstance(fault, Partition):
            left = [swarm.host_names[number - 1] for number in fault.left]
            right = [swarm.host_names[number - 1] for number in fault.right]
            right = right or [host for host in swarm.host_names if host not in left]
            outcome.side_shares += [_share([books[host] for host in side if host in books]) for side in (left, right)]


def _share(books: Sequence[tuple[int, int]]) -> float:
    trained = sum(one for _, one in books)
    return sum(one for one, _ in books) / trained if trained else 1.0


def judge(outcome: Outcome, scenario: Scenario, swarm: SimSwarm) -> list[str]:
    """Return a sentence for each expectation that was not met."""
    expect, found = scenario.expect, outcome
    failures: list[str] = []

    def least(what: str, value: float, limit: float | None) -> None:
        if limit is not None and value < limit:
            failures.append(f"{what} {value:.3g}; at least {limit:g} was expected")

    within = expect.heads_agree_within_seconds
    if within is not None and (found.agreed_after is None or found.agreed_after > within):
        took = "never" if found.agreed_after is None else f"{found.agreed_after:.0f} s"
        failures.append(f"one head per fragment {took} after the last fault; within {within:g} s was expected")
    if expect.settles and not found.settled:
        failures.append("the swarm did not settle")
    least("peers alive", found.num_alive, expect.alive_at_least)
    least("commits of a fragment", min(found.versions, default=0), expect.commits_at_least)
    least("participation", found.participation, expect.participation_at_least)
    least("goodput", found.goodput, expect.goodput_at_least)
    least(
        "share of a peer's work that is merged",
        min(found.merged_shares.values(), default=0.0),
        expect.merged_share_at_least,
    )
    least("share of a side's work that is merged", min(found.side_shares, default=0.0), expect.sides_merged_at_least)
    if expect.longest_gap_intervals is not None and found.longest_gap > expect.longest_gap_intervals * swarm.interval:
        limit = expect.longest_gap_intervals
        failures.append(f"{found.longest_gap:.0f} s without a commit; at most {limit:g} intervals were expected")
    if expect.loss_falls_to is not None and not found.loss_ratio <= expect.loss_falls_to:
        failures.append(f"loss at {found.loss_ratio:.3g} of the first; at most {expect.loss_falls_to:g} was expected")
    kinds = {event.kind for _, event in swarm.events}
    failures += [f"no event {kind!r}" for kind in expect.events if kind not in kinds]
    failures += [f"an event {kind!r}" for kind in expect.no_events if kind in kinds]
    return failures
