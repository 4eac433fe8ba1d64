"""Being asked to stop: by the user, by the system, or by the process that supervises this one."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from typing import Final

from p2ptrain.errors import ExitCode

MAX_COMMAND_BYTES: Final = 1024


def stop_on_signals(stop: Callable[[], None]) -> None:
    """Call `stop` at the first SIGINT, SIGTERM or SIGHUP; a second one ends the process at once."""
    loop = asyncio.get_running_loop()
    asked: list[int] = []

    def ask(number: int) -> None:
        if asked:
            os._exit(ExitCode.INTERRUPTED)  # nothing may run any more: the user has asked twice
        asked.append(number)
        stop()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, ask, number)


async def follow_supervisor(commands: dict[str, Callable[[], None]], gone: Callable[[], None]) -> None:
    """Read commands from stdin, one per line; `gone` is called at its end, so that no peer outlives its supervisor."""
    reader = asyncio.StreamReader(limit=MAX_COMMAND_BYTES)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        command = commands.get(line.decode(errors="replace").strip())
        if command is not None:
            command()
    gone()
