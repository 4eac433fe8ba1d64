"""What `p2ptrain simulate` is told to do."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from p2ptrain.errors import ConfigError

MAX_PEERS: Final = 256  # processes; each takes about half a gigabyte with the default model
MAX_VIRTUAL_PEERS: Final = 5000  # in one process; each takes about 4 MB
MAX_TORCH_PEERS: Final = 32  # that train a real model in one process before the stand-in becomes the default


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateOptions:
    """One simulation. Durations in seconds; None: that does not happen."""

    run: str
    """A name in configs/ or a path to a .toml file."""
    num_peers: int = 4
    seconds: float = 60.0
    """How long the swarm trains, from the first inner step of anybody."""
    kill_one_every: float | None = None
    kill_leader_every: float | None = None
    late_join_at: float | None = None
    """When one more peer joins, counted like `seconds`."""
    seed: int = 0
    report: Path | None = None
    data: str = ""
    step_seconds: float | None = None
    """How long each inner step sleeps until it is over. None: not at all."""

    def peer_arguments(self) -> list[str]:
        """Return what each peer process is told besides."""
        return [] if self.step_seconds is None else ["--step-seconds", str(self.step_seconds)]

    def check(self) -> None:
        """Raise ConfigError for the first value that makes no sense."""
        if not 1 <= self.num_peers <= MAX_PEERS:
            raise ConfigError(f"--peers {self.num_peers}: a whole number from 1 to {MAX_PEERS}")
        for name, seconds in (
            ("seconds", self.seconds), ("kill-one-every", self.kill_one_every), ("kill-leader-every", self.kill_leader_every)
        ):  # fmt: skip
            if seconds is not None and not (math.isfinite(seconds) and seconds > 0.0):
                raise ConfigError(f"--{name} {seconds:g}: a number of seconds greater than 0")
        if self.late_join_at is not None and not 0.0 <= self.late_join_at < self.seconds:
            raise ConfigError(
                f"--late-join-at {self.late_join_at:g}: from 0 to less than the {self.seconds:g} seconds of training"
            )
        if self.num_peers == 1 and (self.kill_one_every or self.kill_leader_every):
            raise ConfigError(
                "--kill-…-every needs --peers 2 or more: somebody must be left for the killed one to come back to"
            )
        if self.report is not None and self.report.exists() and not self.report.is_dir():
            raise ConfigError(f"--report {self.report}: there is a file of that name; it must be a folder")


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualOptions:
    """One simulation in virtual time. What is None is as the scenario says, or else as simulate/plan.py says."""

    run: str
    """A name in configs/ or a path to a .toml file."""
    num_peers: int | None = None
    hours: float | None = None
    """For how long it goes on, in virtual time, once all have been started."""
    network: str | None = None
    """A name in configs/networks/ or a path to a .toml file."""
    seed: int | None = None
    learner: Literal["torch", "stand-in"] | None = None
    """None: the stand-in where the run is one itself or peers are many, else torch."""
    step_seconds: float | Literal["model"] | None = None
    """Of an inner step on the reference device; "model": by the model's size."""
    churn: bool = True
    """Whether peers come and go as the network's [sessions] or the scenario says."""
    use_directory: bool = False
    """Whether peers take part in the DHT."""
    kill_one_every: float | None = None
    kill_leader_every: float | None = None
    late_join_at: float | None = None
    scenario: Path | None = None
    """A file that says all the above, and more."""
    trace: Path | None = None
    report: Path | None = None
    data: str = ""

    def check(self) -> None:
        """Raise ConfigError for the first value that makes no sense."""
        if self.num_peers is not None and not 1 <= self.num_peers <= MAX_VIRTUAL_PEERS:
            raise ConfigError(f"--peers {self.num_peers}: a whole number from 1 to {MAX_VIRTUAL_PEERS}")
        for name, number in (
            ("hours", self.hours), ("kill-one-every", self.kill_one_every), ("kill-leader-every", self.kill_leader_every),
            ("step-seconds", None if self.step_seconds == "model" else self.step_seconds),
        ):  # fmt: skip
            if number is not None and not (math.isfinite(number) and number > 0.0):
                raise ConfigError(f"--{name} {number:g}: a number greater than 0")
        if self.report is not None and self.report.exists() and not self.report.is_dir():
            raise ConfigError(f"--report {self.report}: there is a file of that name; it must be a folder")
        if self.trace is not None and not self.trace.absolute().parent.is_dir():
            raise ConfigError(f"--trace {self.trace}: there is no folder {self.trace.absolute().parent}")
