"""The hunt: seeds spread over worker processes, what they found, and the smallest scenario that still shows it."""

import asyncio
import json
import os
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TextIO

from rich.console import Console

from p2ptrain.config import load_run_config
from p2ptrain.errors import ConfigError
from p2ptrain.explore.matrix import coverage, impossible, matrix, rarest
from p2ptrain.explore.plan import MAX_PEERS, Plan, draw_plan, load_plan
from p2ptrain.explore.shrink import Shrinker
from p2ptrain.explore.story import INNER_STEPS, STEP_SECONDS, Outcome, Story, hunt_config, make_hunted_swarm
from p2ptrain.explore.worker import outcome_from_json
from p2ptrain.monitor.view import clock_time
from p2ptrain.runtime import Clock
from p2ptrain.sim.profiles import load_network_profile
from p2ptrain.sim.trace import Trace

SEED_TIMEOUT: Final = 600.0  # s of real time after which a seed counts as one that never ends
LINE_INTERVAL: Final = 5.0  # s between two lines of progress
LINE_BYTES: Final = 64 * 1024 * 1024  # the longest answer of a worker
MIN_HITS: Final = 20  # of each cell in a thousand seeds


@dataclass(frozen=True, kw_only=True)
class ExploreOptions:
    """What `p2ptrain explore` was asked for."""

    run: str
    network: str = ""
    num_seeds: int = 100
    first_seed: int = 0
    minutes: float = 10.0
    peers: int = 8
    num_faults: int = 20
    jobs: int = 0
    """Worker processes; 0: as many as there are cores."""
    replay: str = ""
    """A seed, or the file of a plan."""
    report: Path | None = None
    trace: Path | None = None
    """Where a replay writes all that happens."""

    def check(self) -> None:
        """Raise ConfigError for what no hunt can be made of, before any process starts."""
        load_run_config(self.run)
        if self.network:
            load_network_profile(self.network)
        if self.trace is not None and not self.replay:
            raise ConfigError("--trace goes with --replay: a hunt of many seeds has no one story to write")
        if self.first_seed + self.num_seeds > 2**31:
            raise ConfigError(f"--first-seed {self.first_seed} --seeds {self.num_seeds}: seeds end at 2147483647")
        if not 2 <= self.peers <= MAX_PEERS:
            raise ConfigError(f"--peers {self.peers}: a hunt has 2 to {MAX_PEERS} peers")

    def plan_of(self, seed: int) -> Plan:
        return draw_plan(seed, network=self.network, peers=self.peers, minutes=self.minutes, num_faults=self.num_faults)

    def replayed(self) -> Plan:
        """Return the plan to replay; ConfigError when it is neither a seed nor a file of one."""
        text = self.replay
        if text.isascii() and text.isdigit():
            if int(text) >= 2**31:
                raise ConfigError(f"--replay {text}: a seed is a whole number below 2147483648")
            return self.plan_of(int(text))
        if not text.endswith(".toml"):
            raise ConfigError(f"--replay {text}: a seed (a whole number), or a .toml file that a hunt has written")
        return load_plan(Path(text))


@dataclass(kw_only=True)
class Hunt:
    """What a hunt has found so far."""

    options: ExploreOptions
    outcomes: list[Outcome] = field(default_factory=list)
    smallest: Outcome | None = None
    """The smallest failing seed's smallest failing plan."""
    seconds: float = 0.0

    @property
    def failures(self) -> list[Outcome]:
        return sorted((one for one in self.outcomes if one.failed), key=lambda one: one.plan.seed)

    def summary(self) -> dict[str, Any]:
        counts = coverage(cell for outcome in self.outcomes for _, cell, _ in outcome.hits)
        (phase, role, kind), least = rarest(counts)
        return {
            "seeds": len(self.outcomes), "first_seed": self.options.first_seed, "network": self.options.network,
            "minutes": self.options.minutes, "peers": self.options.peers, "faults": self.options.num_faults,
            "seconds": round(self.seconds, 1), "messages": sum(one.num_messages for one in self.outcomes),
            "faults_hit": sum(len(one.hits) for one in self.outcomes), "cells": len(counts),
            "rarest_cell": f"{phase} {role} {kind}", "rarest_hits": least,
            "failures": [
                {"seed": one.plan.seed, "rule": one.rule, "at": one.at, "message": one.failure} for one in self.failures
            ],
            "coverage": {" ".join(cell): count for cell, count in sorted(counts.items())},
        }  # fmt: skip


