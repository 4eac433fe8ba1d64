"""Events and numbers in plain words, for a volunteer who has never heard of fragments and forks.

Only what changes a volunteer's situation gets a line of its own. What happens several times a second (rounds, forks,
work that waits for the next round) is counted, and the counts stand in the regular line.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from p2ptrain.events import Event

MAX_WORDS: Final = 200  # characters of one line; reasons that came from other peers may be longer

Fields = Mapping[str, Any]

_STAGES: Final = {
    "connected": "found other peers",
    "prepared": "read the text and built the model",
    "synced": "fetched the shared model and checked it",
}


def in_plain_words(event: Event) -> str | None:
    """Return one line for an event that deserves one, None for all others. Never raises for a missing field."""
    tell = _SENTENCES.get(event.kind)
    return None if tell is None else printable(tell(event.fields))


def printable(text: str) -> str:
    """Return text that may come from another peer, as one line that does nothing to a terminal."""
    line = "".join(character if character.isprintable() else " " for character in text)
    return line if len(line) <= MAX_WORDS else line[: MAX_WORDS - 1] + "…"


def amount(number: float) -> str:
    """Return a large count in three digits: 950, 12.3k, 4.56M."""
    num_thousands = 0
    while abs(number) >= 999.5 and num_thousands < 3:
        number /= 1000.0
        num_thousands += 1
    return f"{number:.3g}{' kMG'[num_thousands]}" if num_thousands else f"{number:.0f}"


def level(number: float) -> str:
    """Return a loss, or a dash while there is none."""
    return f"{number:.3f}" if math.isfinite(number) else "–"


def dialled(can_be_dialled: bool | None, why: str) -> str:
    """Return whether others can dial a peer, and why not."""
    if can_be_dialled is None:
        return "can be dialled: not known yet"
    return "can be dialled: yes" if can_be_dialled else f"can be dialled: no ({printable(why) or 'no reason given'})"


def _reachability(fields: Fields) -> str:
    if fields.get("state") == "reachable":
        return f"others can dial this machine at {', '.join(map(str, fields.get('addresses') or ()))}"
    reasons = fields.get("reasons") or {}
    why = ", ".join(f"{address}: {reason}" for address, reason in reasons.items()) or "no address to dial"
    return f"nobody can dial this machine, so it leads no rounds and trains as well as any ({why})"


def _stage(fields: Fields) -> str:
    name = str(fields.get("name", ""))
    return f"{_STAGES.get(name, name)} ({_seconds(fields)})"


def _seconds(fields: Fields) -> str:
    return f"{float(fields.get('seconds') or 0.0):.1f} s"


def _reorganised(fields: Fields) -> str:
    return (
        f"another branch of part {fields.get('fragment')} had more work and was followed; "
        f"{fields.get('depth')} updates were given up, your own work is kept"
    )


def _resynced(fields: Fields) -> str:
    return f"was {fields.get('missing')} updates behind in part {fields.get('fragment')} and fetched it anew"


_SENTENCES: Final[dict[str, Callable[[Fields], str]]] = {
    "run": lambda fields: (
        f"{'resumes the run' if fields.get('resumed') else 'starts a new swarm for the run'} "
        f"{fields.get('run_name')} ({fields.get('run')})"
    ),
    "started": lambda fields: f"its text is {fields['data']}" if fields.get("data") else "it brings no text of its own",
    "not-saved": lambda fields: f"could not save: {fields.get('reason')}; trying again later",
    "stage": _stage,
    "joined": lambda fields: f"joined the swarm after {_seconds(fields)}",
    "training": lambda fields: "training has begun",
    "isolated": lambda fields: "no other peer can be reached; training goes on, the work is kept, and it keeps trying",
    "rejoined": lambda fields: f"back in touch with {fields.get('num_peers')} other peers",
    "reachability": _reachability,
    "reorg": _reorganised,
    "resync": _resynced,
    "state-mismatch": lambda fields: (
        f"an update of part {fields.get('fragment')} was not what its leader signed: refused"
    ),
    "draining": lambda fields: "training has stopped; what is left of the work is being merged",
    "left": lambda fields: f"said goodbye and left ({_seconds(fields)})",
    "task-failed": lambda fields: f"a bug in p2ptrain: {fields.get('task')}: {fields.get('error')}",
}
