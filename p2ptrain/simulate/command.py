"""`p2ptrain simulate` on the command line: real processes, or with --virtual everything in virtual time."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rich.console import Console

from p2ptrain.arguments import real, whole
from p2ptrain.errors import ConfigError, ExitCode
from p2ptrain.simulate.options import MAX_PEERS, MAX_VIRTUAL_PEERS, SimulateOptions, VirtualOptions

ONLY_VIRTUAL: Final = ("network", "hours", "learner", "scenario", "trace", "no_churn", "dht")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes after RUN."""
    seconds = real(0.1, 1e7)
    parser.add_argument(
        "--peers", type=whole(1, MAX_VIRTUAL_PEERS), metavar="N", help="peers (default 4 processes, or 8 virtual ones)"
    )
    parser.add_argument("--seconds", type=seconds, metavar="S", help="training time (default 60; virtual: an hour)")
    parser.add_argument(
        "--kill-one-every", type=seconds, metavar="S",
        help="SIGKILL a random peer so often; it comes back 5 s later (virtual: 60 s later)",
    )  # fmt: skip
    parser.add_argument(
        "--kill-leader-every", type=seconds, metavar="S", help="SIGKILL the leader of an open round so often"
    )
    parser.add_argument("--late-join-at", type=seconds, metavar="S", help="add one more peer after so much training")
    parser.add_argument(
        "--step-seconds", type=_step_seconds, metavar="S",
        help='let each inner step take so long: by sleeping, or in virtual time (there default 15; "model": by its size)',
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=whole(0, 2**31 - 1), metavar="K",
        help="which peers are killed; in virtual time, everything (default 0)",
    )  # fmt: skip
    parser.add_argument("--report", type=Path, metavar="DIR", help="write summary.json, events.jsonl and plots")
    parser.add_argument("--data", default="", metavar="PATH", help='text, for runs whose data.source is "path"')
    virtual = parser.add_argument_group(
        "in virtual time", "The same peers in one process on a simulated network: hours in minutes, from a seed."
    )
    virtual.add_argument("--virtual", action="store_true", help="simulate clock, network and machines, too")
    virtual.add_argument("--hours", type=real(1e-3, 1e5), metavar="H", help="virtual training time (default 1)")
    virtual.add_argument(
        "--network", metavar="NETWORK", help="a name in configs/networks/ or a path (default home-internet)"
    )
    virtual.add_argument(
        "--no-churn", action="store_true", help="let nobody come and go as [sessions] of the network say"
    )
    virtual.add_argument(
        "--learner", choices=["torch", "stand-in"], help="the run's model, or a noisy quadratic in its place"
    )
    virtual.add_argument("--dht", action="store_true", help="let peers take part in the DHT, as real ones do")
    virtual.add_argument("--scenario", type=Path, metavar="FILE", help="play a scenario: faults and churn as data")
    virtual.add_argument("--trace", type=Path, metavar="FILE", help="write every event and message, a line each")


def run_command(arguments: argparse.Namespace) -> int:
    """Simulate, and return the exit code: by the judgement, or by what went wrong."""
    return _virtual(arguments) if arguments.virtual else _real(arguments)


def _real(arguments: argparse.Namespace) -> int:
    from p2ptrain.real.main import run
    from p2ptrain.simulate.supervisor import simulate

    for name in ONLY_VIRTUAL:
        if getattr(arguments, name):
            raise ConfigError(
                f"--{name.replace('_', '-')} goes with --virtual: real processes have a real network and clock"
            )
    if arguments.step_seconds == "model":
        raise ConfigError("--step-seconds model goes with --virtual: real processes need a number of seconds")
    if arguments.peers is not None and arguments.peers > MAX_PEERS:
        raise ConfigError(f"--peers {arguments.peers}: a whole number from 1 to {MAX_PEERS}; more go with --virtual")
    options = SimulateOptions(
        run=arguments.run, num_peers=4 if arguments.peers is None else arguments.peers,
        seconds=60.0 if arguments.seconds is None else arguments.seconds, kill_one_every=arguments.kill_one_every,
        kill_leader_every=arguments.kill_leader_every, late_join_at=arguments.late_join_at, seed=arguments.seed or 0,
        report=arguments.report, data=arguments.data, step_seconds=arguments.step_seconds,
    )  # fmt: skip
    summary = run(lambda: simulate(options, Console()))
    return ExitCode.OK if summary["anchors_agree"] else ExitCode.JUDGEMENT


def _virtual(arguments: argparse.Namespace) -> int:
    from p2ptrain.real.clock import SystemClock
    from p2ptrain.simulate.virtual import simulate_virtually

    if arguments.seconds is not None and arguments.hours is not None:
        raise ConfigError("--seconds and --hours: give one of them")
    hours = arguments.hours if arguments.seconds is None else arguments.seconds / 3600.0
    options = VirtualOptions(
        run=arguments.run, num_peers=arguments.peers, hours=hours, network=arguments.network, seed=arguments.seed,
        learner=arguments.learner, step_seconds=arguments.step_seconds, churn=not arguments.no_churn,
        use_directory=arguments.dht, kill_one_every=arguments.kill_one_every, kill_leader_every=arguments.kill_leader_every,
        late_join_at=arguments.late_join_at, scenario=arguments.scenario, trace=arguments.trace, report=arguments.report,
        data=arguments.data,
    )  # fmt: skip
    summary = simulate_virtually(options, Console(), SystemClock())
    is_good = summary["anchors_agree"] and not summary["expectations_not_met"]
    return ExitCode.OK if is_good else ExitCode.JUDGEMENT


_seconds: Callable[[str], float] = real(1e-4, 1e5)


def _step_seconds(text: str) -> float | str:
    return text if text == "model" else _seconds(text)
