"""Volunteers come and go.

How long a session lasts is drawn anew each time. Measured sessions in volunteer computing and file sharing have heavy
tails: most are short, a few are very long, so the mean says little (Javadi et al. 2011 fit Weibull and lognormal to
SETI@home's hosts; Stutzbach and Rejaie 2006 to three peer-to-peer networks).

    churn = Churn(swarm, ChurnConfig(sessions=SessionsConfig(...)))
    churn.start()
"""

import asyncio
import math
from collections.abc import Coroutine
from random import Random
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from p2ptrain.config import Fraction, Section
from p2ptrain.errors import P2PTrainError
from p2ptrain.ids import digest

if TYPE_CHECKING:
    from p2ptrain.sim.swarm import SimSwarm

RETRY_SECONDS: Final = 30.0  # after a start that failed
LEAST_SECONDS: Final = 1.0  # of a session or a pause

DEFAULT_SHAPES: Final = {"exponential": 1.0, "weibull": 0.6, "pareto": 1.8, "lognormal": 1.2, "constant": 1.0}

Minutes = Annotated[float, Field(gt=0.0, le=1e6)]


class Durations(Section):
    """A distribution of durations, by its mean and the shape of its tail."""

    kind: Literal["exponential", "weibull", "pareto", "lognormal", "constant"] = "exponential"
    """`exponential`: without memory, so that departures are a Poisson process. The others but `constant`: heavy tails."""
    mean_minutes: Minutes = 60.0
    shape: Annotated[float, Field(gt=0.0, le=100.0)] | None = None
    """Of `weibull`: k, heavy below 1. Of `pareto`: alpha, above 1, heavier the closer to it. Of `lognormal`: sigma."""

    @model_validator(mode="after")
    def _has_a_mean(self) -> "Durations":
        if self.kind == "pareto" and self.shape is not None and self.shape <= 1.0:
            raise ValueError(f"shape = {self.shape:g}: a pareto distribution has a mean only for a shape above 1")
        return self

    def draw(self, chance: Random) -> float:
        """Return a duration in seconds."""
        mean = 60.0 * self.mean_minutes
        shape = self.shape if self.shape is not None else DEFAULT_SHAPES[self.kind]
        if self.kind == "exponential":
            seconds = chance.expovariate(1 / mean)
        elif self.kind == "weibull":
            seconds = chance.weibullvariate(mean / math.gamma(1 + 1 / shape), shape)
        elif self.kind == "pareto":
            seconds = mean * (shape - 1) / shape * chance.paretovariate(shape)
        elif self.kind == "lognormal":
            seconds = chance.lognormvariate(math.log(mean) - shape**2 / 2, shape)
        else:
            seconds = mean
        return max(LEAST_SECONDS, seconds)


class SessionsConfig(Section):
    """How long volunteers stay, and what becomes of them; [sessions] of a network profile."""

    on: Durations = Durations(kind="weibull", mean_minutes=120.0)
    """How long a peer takes part."""
    off: Durations = Durations(kind="lognormal", mean_minutes=60.0)
    """How long it is away before it comes back with its identity and its disk."""
    share_gone: Fraction = 0.1
    """Of those that end a session, who never comes back."""
    share_replaced: Fraction = 1.0
    """Of those that never come back, whose place a newcomer takes after the time that they would have been away."""
    share_graceful: Fraction = 0.5
    """Of those that end a session, who says goodbye; the others are killed."""
    share_power_cut: Fraction = 0.2
    """Of those that are killed, whose machine loses its power."""


class ChurnConfig(Section):
    """[churn] of a scenario: sessions, a steady replacement, or both."""

    sessions: SessionsConfig | None = None
    replace_share: Fraction = 0.0
    """Every `every_minutes`, this share of the peers is killed for good, and as many newcomers join."""
    every_minutes: Minutes = 10.0
    from_minutes: Annotated[float, Field(ge=0.0, le=1e6)] = 0.0
    until_minutes: Minutes | None = None
    """When it ends; peers that are away then still come back. None: with the scenario."""
    spare: list[Annotated[int, Field(ge=1)]] = []
    """Numbers of peers that stay."""
    least_alive: Annotated[int, Field(ge=1)] = 1
    """Nobody goes while so few are alive: the session goes on instead."""