async def explore(options: ExploreOptions, console: Console, clock: Clock) -> Hunt:
    """Hunt, tell how it goes, and write what was found."""
    options.check()
    hunt = Hunt(options=options)
    console.print(
        f"hunting on {options.network or 'a plain network'}: {options.num_seeds} seeds from {options.first_seed}, each "
        f"{options.peers} peers, {options.minutes:g} minutes, {options.num_faults} faults; {options.run} with the quadratic, "
        f"P = 2, H = {INNER_STEPS}, inner steps of {STEP_SECONDS:g} s",
        soft_wrap=True, highlight=False,
    )  # fmt: skip
    if options.report is not None:
        _make_folder(options.report)
    began_at = clock.monotonic()
    seeds = deque(range(options.first_seed, options.first_seed + options.num_seeds))
    crew = Crew(options.run, options.jobs or len(os.sched_getaffinity(0)))
    try:
        progress = Progress(hunt, console, clock)
        await asyncio.gather(*(_work(crew, place, seeds, progress) for place in range(crew.size)))
        hunt.seconds = clock.monotonic() - began_at
        if hunt.failures:
            first = hunt.failures[0]
            console.print(
                f"seed {first.plan.seed} is the smallest of {len(hunt.failures)} that failed; making it smaller …"
            )
            say = lambda words: console.print(f"  {words}", highlight=False)  # noqa: E731
            hunt.smallest = await Shrinker(crew.run_first, first, say).shrink()
    finally:
        await crew.dismiss()
    _report(hunt, console)
    return hunt


def replay(options: ExploreOptions, console: Console) -> Outcome:
    """Run one plan here, and tell what became of it."""
    options.check()
    plan = options.replayed()
    if plan.network:
        load_network_profile(plan.network)
    story = Story(hunt_config(load_run_config(options.run)), plan, make_hunted_swarm)
    with ExitStack() as files:
        if options.trace is not None:
            Trace(story.swarm, files.enter_context(_open(options.trace)))
        outcome = story.run()
    for number, cell, at in sorted(outcome.hits, key=lambda hit: hit[2]):
        console.print(f"{at:9.3f} s  fault {number}: {cell[2]} on the {cell[1]} while {cell[0]}", highlight=False)
    if outcome.failed:
        for line in outcome.events:
            console.print(f"  {line[:300]}", highlight=False, soft_wrap=True, markup=False)
        console.print(outcome.failure, highlight=False, soft_wrap=True, markup=False)
    else:
        console.print(
            f"seed {plan.seed}: nothing found in {outcome.at:.0f} virtual seconds, versions {outcome.versions}"
        )
    return outcome


async def _work(crew: "Crew", place: int, seeds: deque[int], progress: "Progress") -> None:
    while seeds:
        outcome = await crew.run(progress.hunt.options.plan_of(seeds.popleft()), place)
        progress.note(outcome)


