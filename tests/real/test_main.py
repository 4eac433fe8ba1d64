"""The real loop."""

import asyncio
import sys

from p2ptrain.real.main import SWITCH_INTERVAL, run


def test_the_main_coroutine_runs_on_uvloop_with_short_thread_switches():
    async def main() -> tuple[str, float]:
        return type(asyncio.get_running_loop()).__module__, sys.getswitchinterval()

    module, switch_interval = run(main)
    assert module.startswith("uvloop")
    assert abs(switch_interval - SWITCH_INTERVAL) < 1e-6