class Churn:
    """Lets the peers of a swarm come and go until it is stopped. Its choices follow from the swarm's seed."""

    def __init__(self, swarm: "SimSwarm", config: ChurnConfig) -> None:
        self._swarm, self._config = swarm, config
        self._tasks: list[asyncio.Task[None]] = []
        self._away: dict[str, None] = {}
        self._is_over = False
        self.num_sessions = 0
        """That have ended."""
        self.num_newcomers = 0

    def start(self) -> None:
        """Begin now: who is alive has begun its session just now."""
        config, swarm = self._config, self._swarm
        if config.sessions is not None:
            for host in swarm.host_names:
                self._begin_sessions(host)
        if config.replace_share:
            self._spawn(self._replace_for_ever(self._chance("replace")))

    def stop(self) -> None:
        """Let nobody go any more; who is away still comes back in its time."""
        self._is_over = True

    @property
    def away(self) -> list[str]:
        """Hosts that are away and will come back."""
        return list(self._away)

    def cancel(self) -> None:
        """End everything; who is away stays away."""
        self._is_over = True
        for task in self._tasks:
            task.cancel()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._tasks = [task for task in self._tasks if not task.done()]
        self._tasks.append(self._swarm.spawn(coroutine))

    def _chance(self, what: str) -> Random:
        return Random(digest("churn", f"{self._swarm.seed} {what}".encode()))

    def _may_go(self, host: str) -> bool:
        spared = {self._swarm.host_names[number - 1] for number in self._config.spare}
        enough = len(self._swarm.peers) > self._config.least_alive
        return not self._is_over and host in self._swarm.peers and host not in spared and enough

    # Sessions

    def _begin_sessions(self, host: str) -> None:
        if self._config.sessions is not None:
            self._spawn(self._live(host, self._config.sessions, self._chance(host)))

    async def _live(self, host: str, sessions: SessionsConfig, chance: Random) -> None:
        """Take part and be away in turns, until it never comes back."""
        while not self._is_over:
            await asyncio.sleep(sessions.on.draw(chance))
            if not self._may_go(host):
                continue
            self.num_sessions += 1
            await self._go(host, sessions, chance)
            is_gone = chance.random() < sessions.share_gone
            is_replaced = chance.random() < sessions.share_replaced
            seconds = sessions.off.draw(chance)
            if is_gone and not is_replaced:
                return
            self._away[host] = None
            await asyncio.sleep(seconds)
            if is_gone:
                await self._replace(host)
                return
            await self._come_back(host)

    async def _go(self, host: str, sessions: SessionsConfig, chance: Random) -> None:
        is_graceful = chance.random() < sessions.share_graceful
        loses_power = chance.random() < sessions.share_power_cut
        if is_graceful:
            await self._swarm.leave(host)
        else:
            self._swarm.kill(host, power_cut=loses_power)

    async def _come_back(self, host: str) -> None:
        while host not in self._swarm.peers:
            try:
                await self._swarm.start_again(host)
            except P2PTrainError:  # noted by the swarm; a user would try again a little later
                await asyncio.sleep(RETRY_SECONDS)
        self._away.pop(host, None)

    async def _replace(self, gone: str) -> None:
        self.num_newcomers += 1
        name = self._swarm.new_host()
        self._away.pop(gone, None)
        self._away[name] = None
        await self._come_back(name)
        self._begin_sessions(name)

    # Steady replacement

    async def _replace_for_ever(self, chance: Random) -> None:
        while not self._is_over:
            await asyncio.sleep(60.0 * self._config.every_minutes)
            candidates = [host for host in self._swarm.peers if self._may_go(host)]
            count = min(len(candidates), round(self._config.replace_share * len(self._swarm.peers)))
            for host in chance.sample(candidates, count):
                if self._may_go(host):
                    self._swarm.kill(host)
                    self._away[host] = None
                    self._spawn(self._replace(host))
