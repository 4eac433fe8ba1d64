"""A trace: every event and every message of a simulated swarm, one line each, byte for byte the same for a seed.

    12.345678 10.0.0.3 send round.register
    12.365678 10.0.0.1 receive round.register
    13.000000 10.0.0.1 round-called fragment=0 version=1 ...

The same on one machine with one build of torch and NumPy: other builds round otherwise in training.
"""

import asyncio
import json
from typing import Any, TextIO

from p2ptrain.events import Event
from p2ptrain.sim.swarm import SimSwarm


class Trace:
    """Writes what a swarm does, from now on, into a file."""

    def __init__(self, swarm: SimSwarm, file: TextIO) -> None:
        self._swarm, self._file = swarm, file
        self._listen, swarm.on_event = swarm.on_event, self._event
        swarm.hooks.append(self._message)

    def _event(self, host: str, event: Event) -> None:
        fields = " ".join(f"{name}={_plain(value)}" for name, value in event.fields.items())
        self._write(f"{host or 'world'} {event.kind} {fields}")
        self._listen(host, event)

    def _message(self, host: str, direction: str, method: str) -> None:
        self._write(f"{host} {direction} {method}")

    def _write(self, line: str) -> None:
        self._file.write(f"{asyncio.get_running_loop().time():.6f} {line}\n")


def _plain(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str, separators=(",", ":"))
