"""One process on a simulated host: whose tasks, timers and callbacks are whose.

Everything that a peer starts inherits its context, and the context says which process it is. So the loop can stop one
process while the others go on (`freeze`, as SIGSTOP does), its clock can be wrong for it alone, and what outlives its
process can be found.
"""

import asyncio
from contextvars import Context, ContextVar, copy_context
from typing import ClassVar, Final

CURRENT_PROCESS: Final[ContextVar["SimProcess | None"]] = ContextVar("current_process", default=None)


class SimProcess:
    """A process. After its death its tasks may still run to their end, but its ports do nothing any more."""

    num_frozen: ClassVar[int] = 0
    """Of all worlds: while it is 0, the loop need not ask whose callback it runs."""

    def __init__(self, host: str, number: int) -> None:
        """`number` counts the processes that began on this host, from 1."""
        self.host, self.number = host, number
        self.alive = True
        self.held: list[asyncio.Handle] | None = None
        """Callbacks that became due while it was frozen; None while it is not."""
        self.context: Context = copy_context()
        self.context.run(CURRENT_PROCESS.set, self)

    def __repr__(self) -> str:
        return f"process {self.number} on {self.host}"

    @property
    def frozen(self) -> bool:
        return self.held is not None

    def freeze(self) -> None:
        """Let none of its callbacks run until `thaw`; what reaches it meanwhile waits in the kernel's buffers."""
        if self.held is None:
            self.held = []
            SimProcess.num_frozen += 1

    def thaw(self) -> None:
        """Go on: everything that became due meanwhile is run now, in the order in which it became due."""
        held, self.held = self.held, None
        SimProcess.num_frozen -= held is not None
        if held:
            asyncio.get_running_loop()._ready.extend(held)  # type: ignore[attr-defined]  # what is cancelled meanwhile is skipped

    def end(self) -> None:
        """Note its death, thawed so that its tasks can be cancelled."""
        self.alive = False
        self.thaw()


def current_process() -> SimProcess | None:
    """Return the process whose task or callback runs now; None for the world's own."""
    return CURRENT_PROCESS.get()
