"""What happened, as data: one stream of events per peer, for logs, the terminal view, tests and reports.

An event is a kind (a few words with dashes), the two clocks, and fields of plain JSON values. Nothing in p2ptrain
prints: the command line subscribes a sink that does.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO

from p2ptrain.runtime import Clock


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened: `at` is wall time (s since 1970), `elapsed` the seconds since this peer started."""

    kind: str
    at: float
    elapsed: float
    fields: dict[str, Any]

    def to_json(self) -> str:
        return json.dumps(
            {"kind": self.kind, "at": round(self.at, 4), "elapsed": round(self.elapsed, 4), **self.fields}
        )


Sink = Callable[[Event], None]


class Events:
    """Stamps events and hands each to every sink, in the order in which they subscribed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started_at = clock.monotonic()
        self._sinks: list[Sink] = []

    def subscribe(self, sink: Sink) -> None:
        self._sinks.append(sink)

    def emit(self, kind: str, **fields: Any) -> None:
        event = Event(kind, self._clock.wall(), self._clock.monotonic() - self._started_at, fields)
        for sink in list(self._sinks):
            try:
                sink(event)
            except OSError as error:  # a full disk or a closed pipe takes the log, not the training
                self._sinks.remove(sink)
                self.emit("log-lost", reason=str(error))


def jsonl_sink(file: TextIO) -> Sink:
    """Return a sink that writes one JSON object per line, flushed, so that a killed process loses nothing it said."""

    def write(event: Event) -> None:
        file.write(event.to_json() + "\n")
        file.flush()

    return write
