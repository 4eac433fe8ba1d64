"""Coverage of a hunt: how often each cell (phase x role x kind of fault) was hit."""

from collections import Counter
from collections.abc import Iterable

from p2ptrain.explore.plan import CELLS, KINDS, PHASES, ROLES, Cell, why_impossible


def coverage(hits: Iterable[Cell]) -> Counter[Cell]:
    """Return how often each cell that can exist was hit (0 included)."""
    counts: Counter[Cell] = Counter(dict.fromkeys(CELLS, 0))
    counts.update(hits)
    return counts


def rarest(counts: Counter[Cell]) -> tuple[Cell, int]:
    """Return the cell that was hit least, and how often."""
    return min(counts.items(), key=lambda item: (item[1], item[0]))


def matrix(counts: Counter[Cell]) -> list[str]:
    """Return the matrix as lines of text: a block per phase, a row per role, a column per kind; "-": cannot exist."""
    lines = [f"{'':24}" + "".join(f"{kind:>11}" for kind in KINDS)]
    for phase in PHASES:
        for role in ROLES:
            cells = [
                "-" if why_impossible(phase, role, kind) else str(counts.get((phase, role, kind), 0)) for kind in KINDS
            ]
            lines.append(f"{phase:12}{role:12}" + "".join(f"{cell:>11}" for cell in cells))
    return lines


def impossible() -> list[str]:
    """Return one sentence per kind of cell that cannot exist."""
    reasons: dict[str, list[str]] = {}
    for phase in PHASES:
        for kind in KINDS:
            reason = why_impossible(phase, ROLES[0], kind)
            if reason is not None:
                reasons.setdefault(reason, []).append(f"{kind} while {phase}")
    return [f"{', '.join(cells)}: {reason}" for reason, cells in reasons.items()]
