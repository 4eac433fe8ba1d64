"""What work costs in virtual time.

An inner step costs `step_seconds` of a reference device, divided by the speed of this one, give or take a few percent.
Work on a worker thread costs a little, too, and what the disk took meanwhile. A machine can become a straggler, or its
accelerator can hang, in the middle of a run.

    from a model's size:  step_seconds_of(10_000_000, tokens_per_step=4096, device=laptop)
"""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any, Final, TypeVar

from pydantic import Field

from p2ptrain.config import Fraction, Section

Result = TypeVar("Result")

FLOPS_PER_PARAMETER: Final = 6  # of a token in training: 2 forward, 4 backward (Kaplan et al. 2020)


class DeviceClass(Section):
    """A kind of machine that volunteers bring; one entry of [[devices]] in a network profile."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")] = "reference"
    share: Annotated[float, Field(gt=0.0, le=1e6)] = 1.0
    """How many machines are of this kind, relative to the other kinds."""
    speed: Annotated[float, Field(gt=0.0, le=1e4)] = 1.0
    """Inner steps in the time in which the reference device makes one."""
    jitter: Annotated[float, Field(ge=0.0, le=0.9)] = 0.03
    """A step takes up to this fraction longer or shorter."""
    teraflops: Annotated[float, Field(gt=0.0, le=1e6)] = 1.0
    """Really reached in training; only for step times that follow from a model's size."""
    step_overhead: Annotated[float, Field(ge=0.0, le=60.0)] = 0.002
    """Seconds of a step that do not depend on the model's size."""
    memory_gib: Annotated[float, Field(gt=0.0, le=1e6)] | None = None
    """What it says about itself; nothing is refused for it."""
    utilisation: Fraction = 1.0
    """Of its time, what its owner leaves to training (scavenged compute)."""


REFERENCE: Final = DeviceClass(jitter=0.0)
"""The device that `step_seconds` speaks of; every step takes exactly that long."""


def step_seconds_of(num_parameters: int, tokens_per_step: int, device: DeviceClass) -> float:
    """Return how long one inner step of a model takes on a device (s): 6·N·T / flops, and the overhead."""
    flops = FLOPS_PER_PARAMETER * num_parameters * tokens_per_step
    return flops / (device.teraflops * 1e12) + device.step_overhead


class SimDrive:
    """Calls `step` each time the virtual time of a step has passed."""

    def __init__(self, step: Callable[[], float], compute: "SimCompute") -> None:
        self._stopping = False
        self._task = asyncio.create_task(self._drive(step, compute))

    def stop(self) -> None:
        self._stopping = True

    async def stopped(self) -> None:
        await asyncio.shield(self._task)

    def cancel(self) -> None:
        """End at once, as a killed process does."""
        self._task.cancel()

    async def _drive(self, step: Callable[[], float], compute: "SimCompute") -> None:
        while not self._stopping:
            await asyncio.sleep(compute.next_step_seconds())
            await compute.running()
            if not self._stopping:
                await asyncio.sleep(step())


class SimCompute:
    """A machine's processors. They outlive the process that works on them, as the machine does."""

    def __init__(
        self,
        step_seconds: float = 1.0,
        *,
        device: DeviceClass = REFERENCE,
        chance: random.Random | None = None,
        disk_seconds: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`disk_seconds` is asked after each piece of work how long the disk took for it."""
        self.step_seconds = step_seconds
        """Of one inner step on the reference device."""
        self.device = device
        self.straggler = 1.0
        """How many times longer everything takes: a straggler has 10."""
        self.call_seconds = 0.0
        """What a piece of work on a worker thread costs, besides the disk, on the reference device."""
        self._chance = chance or random.Random(0)
        self._disk_seconds = disk_seconds
        self._drives: list[SimDrive] = []
        self._hangs: asyncio.Event | None = None

    def next_step_seconds(self) -> float:
        """Return what the next inner step costs."""
        device = self.device
        seconds = self.step_seconds * self.straggler / (device.speed * device.utilisation)
        return seconds * self._chance.uniform(1 - device.jitter, 1 + device.jitter) if device.jitter else seconds

    async def run(self, function: Callable[..., Result], *args: Any) -> Result:
        if self.call_seconds:
            await asyncio.sleep(self.call_seconds * self.straggler / self.device.speed)
        else:
            await asyncio.sleep(0)  # others get a turn, as they do while a thread works
        result = function(*args)
        seconds = self._disk_seconds()
        if seconds:
            await asyncio.sleep(seconds)
        return result

    def drive(self, step: Callable[[], float]) -> SimDrive:
        drive = SimDrive(step, self)
        self._drives.append(drive)
        return drive

    def post(self, function: Callable[..., None], *args: Any) -> None:
        with suppress(RuntimeError):  # outside a run there is no loop any more
            asyncio.get_running_loop().call_soon(function, *args)

    def hang(self) -> None:
        """Let no inner step end until `resume`; the rest of the machine goes on."""
        self._hangs = self._hangs or asyncio.Event()

    def resume(self) -> None:
        if self._hangs is not None:
            self._hangs.set()
            self._hangs = None

    async def running(self) -> None:
        """Wait for the end of a hang."""
        while self._hangs is not None:
            await self._hangs.wait()

    def kill(self) -> None:
        """End the process that works here."""
        for drive in self._drives:
            drive.cancel()
        self._drives.clear()
        self.resume()
