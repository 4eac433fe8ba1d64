"""What is still there of processes that ended: their tasks, their timers, their connections."""

import asyncio
from collections.abc import Collection, Iterator

from p2ptrain.sim.loop import VirtualLoop
from p2ptrain.sim.network import SimNetwork
from p2ptrain.sim.process import CURRENT_PROCESS, SimProcess


def leftovers(network: SimNetwork, dead: Collection[SimProcess]) -> Iterator[tuple[SimProcess, str]]:
    """Yield (process, what) for each task, timer and connection of these processes, in a stable order."""
    loop = asyncio.get_running_loop()
    tasks = [task for task in asyncio.all_tasks(loop) if getattr(task, "process", None) in dead]
    for task in sorted(tasks, key=hash):  # the virtual loop's tasks hash by their number
        coroutine = getattr(task.get_coro(), "__qualname__", "")
        yield task.process, f"task {task.get_name()!r} ({coroutine}) still runs"  # type: ignore[attr-defined]
    assert isinstance(loop, VirtualLoop)
    for when, callback, context in loop.timers():
        process = context.get(CURRENT_PROCESS)
        if process is not None and process in dead:
            yield process, f"a timer for {when:.1f} s ({callback!r:.80}) is still set"
    for process in dead:
        count = num_connections(network, process)
        if count:
            yield process, f"{count} connections are still open"


def num_connections(network: SimNetwork, process: SimProcess) -> int:
    """Return how many connections a process has."""
    return sum(1 for stream in network.connections(process.host) if stream.owner.process is process)
