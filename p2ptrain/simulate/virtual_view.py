"""What a simulation in virtual time shows: one bar and one line in a terminal, a plain line now and then elsewhere."""

import math
from statistics import fmean
from typing import Final, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from p2ptrain.monitor.view import clock_time
from p2ptrain.monitor.wording import amount, level
from p2ptrain.real.memory import peak_memory_bytes
from p2ptrain.runtime import Clock
from p2ptrain.sim.swarm import SimSwarm

REFRESH_INTERVAL: Final = 0.5  # seconds between two drawings
LINE_INTERVAL: Final = 10.0  # seconds between two plain lines
BAR_WIDTH: Final = 60


class VirtualView:
    """Shows how far a simulation has come, and how long it will still take."""

    def __init__(self, console: Console, clock: Clock) -> None:
        self.draining = False
        """Training is over; what is pending is merged."""
        self._console, self._clock = console, clock
        self._began_at = clock.monotonic()
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._next_at = self._began_at + (LINE_INTERVAL if self._live is None else 0.0)
        self._fraction = 0.0
        self._stood: tuple[float, float] | None = None  # real instant and fraction when the swarm stood
        self._virtual = 0.0

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, words: str) -> None:
        """Tell something in a line that stays."""
        self._console.print(Text(words), soft_wrap=True)

    def update(self, swarm: SimSwarm, fraction: float | None) -> None:
        """Show where the swarm stands when `fraction` of its time is over (None: while it is being raised)."""
        now, self._virtual = self._clock.monotonic(), swarm.now
        if fraction is not None:
            self._stood = self._stood or (now, fraction)
            self._fraction = fraction
        if now < self._next_at:
            return
        self._next_at = now + (LINE_INTERVAL if self._live is None else REFRESH_INTERVAL)
        if self._live is None:
            self.say(self.line(swarm))
        else:
            bar = ProgressBar(total=1.0, completed=self._fraction, width=BAR_WIDTH)
            self._live.update(Group(bar, Text(self.line(swarm))), refresh=True)

    def line(self, swarm: SimSwarm) -> str:
        """Return where the swarm stands: virtual time, speed, peers, rounds, loss, and the real time that is left."""
        now = self._clock.monotonic()
        speed = self._virtual / max(now - self._began_at, 1e-3)
        parts = [f"{clock_time(self._virtual)} virtual, {speed:.3g}x real time", f"{len(swarm.peers)} alive"]
        if swarm.peers:
            parts.append(f"{sum(swarm.versions())} rounds")
            progress = [peer.learner.progress for peer in swarm.peers.values() if peer.learner is not None]
            parts.append(f"{amount(sum(one.tokens for one in progress))} tokens trained")
            losses = [one.loss for one in progress if math.isfinite(one.loss)]
            parts.append(f"loss {level(fmean(losses) if losses else math.nan)}")
        if self.draining:
            parts.append("merging what is pending")
        elif self._stood is None:
            parts.append("starting the peers")
        elif self._fraction > self._stood[1]:
            began_at, first = self._stood
            left = (now - began_at) / (self._fraction - first) * (1.0 - self._fraction)
            parts.append(f"{self._fraction:.0%}, {clock_time(left)} left")
        return " · ".join(parts)

    def spent(self) -> str:
        """Return what the simulation took in the real world."""
        seconds = self._clock.monotonic() - self._began_at
        return (
            f"{clock_time(self._virtual)} of virtual time in {clock_time(seconds)} ({self._virtual / max(seconds, 1e-3):.3g}x), "
            f"{peak_memory_bytes() / 2**20:.0f} MB at most"
        )
