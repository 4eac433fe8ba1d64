"""Running a peer on uvloop."""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

import uvloop

from p2ptrain.real.memory import limit_arenas

Result = TypeVar("Result")

SWITCH_INTERVAL: Final = 0.0005  # s; keeps the loop less than 1 ms late beside a training thread (measured)


def run(main: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """Run `main()` to its end on a fresh uvloop. SIGINT cancels it and becomes KeyboardInterrupt."""
    limit_arenas()
    sys.setswitchinterval(SWITCH_INTERVAL)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())
