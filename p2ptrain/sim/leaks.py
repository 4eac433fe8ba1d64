"""What is still there of processes that ended: their tasks, their timers, their connections."""

import asyncio
from collections.abc import Collection, Iterator

from p2ptrain.sim.network import SimNetwork
from p2ptrain.sim.process import CURRENT_PROCESS, SimProcess


def leftovers(network: SimNetwork, dead: Collection[SimProcess]) -> Iterator[tuple[SimProcess, str]]:
    """Yield (process, what) for each task, timer and connection of these processes, in a stable order."""
    loop = asyncio.get_running_loop()
    tasks = [task for task in asyncio.all_tasks(loop) if getattr(task, "process", None) in dead]
    for task in sorted(tasks, key=hash):  # the virtual loop's tasks hash by their number
        yield task.process, f"task {task.get_name()!r} still runs"  # type: ignore[attr-defined]
    for timer in sorted(loop._scheduled, key=lambda one: one._when):  # type: ignore[attr-defined]
        process = timer._context.get(CURRENT_PROCESS) if timer._context is not None else None
        if process in dead and not timer.cancelled():
            yield process, f"a timer for {timer._when:.1f} s ({timer._callback!r:.80}) is still set"
    for process in dead:
        count = num_connections(network, process)
        if count:
            yield process, f"{count} connections are still open"


def num_connections(network: SimNetwork, process: SimProcess) -> int:
    """Return how many connections a process has."""
    return sum(1 for stream in network._streams if getattr(stream.owner, "process", None) is process)
