"""A peer whose learner takes all it can get still answers: nothing heavy runs on the event loop."""

import asyncio
from pathlib import Path
from typing import ClassVar

from p2ptrain.events import Events
from p2ptrain.ids import PeerId, RunId, digest
from p2ptrain.net.identity import Identity
from p2ptrain.net.transport import Transport
from p2ptrain.real.main import run
from p2ptrain.real.runtime import create_runtime
from p2ptrain.runtime import Address
from p2ptrain.wire.messages import Message

RUN = RunId(digest("run", b"busy"))
NUM_CALLS = 100


class Beat(Message):
    method: ClassVar[str] = "test.beat"


def burn() -> float:
    """Hold the interpreter as a step of pure Python would: the hardest case, torch lets go of it most of the time."""
    total = 0
    for number in range(200_000):
        total += number * number
    return 0.0


def test_heart_beats_go_on_while_the_learner_burns_all_it_can_get(tmp_path: Path) -> None:  # BUG-T13
    async def story() -> int:
        async def answer(_sender: PeerId, _beat: Beat, _body: bytearray) -> Beat:
            return Beat()

        transports = []
        for name in ("one", "other"):
            runtime = create_runtime(tmp_path / name)
            identity = Identity.generate(runtime.entropy)
            transports.append(Transport(runtime=runtime, identity=identity, run_id=RUN, events=Events(runtime.clock)))
        one, other = transports
        other.handle(Beat, answer)
        address = await other.listen(Address("127.0.0.1", 0))
        drive = create_runtime(tmp_path / "learner").compute.drive(burn)
        peer = await one.dial(address)
        answered = 0
        for _ in range(NUM_CALLS):
            await one.call(peer, Beat(), Beat, timeout=5.0)
            answered += 1
        drive.stop()
        await drive.stopped()
        await asyncio.gather(one.close(), other.close())
        return answered

    assert run(story) == NUM_CALLS
