"""A trace: what happens in a simulated swarm, a line each, byte for byte the same for a seed.

    0.000000 10.0.0.1 process began
    1.000000 10.0.0.1 started peer="12D3KooW…" …
    4.123456 10.0.0.3 sends round.register to 10.0.0.1
    4.143456 10.0.0.1 receives round.register from 10.0.0.3
    60.000000 world fault what="kill" peers=[2]

Virtual seconds, the host, and an event with its fields or a request with the host at the other end; answers are not told.
The same on one machine with one build of torch and NumPy, whatever PYTHONHASHSEED says; other processors and builds round
otherwise in training.
"""

import json
from typing import Any, TextIO

from p2ptrain.events import Event
from p2ptrain.ids import PeerId
from p2ptrain.sim.swarm import SimSwarm


class Trace:
    """Writes what a swarm does, from now on, into a file. Make it last: it passes on what others listen to."""

    def __init__(self, swarm: SimSwarm, file: TextIO) -> None:
        self._swarm, self._file = swarm, file
        self._pass_event, swarm.on_event = swarm.on_event, self._event
        self._pass_life, swarm.on_life = swarm.on_life, self._life
        self._pass_call, swarm.on_call = swarm.on_call, self._call

    def _event(self, host: str, event: Event) -> None:
        fields = "".join(f" {name}={_plain(value)}" for name, value in event.fields.items())
        self._write(f"{host or 'world'} {event.kind}{fields}")
        self._pass_event(host, event)

    def _life(self, host: str, what: str) -> None:
        self._write(f"{host} process {what}")
        self._pass_life(host, what)

    def _call(self, host: str, direction: str, method: str, other: PeerId) -> None:
        there = self._swarm.hosts.get(other, other)
        self._write(
            f"{host} sends {method} to {there}" if direction == "send" else f"{host} receives {method} from {there}"
        )
        self._pass_call(host, direction, method, other)

    def _write(self, line: str) -> None:
        self._file.write(f"{self._swarm.now:.6f} {line}\n")


def _plain(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=_sorted, separators=(",", ":"))


def _sorted(value: Any) -> Any:
    """Return sets as sorted lists, and anything else that JSON does not know as text."""
    return sorted(value) if isinstance(value, (set, frozenset)) else str(value)
