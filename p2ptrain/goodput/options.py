"""What `p2ptrain goodput` is told to do."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from p2ptrain.errors import ConfigError

MAX_PEERS: Final = 4096
DEFAULT_PEERS: Final = (8, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputOptions:
    """One study."""

    seed: int = 0
    quick: bool = False
    """Only the paper's part, which takes some seconds."""
    peers: tuple[int, ...] = DEFAULT_PEERS
    """Sizes of the volunteer swarms."""
    hours: float = 4.0
    """Virtual hours of each."""
    minutes: float = 15.0
    """Real minutes for the volunteers' part; sizes that do not fit are left out, and that is said."""
    run: str = "sim-quadratic"
    """What the volunteers train: a name in configs/ or a path to a .toml file."""
    network: str = "home-internet"
    """A name in configs/networks/ or a path to a .toml file."""
    report: Path | None = None

    def check(self) -> None:
        """Raise ConfigError for the first value that makes no sense."""
        if not self.peers:
            raise ConfigError("--peers: name at least one size")
        for size in self.peers:
            if not 2 <= size <= MAX_PEERS:
                raise ConfigError(f"--peers {size}: sizes are whole numbers from 2 to {MAX_PEERS}")
        for name, value, most in (("hours", self.hours, 1000.0), ("minutes", self.minutes, 1e6)):
            if not (math.isfinite(value) and 0.0 < value <= most):
                raise ConfigError(f"--{name} {value:g}: a number greater than 0 and at most {most:g}")
        if self.report is not None and self.report.exists() and not self.report.is_dir():
            raise ConfigError(f"--report {self.report}: there is a file of that name; it must be a folder")


def parse_sizes(text: str) -> tuple[int, ...]:
    """Return the sizes that "8,32,128" names, each once, in ascending order; ConfigError says what is wrong."""
    sizes = set()
    for word in text.split(","):
        if not (word.strip().isascii() and word.strip().isdigit()):
            raise ConfigError(f"--peers {text!r}: whole numbers divided by commas, as in 8,32,128")
        sizes.add(int(word))
    return tuple(sorted(sizes))
