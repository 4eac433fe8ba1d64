"""A swarm of real processes and its virtual twin: do they agree?

Four peers train `sim-quadratic` with inner steps of a fixed length, once as real processes on loopback and once in virtual
time on the network `datacenter`, with the DHT as real peers have it; both are judged by the same judge. Each is run three
times (with other seeds in virtual time), and the medians are compared.

    python benchmarks/twin.py [--seconds 60] [--step-seconds 0.1] [--repeat 3]
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

WANTED = 0.10  # relative difference of the medians
MEASURES = ("rounds_committed", "bytes_sent", "participation", "tokens_trained", "goodput")
COMPARED = MEASURES[:3]


def simulate(folder: Path, arguments: list[str]) -> dict[str, Any]:
    """Run `p2ptrain simulate` and return its summary."""
    command = [sys.executable, "-m", "p2ptrain", "simulate", "sim-quadratic", *arguments, "--report", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return summary


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--step-seconds", type=float, default=0.1)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    common = [
        "--peers",
        str(options.peers),
        "--seconds",
        str(options.seconds),
        "--step-seconds",
        str(options.step_seconds),
    ]
    virtual = ["--virtual", "--network", "datacenter", "--no-churn", "--dht"]
    runs: dict[str, list[dict[str, Any]]] = {"real": [], "virtual": []}
    with tempfile.TemporaryDirectory(prefix="p2ptrain-twin-") as folder:
        for number in range(options.repeat):
            runs["real"].append(simulate(Path(folder, f"real-{number}"), common))
            seeded = [*common, *virtual, "--seed", str(number)]
            runs["virtual"].append(simulate(Path(folder, f"virtual-{number}"), seeded))
    print(
        f"{options.peers} peers, {options.seconds:g} s, steps of {options.step_seconds:g} s; each run {options.repeat} times"
    )
    print(f"{'':18}{'real':>34}{'virtual':>34}{'median differs by':>20}")
    worst = 0.0
    for name in MEASURES:
        values = {kind: sorted(one[name] for one in summaries) for kind, summaries in runs.items()}
        real, twin = median(values["real"]), median(values["virtual"])
        differs = abs(twin - real) / real if real else float("inf")
        worst = max(worst, differs) if name in COMPARED else worst
        cells = [
            " ".join(f"{value:,.4g}" if value < 10 else f"{value:,.0f}" for value in values[kind]) for kind in values
        ]
        print(f"{name:18}{cells[0]:>34}{cells[1]:>34}{differs:>19.1%} {'' if name in COMPARED else '(not asked for)'}")
    print(f"largest difference in {', '.join(COMPARED)}: {worst:.1%}; wanted: at most {WANTED:.0%}")
    return 0 if worst <= WANTED else 1


if __name__ == "__main__":
    sys.exit(main())
