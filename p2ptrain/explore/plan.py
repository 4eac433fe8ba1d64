"""What a seed does to its swarm: faults, each aimed at a phase of the protocol and at a role in it.

A cell is (phase, role, kind): "kill the deputy while contributions are collected". All cells that can exist lie in one
shuffled deck; seed s takes the faults number s·F … s·F + F - 1 of it, round and round, so that a thousand seeds deal out
every cell equally often. Everything else about a fault (how long, whom else) is drawn from a chance that belongs to seed
and number: taking other faults out of a plan leaves it as it was.

A plan is data (TOML), so a failure can be shrunk, kept and replayed.
"""

import itertools
import random
from pathlib import Path
from typing import Annotated, Final, Literal, get_args

from pydantic import Field, model_validator

from p2ptrain.config import Section, load_config
from p2ptrain.ids import digest

Phase = Literal["starting", "syncing", "gathering", "collecting", "closing", "spreading", "reorg", "leaving"]
Role = Literal["leader", "deputy", "member", "outsider", "newcomer", "bootstrap"]
Kind = Literal[
    "kill", "power-cut", "freeze", "partition", "one-way", "reset", "slow", "clock-step", "disk", "leave", "join", "lie"
]

PHASES: Final[tuple[Phase, ...]] = get_args(Phase)
ROLES: Final[tuple[Role, ...]] = get_args(Role)
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

MAX_PEERS: Final = 64
FIRST_FAULT_AT: Final = 40.0  # virtual seconds: the swarm is up and has made a commit or two
LAST_FAULT_BEFORE_END: Final = 90.0  # the last fault must find its moment, and end
SHIFT: Final = 0.5  # of the time between two faults, by which each comes earlier or later

Cell = tuple[Phase, Role, Kind]


def why_impossible(phase: Phase, role: Role, kind: Kind) -> str | None:
    """Return why a cell cannot exist, or None when it can."""
    if phase == "leaving" and kind == "leave":
        return "who is leaving cannot leave once more"
    if phase in ("starting", "syncing") and kind == "lie":
        return "who has not joined yet serves nothing, so it has nothing to lie about"
    if phase == "leaving" and kind == "lie":
        return "who has said goodbye is not asked any more"
    return None


CELLS: Final[tuple[Cell, ...]] = tuple(
    cell for cell in itertools.product(PHASES, ROLES, KINDS) if why_impossible(*cell) is None
)


class PlannedFault(Section):
    """One fault: it happens when somebody is in this role of this phase, not before `at`."""

    number: Annotated[int, Field(ge=0)]
    """Its place in the seed's plan; decides its chance."""
    phase: Phase
    role: Role
    kind: Kind
    at: Annotated[float, Field(ge=0.0, le=1e6)]
    """Virtual seconds from the start of the run, from which on the moment is waited for."""

    @property
    def cell(self) -> Cell:
        return self.phase, self.role, self.kind

    def __str__(self) -> str:
        return f"{self.kind} on the {self.role} while {self.phase} (number {self.number}, from {self.at:g} s on)"

    @model_validator(mode="after")
    def _can_exist(self) -> "PlannedFault":
        if reason := why_impossible(self.phase, self.role, self.kind):
            raise ValueError(f"{self.kind} on a {self.role} while {self.phase}: {reason}")
        return self


class Plan(Section):
    """A seed, the swarm's size and duration, and its faults."""

    seed: Annotated[int, Field(ge=0, le=2**31 - 1)]
    network: str = ""
    """A name in configs/networks/ or a path; empty: 50 ms between any two, and no other limit."""
    peers: Annotated[int, Field(ge=2, le=MAX_PEERS)] = 8
    minutes: Annotated[float, Field(gt=0.0, le=1e4)] = 10.0
    faults: list[PlannedFault] = []

    @property
    def seconds(self) -> float:
        return 60.0 * self.minutes

    def chance_of(self, fault: PlannedFault) -> random.Random:
        return random.Random(digest("fault", f"{self.seed} {fault.number}".encode()))

    def to_toml(self) -> str:
        """Return the plan as a file that `p2ptrain explore RUN --replay FILE` reads."""
        lines = [f"seed = {self.seed}", f'network = "{self.network}"', f"peers = {self.peers}"]
        lines.append(f"minutes = {self.minutes:g}")
        for fault in self.faults:
            lines += ["", "[[faults]]", f"number = {fault.number}"]
            lines += [f'{name} = "{getattr(fault, name)}"' for name in ("phase", "role", "kind")]
            lines.append(f"at = {fault.at!r}")
        return "\n".join(lines) + "\n"


def draw_plan(seed: int, *, network: str = "", peers: int = 8, minutes: float = 10.0, num_faults: int = 20) -> Plan:
    """Return the plan of a seed."""
    chance = random.Random(digest("plan", str(seed).encode()))
    until = max(FIRST_FAULT_AT, 60.0 * minutes - LAST_FAULT_BEFORE_END)
    stride = (until - FIRST_FAULT_AT) / max(1, num_faults)
    faults = []
    for number in range(num_faults):
        phase, role, kind = _dealt(seed * num_faults + number)
        at = FIRST_FAULT_AT + stride * (number + SHIFT * chance.random())
        faults.append(PlannedFault(number=number, phase=phase, role=role, kind=kind, at=round(at, 3)))
    return Plan(seed=seed, network=network, peers=peers, minutes=minutes, faults=faults)


def _dealt(place: int) -> Cell:
    """Return the card at a place of the endless deck: each shuffle holds every cell once."""
    shuffle, index = divmod(place, len(CELLS))
    if shuffle not in _decks:
        deck = list(CELLS)
        random.Random(digest("deck", str(shuffle).encode())).shuffle(deck)
        _decks[shuffle] = deck
    return _decks[shuffle][index]


_decks: dict[int, list[Cell]] = {}


def load_plan(path: Path) -> Plan:
    """Return the plan in a file; ConfigError with one line."""
    return load_config(Plan, str(path), folder="configs", what="plan")
