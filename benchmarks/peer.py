"""What taking part costs a machine: time to the first step, memory, and the tax on the inner loop. One command.

    python benchmarks/peer.py [--seconds 30] [--run pycode]

Starts three real processes on loopback, a bootstrap peer that does not train, a host that trains and a volunteer that
joins, and reads their events and /proc. The tax compares the volunteer's tokens per CPU-second (all its threads: inner
loop, network, rounds, hashing) with those of the same inner loop alone, measured before in a process of its own.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

START_TIMEOUT = 60.0  # seconds until a peer must have said that it is up


class Peer:
    """One peer process and the events that it writes."""

    def __init__(self, folder: Path, name: str, *arguments: str) -> None:
        self._events = folder / f"{name}.jsonl"
        self.started_at = time.time()
        command = [sys.executable, "-m", "p2ptrain", *arguments, "--identity-dir", str(folder / name)]
        command += ["--listen", "127.0.0.1:0", "--events", str(self._events), "--supervised"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.system = psutil.Process(self._process.pid)

    def events(self, kind: str) -> list[dict]:
        if not self._events.exists():
            return []
        lines = self._events.read_text().splitlines(keepends=True)
        return [
            event for event in map(json.loads, (line for line in lines if line.endswith("\n"))) if event["kind"] == kind
        ]

    def wait_for(self, kind: str) -> dict:
        deadline = time.monotonic() + START_TIMEOUT
        while not (found := self.events(kind)):
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise SystemExit(f"a peer did not say {kind!r}")
            time.sleep(0.05)
        return found[0]

    def cpu_seconds(self) -> float:
        times = self.system.cpu_times()
        return times.user + times.system

    def tokens(self) -> int:
        progress = self.events("progress")
        return progress[-1]["tokens"] if progress else 0

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=20)


def alone(run: str, cpu_seconds: float) -> float:
    """Return the tokens per CPU-second of the run's inner loop in a process of its own."""
    script = Path(__file__).with_name("inner_loop.py")
    command = [sys.executable, str(script), "--row", "p2ptrain", run, "--cpu-seconds", str(cpu_seconds)]
    return float(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["tokens/CPU-s"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0, help="how long the tax is measured")
    parser.add_argument("--run", default="pycode")
    arguments = parser.parse_args()
    by_itself = alone(arguments.run, arguments.seconds / 2)
    with tempfile.TemporaryDirectory(prefix="p2ptrain-benchmark-") as folder:
        peers: list[Peer] = []
        try:
            host = Peer(Path(folder), "host", "host", arguments.run)
            peers.append(host)
            link = host.wait_for("started")["link"]
            bootstrap = Peer(Path(folder), "bootstrap", "join", link, "--no-train")
            peers.append(bootstrap)
            bootstrap.wait_for("started")
            time.sleep(5.0)  # its DHT has been imported by then
            volunteer = Peer(Path(folder), "volunteer", "join", link)
            peers.append(volunteer)
            started = volunteer.wait_for("started")
            first = volunteer.wait_for("progress")
            stages = {event["name"]: event["seconds"] for event in volunteer.events("stage")}
            time.sleep(5.0)
            tokens, cpu = volunteer.tokens(), volunteer.cpu_seconds()
            time.sleep(arguments.seconds)
            rate = (volunteer.tokens() - tokens) / (volunteer.cpu_seconds() - cpu)
            rows = [
                (
                    "join: process start to 'started' (imports included)",
                    f"{started['at'] - volunteer.started_at:.1f} s",
                ),
                ("join: process start to the first report of steps", f"{first['at'] - volunteer.started_at:.1f} s"),
                (
                    "join: by its own clock: connected, prepared, synced",
                    ", ".join(f"{seconds:.1f} s" for seconds in stages.values()),
                ),
                ("a peer that trains, RSS", f"{volunteer.system.memory_info().rss / 1e6:.0f} MB"),
                ("a bootstrap peer, RSS", f"{bootstrap.system.memory_info().rss / 1e6:.0f} MB"),
                ("inner loop alone", f"{by_itself:,.0f} tokens per CPU-second"),
                ("a peer in the swarm", f"{rate:,.0f} tokens per CPU-second, {rate / by_itself:.0%}"),
            ]
        finally:
            for peer in reversed(peers):
                peer.end()
    for name, value in rows:
        print(f"{name:<55} {value}")


if __name__ == "__main__":
    main()