class Crew:
    """The worker processes. One that dies, or does not answer, is replaced; what it ran counts as a failure."""

    def __init__(self, run: str, size: int) -> None:
        self._run, self.size = run, size
        self._processes: dict[int, asyncio.subprocess.Process] = {}

    async def run_first(self, plan: Plan) -> Outcome:
        """Run a plan on the first worker."""
        return await self.run(plan, 0)

    async def run(self, plan: Plan, place: int) -> Outcome:
        """Return what became of a plan."""
        process = self._processes.get(place) or await self._hire(place)
        assert process.stdin is not None and process.stdout is not None
        try:
            async with asyncio.timeout(SEED_TIMEOUT):
                process.stdin.write(plan.model_dump_json().encode() + b"\n")
                await process.stdin.drain()
                line = await process.stdout.readline()
            if line:
                return outcome_from_json(line)
            reason, rule = f"the worker process ended with exit code {await process.wait()}", "crash"
        except TimeoutError:
            reason, rule = f"no end after {SEED_TIMEOUT:g} s of real time", "endless"
        except (ConnectionError, BrokenPipeError) as error:
            reason, rule = f"the worker process is gone: {error}", "crash"
        await self._fire(place)
        return Outcome(plan=plan, rule=rule, failure=f"seed {plan.seed}: {reason}")

    async def dismiss(self) -> None:
        """End all workers."""
        for place in list(self._processes):
            await self._fire(place)

    async def _hire(self, place: int) -> asyncio.subprocess.Process:
        process = self._processes[place] = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "p2ptrain.explore.worker", self._run, stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE, limit=LINE_BYTES, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        return process

    async def _fire(self, place: int) -> None:
        process = self._processes.pop(place)
        if process.returncode is None:
            process.kill()
        await process.wait()


class Progress:
    """Tells how a hunt goes."""

    def __init__(self, hunt: Hunt, console: Console, clock: Clock) -> None:
        self.hunt, self._console, self._clock = hunt, console, clock
        self._began_at = self._said_at = clock.monotonic()

    def note(self, outcome: Outcome) -> None:
        """Take in what became of a seed."""
        hunt, now = self.hunt, self._clock.monotonic()
        hunt.outcomes.append(outcome)
        if outcome.failed:
            first_line = outcome.failure.splitlines()[0] if outcome.failure else ""
            self._console.print(
                f"FOUND {outcome.rule}: {first_line[:240]}", highlight=False, soft_wrap=True, markup=False
            )
        if now - self._said_at >= LINE_INTERVAL:
            self._said_at = now
            done, total = len(hunt.outcomes), hunt.options.num_seeds
            left = (now - self._began_at) / done * (total - done)
            self._console.print(
                f"{done} of {total} seeds, {len(hunt.failures)} failed, {clock_time(left)} left", highlight=False
            )


def _report(hunt: Hunt, console: Console) -> None:
    options, summary = hunt.options, hunt.summary()
    counts = coverage(cell for outcome in hunt.outcomes for _, cell, _ in outcome.hits)
    lines = [*matrix(counts), "", *(f"- {line}" for line in impossible())]
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    console.print(
        f"{summary['faults_hit']} faults hit, {summary['messages']} messages; least: {summary['rarest_cell']}, "
        f"{summary['rarest_hits']} times",
        soft_wrap=True, highlight=False,
    )  # fmt: skip
    if options.report is not None:
        (options.report / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
        (options.report / "matrix.txt").write_text("\n".join(lines) + "\n")
    if hunt.smallest is None:
        console.print(f"{len(hunt.outcomes)} seeds: nothing found")
        return
    smallest = hunt.smallest
    path = (options.report or Path()) / f"failing-{smallest.plan.seed}.toml"
    path.write_text(f"# {smallest.rule}\n{smallest.plan.to_toml()}")
    console.print(smallest.failure, highlight=False, soft_wrap=True, markup=False)
    for fault in smallest.plan.faults:
        console.print(f"  {fault}", highlight=False)
    console.print(f"replay: p2ptrain explore {options.run} --replay {path}", highlight=False, soft_wrap=True)


def _open(path: Path) -> TextIO:
    try:
        return path.open("w")
    except OSError as error:
        raise ConfigError(f"--trace {path}: {error.strerror}") from None


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--report {folder}: {error.strerror}") from None


def failing_seeds(outcomes: Sequence[Outcome]) -> list[int]:
    """Return the seeds in which something was found, ascending."""
    return sorted(outcome.plan.seed for outcome in outcomes if outcome.failed)
