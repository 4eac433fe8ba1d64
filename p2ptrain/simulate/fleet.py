"""The peer processes of a simulation, each with its lives.

Peer 1 hosts the run; the others join with a link. A killed peer comes back by joining, with a link that names peers
that are up at that moment, also the one that hosted. Each peer keeps its identity directory over its lives.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from p2ptrain.errors import ExitCode, P2PTrainError
from p2ptrain.events import Event
from p2ptrain.link import JoinLink
from p2ptrain.runtime import Clock
from p2ptrain.simulate.lives import End, Life
from p2ptrain.simulate.process import PeerProcess

HOST: Final = 1
LEAVE_TIMEOUT: Final = 8.0  # seconds; a peer promises to be gone within five
POLL_INTERVAL: Final = 0.02  # seconds between looks at the event files: an open round lasts about a tenth of one


class PeerEndedError(P2PTrainError):
    """A peer ended before it could train: says why in its own words, and ends with its exit code."""

    def __init__(self, number: int, exit_code: int, last_words: str) -> None:
        reason = last_words.removeprefix("p2ptrain: ") or f"exit code {exit_code}"
        super().__init__(f"peer {number} could not start: {reason}")
        self.exit_code = ExitCode(exit_code) if exit_code in set(ExitCode) - {ExitCode.OK} else ExitCode.BUG


class Fleet:
    """Starts, hears, kills and ends peer processes."""

    def __init__(self, *, run: str, data: str, folder: Path, clock: Clock, arguments: Sequence[str] = ()) -> None:
        """`arguments`: more of `p2ptrain host` and `join`, for every peer."""
        self.lives: list[Life] = []
        """Every life so far, in the order of birth."""
        self._processes: list[PeerProcess] = []  # those that run
        self._num_lives: Counter[int] = Counter()
        self._run, self._data, self._folder, self._clock = run, data, folder, clock
        self._arguments = list(arguments)

    @property
    def running(self) -> list[Life]:
        return [life for life in self.lives if life.is_running]

    async def start(self, number: int) -> None:
        """Start a peer, for the first time or again."""
        home = self._folder / f"peer-{number}"
        command = ["join", self._link()] if self.lives else ["host", self._run]
        command += ["--identity-dir", str(home / "identity"), "--listen", "127.0.0.1:0"]
        command += ["--data", self._data] if self._data else []
        command += self._arguments
        self._num_lives[number] += 1
        life = Life(number=number, born_at=self._clock.wall())
        process = await PeerProcess.start(life, command, folder=home / f"life-{self._num_lives[number]}")
        self.lives.append(life)
        self._processes.append(process)

    def listen(self) -> list[tuple[Life, Event]]:
        """Return what all peers said since the last call."""
        return [(process.life, event) for process in self._processes for event in process.listen()]

    async def bury_the_crashed(self) -> list[tuple[Life, str]]:
        """Note which processes ended unasked; return their lives and their last words."""
        crashed = [process for process in self._processes if process.exit_code is not None]
        for process in crashed:
            await self._bury(process, End.CRASHED)
        return [(process.life, process.last_words or f"exit code {process.exit_code}") for process in crashed]

    def check_started(self) -> None:
        """Raise PeerEndedError when a process has ended: for use before the swarm trains."""
        for process in self._processes:
            if process.exit_code is not None:
                raise PeerEndedError(process.life.number, process.exit_code, process.last_words)

    async def kill(self, victim: Life) -> None:
        """SIGKILL the process that lives this life."""
        process = next(process for process in self._processes if process.life is victim)
        process.kill()
        await self._bury(process, End.KILLED)

    def tell(self, command: str) -> None:
        """Give a command to everybody who runs."""
        for process in self._processes:
            process.tell(command)

    async def end(self) -> None:
        """Ask everybody to leave, and kill who does not within LEAVE_TIMEOUT."""
        self.tell("leave")
        deadline = self._clock.monotonic() + LEAVE_TIMEOUT
        while self._clock.monotonic() < deadline and any(process.exit_code is None for process in self._processes):
            self.listen()
            await asyncio.sleep(POLL_INTERVAL)
        for process in list(self._processes):
            process.kill()
            await self._bury(process, End.LEFT)

    async def _bury(self, process: PeerProcess, end: End) -> None:
        if process.life.is_running:
            process.life.close(end, self._clock.wall())
        await process.bury()
        process.life.exit_code = process.exit_code
        self._processes.remove(process)

    def _link(self) -> str:
        """Return a join link that names peers that are up now (or were, if nobody is)."""
        started = [life for life in self.lives if life.peer]
        up = [life for life in started if life.is_up] or started
        links = [JoinLink.parse(life.latest("started", "link", "")) for life in up]
        return str(JoinLink.of(links[0].run_id, [link.peers[0] for link in links]))  # each names itself first
