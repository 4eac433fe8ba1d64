"""One peer process: started, listened to through its event file, told what to do through its stdin.

It runs in a session of its own, so that a Ctrl-C in the terminal reaches the supervisor alone. It leaves when its stdin
ends, so that it cannot outlive its supervisor, however that ends. It is ended by its process id only.
"""

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Final

from p2ptrain.events import Event
from p2ptrain.simulate.lives import Life

MAX_ERROR_BYTES: Final = 2000  # of its stderr, from the end: the last line is what a user needs


class PeerProcess:
    """A running peer, and its life as heard so far."""

    def __init__(self, life: Life, process: asyncio.subprocess.Process, events: BinaryIO, errors: Path) -> None:
        self.life = life
        self._process, self._events, self._errors = process, events, errors
        self._unfinished = b""  # the begin of a line whose end has not been written yet

    @classmethod
    async def start(cls, life: Life, arguments: Sequence[str], *, folder: Path) -> "PeerProcess":
        """Start `p2ptrain ARGUMENTS`; the event file and what it prints go into `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        events_path, errors_path = folder / "events.jsonl", folder / "errors.txt"
        events_path.touch()
        with errors_path.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "p2ptrain", *arguments, "--events", str(events_path), "--supervised",
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, stderr=errors, start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
        return cls(life, process, events_path.open("rb"), errors_path)

    @property
    def exit_code(self) -> int | None:
        """None while it runs; -9 when it was killed."""
        return self._process.returncode

    @property
    def last_words(self) -> str:
        """The last line that it wrote to stderr."""
        lines = self._errors.read_bytes()[-MAX_ERROR_BYTES:].decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def listen(self) -> list[Event]:
        """Return the events since the last call, which are now part of its life."""
        *lines, self._unfinished = (self._unfinished + self._events.read()).split(b"\n")
        events = [parse_event(line) for line in lines if line]
        self.life.hear(events)
        return events

    def tell(self, command: str) -> None:
        """Give it a command: drain, report or leave. One that is dead does not hear it."""
        if self.exit_code is None and self._process.stdin is not None:
            self._process.stdin.write(f"{command}\n".encode())

    def kill(self) -> None:
        """SIGKILL."""
        if self.exit_code is None:
            self._process.kill()

    async def bury(self) -> None:
        """Wait until the killed or ended process is gone, and hear its last events."""
        await self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self.listen()
        self._events.close()


def parse_event(line: bytes) -> Event:
    """Return the event in one line of an event file."""
    fields = json.loads(line)
    return Event(fields.pop("kind"), fields.pop("at"), fields.pop("elapsed"), fields)
