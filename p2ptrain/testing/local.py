"""A swarm of real processes on loopback, driven from ordinary, synchronous code: what `VirtualSwarm` is in virtual time.

    local_swarm.add_peers(3, run="sim-quadratic", step_seconds=0.05)
    local_swarm.run(seconds=10)
    local_swarm.kill(local_swarm.peers[1])
    local_swarm.run(seconds=5)
    assert local_swarm.heads_agree()

Each peer takes some seconds and some hundred megabytes to start, and the machine is whose it is: use it for what only the
real world has, such as sockets, disks, signals and memory. The network cannot be cut, and nothing here has a seed.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from p2ptrain.config import RunConfig, load_run_config
from p2ptrain.errors import ConfigError, NetworkError
from p2ptrain.events import Event
from p2ptrain.monitor.view import clock_time
from p2ptrain.real.clock import SystemClock
from p2ptrain.simulate import measures
from p2ptrain.simulate.chains import FinalChain, final_chains
from p2ptrain.simulate.fleet import POLL_INTERVAL, Fleet
from p2ptrain.simulate.lives import Life

START_TIMEOUT: Final = 120.0  # seconds for all added peers to train: many peers on few cores
REPORT_TIMEOUT: Final = 10.0  # seconds for everybody to report
AGREE_PATIENCE: Final = 10.0  # seconds: a commit may be on its way to the others at any moment

Result = TypeVar("Result")


class LocalPeer:
    """One peer, with a process whenever it is alive."""

    def __init__(self, fleet: Fleet, number: int) -> None:
        self.number = number
        self._fleet = fleet

    def __repr__(self) -> str:
        return f"peer {self.number}{'' if self.is_alive else ' (dead)'}"

    @property
    def life(self) -> Life:
        """What its latest process has said so far."""
        return [life for life in self._fleet.lives if life.number == self.number][-1]

    @property
    def is_alive(self) -> bool:
        return self.life.is_running

    @property
    def versions(self) -> list[int]:
        """The version of each fragment that it has adopted."""
        versions = {event.fields["fragment"]: event.fields["version"] for event in self.life.all("adopted")}
        return [version for _, version in sorted(versions.items())]

    @property
    def tokens(self) -> int:
        """Tokens that it has trained in its present life."""
        return int(self.life.latest("progress", "tokens", 0))

    @property
    def loss(self) -> float:
        """Its training loss, just now."""
        return float(self.life.latest("progress", "loss", float("nan")))


Peers = LocalPeer | int | Iterable["LocalPeer | int"]


class LocalSwarm:
    """Real peers on this machine. Close it, or use it in a `with`: then every process has ended."""

    def __init__(self, folder: Path) -> None:
        """`folder`: for identities, saved state and logs."""
        self._folder, self._clock = folder, SystemClock()
        self._runner = asyncio.Runner()
        self._fleet: Fleet | None = None
        self._config: RunConfig | None = None
        self._num_peers = 0
        self._disturbed_at = 0.0
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def add_peers(
        self, count: int, *, run: str | RunConfig | None = None, step_seconds: float | None = None, data: str = ""
    ) -> list[LocalPeer]:
        """Start processes, and return their peers once all of them train.

        `run`, `step_seconds` (each inner step sleeps until it took so long) and `data` are given with the first peers only.
        """
        if count < 1:
            raise ConfigError(f"add_peers({count}): at least 1")
        if self._fleet is None:
            self._config, source = self._load("sim-quadratic" if run is None else run)
            arguments = [] if step_seconds is None else ["--step-seconds", str(step_seconds)]
            self._fleet = Fleet(run=source, data=data, folder=self._folder, clock=self._clock, arguments=arguments)
        elif run is not None or step_seconds is not None or data:
            raise ConfigError("add_peers: run, step_seconds and data are given with the first peers only")
        before, self._num_peers = self._num_peers, self._num_peers + count
        self._do(self._start(range(before + 1, self._num_peers + 1)))
        return self.peers[before:]

    def _load(self, run: str | RunConfig) -> tuple[RunConfig, str]:
        """Return a run, and the name or path by which another process finds it."""
        if isinstance(run, str):
            return load_run_config(run), run
        if not isinstance(run, RunConfig):
            raise ConfigError(
                "local_swarm: a task or a merge rule of a test cannot go into other processes; use `swarm`"
            )
        path = self._folder / "run.toml"
        path.write_text(to_toml(run))
        return run, str(path)

    @property
    def peers(self) -> list[LocalPeer]:
        """All peers that were ever added, alive or dead; number n is `peers[n - 1]`."""
        return [LocalPeer(self.fleet, number) for number in range(1, self._num_peers + 1)] if self._fleet else []

    @property
    def fleet(self) -> Fleet:
        """The processes; `fleet.lives` has every event of theirs."""
        if self._fleet is None:
            raise ConfigError("the swarm has no peers yet: add_peers comes first")
        return self._fleet

    def run(self, *, minutes: float = 0.0, seconds: float = 0.0) -> None:
        """Let real time pass."""
        total = 60.0 * minutes + seconds
        if not 0.0 < total < 1e5:
            raise ConfigError(f"run({total:g} s): a time greater than 0")
        self._do(self._wait(lambda: False, total))

    def kill(self, peers: Peers) -> None:
        """SIGKILL the processes of these peers."""
        for peer in self._named(peers):
            if peer.is_alive:
                self._do(self.fleet.kill(peer.life))
        self._disturbed_at = self._clock.wall()

    def restart(self, peers: Peers) -> None:
        """Start dead peers again, with their identity and their disk; returns once they train."""
        dead = [peer.number for peer in self._named(peers) if not peer.is_alive]
        if dead:
            self._do(self._start(dead))

    def heads_agree(self, within: float = AGREE_PATIENCE) -> bool:
        """Whether all live peers have one head of every fragment, and the same bytes; they have `within` seconds for it."""
        return self._do(self._come_to_agree(within))

    @property
    def participation(self) -> float:
        """Contributors / live trainers, as a mean over the rounds since peers were added, killed or restarted last."""
        assert self._config is not None or not self._num_peers
        lives = self.fleet.lives
        rounds = [
            commit for chain in self._chains() for commit in chain.commits if commit.committed_at >= self._disturbed_at
        ]
        inner_steps = self._config.rounds.inner_steps if self._config is not None else 1
        interval = measures.round_interval(lives, inner_steps, self._clock.wall())
        return measures.participation(rounds, lives, interval=interval)

    @property
    def versions(self) -> list[int]:
        """The highest version of each fragment that a live peer has adopted."""
        every = [peer.versions for peer in self.peers if peer.is_alive and peer.versions]
        return [max(versions) for versions in zip(*every, strict=True)] if every else []

    @property
    def losses(self) -> list[float]:
        """Validation losses of what the peers share, in the order in which they were computed."""
        events = sorted(
            (event.at, event.fields["loss"]) for life in self.fleet.lives for event in life.all("validation")
        )
        return [loss for _, loss in events if loss == loss]

    def story(self, test: str = "") -> str:
        """Return what a person needs to look into a failure: who is there, and how far it is."""
        del test  # nothing here can be repeated
        if self._fleet is None:
            return "no peers yet"
        now = self._clock.wall()
        lines = [
            f"  peer {life.number}: {life.end.value}, {clock_time((life.ended_at or now) - life.born_at)} old, "
            f"{life.latest('progress', 'inner_steps', 0)} inner steps, {len(life.all('adopted'))} adoptions"
            for life in self._fleet.lives
        ]
        return "\n".join([f"processes of {self._folder}", *lines])

    def close(self) -> None:
        """Let every peer leave; kill who does not."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._fleet is not None:
                self._runner.run(self._fleet.end())
        finally:
            self._runner.close()

    # In the loop

    async def _start(self, numbers: Iterable[int]) -> None:
        fleet, started = self.fleet, []
        for number in numbers:
            await fleet.start(number)
            started.append(fleet.lives[-1])
            if len(fleet.lives) == 1 and not await self._wait(lambda: fleet.lives[0].is_up, START_TIMEOUT):
                raise NetworkError(f"the host did not come up within {START_TIMEOUT:.0f} s")
        if not await self._wait(lambda: all(life.trained_from for life in started), START_TIMEOUT):
            raise NetworkError(f"not all peers trained within {START_TIMEOUT:.0f} s")
        self._disturbed_at = self._clock.wall()

    async def _wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until something is true, or for so long; PeerEndedError when a process ends by itself."""
        deadline = self._clock.monotonic() + seconds
        while not condition():
            if self._clock.monotonic() >= deadline:
                return False
            await asyncio.sleep(POLL_INTERVAL)
            self.fleet.listen()
            self.fleet.check_started()
        return True

    async def _come_to_agree(self, within: float) -> bool:
        deadline = self._clock.monotonic() + within
        while True:
            reports = await self._reports()
            heads = {
                tuple((head["commit"], head["anchor"]) for head in report.fields["heads"])
                for report in reports
                if report
            }
            if None not in reports and len(heads) == 1:
                return True
            if self._clock.monotonic() >= deadline:
                return False

    async def _reports(self) -> list[Event | None]:
        """Return a new report of everybody who runs; None where there is none in time."""
        asked_at, lives = self._clock.wall(), self.fleet.running
        self.fleet.tell("report")

        def new(life: Life) -> Event | None:
            report = life.last("report")
            return report if report is not None and report.at >= asked_at else None

        await self._wait(lambda: all(new(life) for life in lives), REPORT_TIMEOUT)
        return [new(life) for life in lives]

    def _chains(self) -> list[FinalChain]:
        self._do(self._reports())
        reports = [life.last("report") for life in self.fleet.running]
        num_fragments = self._config.fragments.count if self._config is not None else 0
        return final_chains(self.fleet.lives, [report for report in reports if report is not None], num_fragments)

    def _do(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        if self._is_closed:
            coroutine.close()
            raise ConfigError("this swarm is closed")
        return self._runner.run(coroutine)

    def _named(self, peers: Peers) -> list[LocalPeer]:
        known, named = self.peers, []
        for one in [peers] if isinstance(peers, (LocalPeer, int)) else peers:
            number = one if isinstance(one, int) else one.number
            if not 1 <= number <= len(known):
                raise ConfigError(f"there is no peer {number}, only {len(known)}")
            named.append(known[number - 1])
        return named


def to_toml(config: RunConfig) -> str:
    """Return a run config as a TOML file that says every value."""
    values = config.model_dump()
    top = [f"{key} = {json.dumps(value)}" for key, value in values.items() if not isinstance(value, dict)]
    tables = [
        "\n".join([f"\n[{key}]", *(f"{name} = {json.dumps(one)}" for name, one in table.items())])
        for key, table in values.items()
        if isinstance(table, dict)
    ]
    return "\n".join([*top, *tables]) + "\n"
