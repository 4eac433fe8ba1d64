"""The command line: parses, composes, prints; no logic.

Whatever a command is told wrong, it says so in one line on stderr and ends with the exit code of that kind of error.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console

from p2ptrain import __version__
from p2ptrain.arguments import OneLineParser, real, whole
from p2ptrain.config import PeerSection, RunConfig, load_peer_config, load_run_config, shipped
from p2ptrain.errors import ConfigError, ExitCode, IdentityInUseError, P2PTrainError
from p2ptrain.events import Event, Events, jsonl_sink
from p2ptrain.link import JoinLink
from p2ptrain.monitor.wording import in_plain_words
from p2ptrain.net.identity import Identity, load_or_create
from p2ptrain.peer import Peer, PeerOptions
from p2ptrain.real.entropy import SystemEntropy
from p2ptrain.real.limits import raise_descriptor_limit
from p2ptrain.real.main import run
from p2ptrain.real.memory import peak_memory_bytes
from p2ptrain.real.runtime import create_runtime
from p2ptrain.real.signals import follow_supervisor, stop_on_signals
from p2ptrain.run import HeldOut
from p2ptrain.runtime import Address, Runtime
from p2ptrain.simulate import command as simulate_command
from p2ptrain.tasks import TaskOwner
from p2ptrain.training.preparation import Training

MAX_LOCAL_PEERS = 64  # identities that one user may have running side by side without naming directories

Make = Callable[[Runtime, Identity, Events], Awaitable[Peer]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.command(arguments))
    except P2PTrainError as error:
        print(f"p2ptrain: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains again at exit
        return ExitCode.OK


# Commands


def _host(arguments: argparse.Namespace) -> int:
    config = load_run_config(arguments.run)
    options = _peer_options(arguments)
    peer = run(
        lambda: _run_peer(
            arguments, lambda runtime, identity, events: Peer.hosting(runtime, identity, config, options, events)
        )
    )
    return _ended(peer)


def _join(arguments: argparse.Namespace) -> int:
    link = JoinLink.parse(arguments.link)
    options = _peer_options(arguments)

    async def make(runtime: Runtime, identity: Identity, events: Events) -> Peer:
        return Peer.joining(runtime, identity, link, options, events)

    return _ended(run(lambda: _run_peer(arguments, make)))


def _status(arguments: argparse.Namespace) -> int:
    from p2ptrain.monitor.status import collect_from_link, render, to_json

    link = JoinLink.parse(arguments.link)

    async def ask() -> int:
        with tempfile.TemporaryDirectory(prefix="p2ptrain-") as directory:
            runtime = create_runtime(Path(directory))
            status = await collect_from_link(runtime, Identity.generate(runtime.entropy), link)
        if arguments.json:
            print(json.dumps(to_json(status)))
        else:
            render(status, Console())
        return ExitCode.OK

    return run(ask)


def _goodput(arguments: argparse.Namespace) -> int:
    from p2ptrain.goodput.command import run_study
    from p2ptrain.goodput.options import GoodputOptions, parse_sizes
    from p2ptrain.real.clock import SystemClock

    options = GoodputOptions(
        seed=arguments.seed, quick=arguments.quick, peers=parse_sizes(arguments.peers), hours=arguments.hours,
        minutes=arguments.minutes, run=arguments.run, network=arguments.network, report=arguments.report,
    )  # fmt: skip
    run_study(options, Console(), SystemClock())
    return ExitCode.OK


def _explore(arguments: argparse.Namespace) -> int:
    from p2ptrain.explore.hunt import ExploreOptions, explore, replay
    from p2ptrain.real.clock import SystemClock

    options = ExploreOptions(
        run=arguments.run, network=arguments.network, num_seeds=arguments.seeds, first_seed=arguments.first_seed,
        minutes=arguments.minutes, peers=arguments.peers, num_faults=arguments.faults, jobs=arguments.jobs,
        replay=arguments.replay, report=arguments.report, trace=arguments.trace,
    )  # fmt: skip
    if options.replay:
        return ExitCode.JUDGEMENT if replay(options, Console()).failed else ExitCode.OK
    hunt = run(lambda: explore(options, Console(), SystemClock()))
    return ExitCode.JUDGEMENT if hunt.failures else ExitCode.OK


def _config(arguments: argparse.Namespace) -> int:
    if arguments.run is None:
        for name, path in shipped("configs").items():
            print(f"{name}\t{path}")
    else:
        print(json.dumps(load_run_config(arguments.run).model_dump(), indent=2))
    return ExitCode.OK


def _identity(arguments: argparse.Namespace) -> int:
    directory = arguments.identity_dir or _default_directory()
    print(f"{load_or_create(directory / 'identity.pem', SystemEntropy()).peer_id}\t{directory / 'identity.pem'}")
    return ExitCode.OK


# Running one peer


def _ended(code: int) -> int:
    """End the process without waiting for worker threads: one may be in the middle of importing torch, for seconds."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


async def _run_peer(arguments: argparse.Namespace, make: Make) -> int:
    """Run a peer until it is asked to stop."""
    directory, runtime = _claim_directory(arguments.identity_dir)
    identity = load_or_create(directory / "identity.pem", runtime.entropy)
    events = Events(runtime.clock)
    stopping = asyncio.Event()
    with ExitStack() as files:
        if arguments.events is not None:
            events.subscribe(jsonl_sink(files.enter_context(_open_events(arguments.events))))
        tasks = TaskOwner(events)
        stop_on_signals(stopping.set)
        print(f"peer {identity.peer_id}  ({directory})", file=sys.stderr)
        if not arguments.supervised:
            events.subscribe(_tell_the_start)
        try:
            peer = await _until(stopping, _started(make(runtime, identity, events)), tasks)
            if peer is not None:
                await _attend(peer, events, stopping, tasks, supervised=arguments.supervised)
        finally:
            await tasks.close()
    return ExitCode.OK


def _tell_the_start(event: Event) -> None:
    """Say how far the start has come: whoever waits should know for what."""
    if event.kind in ("run", "stage", "started"):
        print(f"  {in_plain_words(event)}", file=sys.stderr)


async def _until(stopping: asyncio.Event, start: Coroutine[Any, Any, Peer], tasks: TaskOwner) -> Peer | None:
    """Return the started peer, or None when the user stopped it first."""
    starting: asyncio.Task[Peer] = tasks.spawn("start", start)
    stop = tasks.spawn("stop", stopping.wait())
    await asyncio.wait([starting, stop], return_when=asyncio.FIRST_COMPLETED)
    if starting.done():
        return starting.result()
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    return None


async def _started(making: Awaitable[Peer]) -> Peer:
    peer = await making
    await peer.start()
    return peer


async def _attend(peer: Peer, events: Events, stopping: asyncio.Event, tasks: TaskOwner, *, supervised: bool) -> None:
    """Show what the peer does and do what its user or supervisor says, until it has left."""
    from p2ptrain.monitor.observe import report, status_of
    from p2ptrain.monitor.status import serve_status
    from p2ptrain.monitor.view import LiveView

    serve_status(peer.transport, lambda: status_of(peer))
    view: LiveView | None = None
    if supervised:

        def make_report() -> None:
            tasks.spawn("report", report(peer, rss_bytes=peak_memory_bytes()))

        commands = {"drain": peer.drain, "report": make_report, "leave": stopping.set}
        tasks.spawn("follow supervisor", follow_supervisor(commands, stopping.set))
    else:
        view = LiveView(Console(), lambda: status_of(peer))
        events.subscribe(view)
        view.announce_link(str(peer.join_link()), only_loopback=peer.only_loopback)
        tasks.spawn("view", view.run())
    failed = tasks.spawn("wait for a failure", peer.failed())
    stop = tasks.spawn("stop", stopping.wait())
    await asyncio.wait([failed, stop], return_when=asyncio.FIRST_COMPLETED)
    if view is not None:
        view.close()
    await peer.leave()
    if failed.done():
        failed.result()


def _claim_directory(named: Path | None) -> tuple[Path, Runtime]:
    """Return an identity directory that is ours alone: the named one, or the first of the user's that is free."""
    if named is not None:
        return named, create_runtime(named)
    first = _default_directory()
    for number in range(1, MAX_LOCAL_PEERS + 1):
        directory = first if number == 1 else first.with_name(f"{first.name}-{number}")
        try:
            return directory, create_runtime(directory)
        except IdentityInUseError:
            continue
    raise IdentityInUseError(f"{MAX_LOCAL_PEERS} peers of this user run already; name a directory with --identity-dir")


def _default_directory() -> Path:
    """Return where a user's identity lives, whatever folder he starts p2ptrain from."""
    data_home = os.environ.get("XDG_DATA_HOME")
    try:
        base = Path(data_home) if data_home and Path(data_home).is_absolute() else Path.home() / ".local" / "share"
    except RuntimeError:
        raise ConfigError("no home directory: name one for the identity with --identity-dir") from None
    return base / "p2ptrain" / "peer"


def _open_events(path: Path) -> TextIO:
    try:
        return path.open("w")
    except OSError as error:
        raise ConfigError(f"--events {path}: {error.strerror}") from None


# Arguments


def _peer_options(arguments: argparse.Namespace) -> PeerOptions:
    section = load_peer_config(arguments.peer_config).peer if arguments.peer_config else PeerSection()
    announce = arguments.announce or section.announce
    options = PeerOptions(
        listen=_address("listen", arguments.listen or section.listen),
        announce=tuple(_address("announce", text) for text in announce),
        train=section.train and not arguments.no_train,
        device=arguments.device or section.device,
        threads=arguments.threads or section.threads or 1,
        data=arguments.data or section.data,
        new_swarm=getattr(arguments, "new_swarm", False),
        max_connections=_connection_budget(),
    )
    return options if arguments.step_seconds is None else _sleeping(options, arguments.step_seconds)


def _sleeping(options: PeerOptions, step_seconds: float) -> PeerOptions:
    """Return the same, with inner steps of a fixed length."""
    from p2ptrain.real.sleeping import SleepingTask

    def make_training(config: RunConfig, held_out: HeldOut | None) -> Training:
        training = options.prepare(config, held_out)
        return replace(training, task=SleepingTask(training.task, step_seconds))

    return replace(options, make_training=make_training)


def _connection_budget() -> int:
    """Return how many connections the system allows us, and say so if that is few."""
    budget = raise_descriptor_limit()
    if budget.warning:
        print(f"p2ptrain: {budget.warning}", file=sys.stderr)
    return budget.max_connections


def _address(name: str, text: str) -> Address:
    try:
        return Address.parse(text)
    except ValueError as error:
        raise ConfigError(f"--{name}: {error}") from None


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="p2ptrain", description="Train a neural network on volunteers' machines, with no master."
    )
    parser.add_argument("--version", action="version", version=f"p2ptrain {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    runs = "a name in configs/ (see `p2ptrain config`) or a path to a .toml file"

    host = _command(commands, "host", _host, "start a swarm for a run: prints the join link, and trains too")
    host.add_argument("run", metavar="RUN", help=runs)
    host.add_argument(
        "--new-swarm", action="store_true", help="start anew although this identity has hosted the run before"
    )
    _add_peer_arguments(host)

    join = _command(commands, "join", _join, "join a swarm by its link: sync, train, contribute")
    join.add_argument("link", metavar="LINK", help="what `host`, `join` or `status` printed: p2ptrain://…")
    _add_peer_arguments(join)

    status = _command(commands, "status", _status, "show who is alive, in the round and merged, and how the run goes")
    status.add_argument("link", metavar="LINK")
    status.add_argument("--json", action="store_true", help="print one JSON object")

    simulate = _command(
        commands,
        "simulate",
        simulate_command.run_command,
        "run a swarm of real peer processes on this machine, and judge it",
    )
    simulate.add_argument("run", metavar="RUN", help=runs)
    simulate_command.add_arguments(simulate)

    goodput = _command(
        commands, "goodput", _goodput, "the failure study: the paper's table, and volunteers with p2ptrain's own peers"
    )
    _add_goodput_arguments(goodput)

    explore = _command(
        commands, "explore", _explore, "hunt for bugs: many seeds, each a virtual swarm in trouble, judged from outside"
    )
    explore.add_argument("run", metavar="RUN", help=runs)
    _add_explore_arguments(explore)

    config = _command(
        commands, "config", _config, "list the runs that come with p2ptrain, or show one with all its values"
    )
    config.add_argument("run", metavar="RUN", nargs="?")

    identity = _command(commands, "identity", _identity, "show this machine's peer id and where its key is")
    identity.add_argument("--identity-dir", type=Path, metavar="DIR")
    return parser


def _command(
    commands: Any, name: str, function: Callable[[argparse.Namespace], int], help_text: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=help_text, description=help_text)
    parser.set_defaults(command=function)
    return parser


def _add_peer_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--peer-config", metavar="PEER", help="a name in peers/ or a path to a .toml file")
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help="where to accept peers (default 0.0.0.0:0: the port of last time, or any free one)",
    )
    parser.add_argument(
        "--announce", metavar="HOST:PORT", action="append", help="where others can dial this machine; may be repeated"
    )
    parser.add_argument(
        "--identity-dir", type=Path, metavar="DIR", help=f"identity and saved state (default {_default_directory()})"
    )
    parser.add_argument("--no-train", action="store_true", help="only help others to meet and to sync")
    parser.add_argument("--data", default="", metavar="PATH", help='own text, for runs whose data.source is "path"')
    parser.add_argument("--device", choices=["cpu", "cuda"], help="where to compute (default cpu)")
    parser.add_argument("--threads", type=whole(1, 1024), metavar="N", help="threads of the inner loop (default 1)")
    parser.add_argument(
        "--step-seconds", type=real(1e-3, 1e4), metavar="S",
        help="for simulations: let each inner step sleep until it took so long",
    )  # fmt: skip
    parser.add_argument("--events", type=Path, metavar="FILE", help="write every event as a line of JSON")
    parser.add_argument("--supervised", action="store_true", help=argparse.SUPPRESS)


def _add_goodput_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="only the paper's part, which takes some seconds")
    parser.add_argument(
        "--peers",
        default="8,32",
        metavar="N,N",
        help="sizes of the volunteer swarms (default 8,32; up to 512 and more)",
    )
    parser.add_argument(
        "--hours", type=real(0.01, 1000.0), default=4.0, metavar="H", help="virtual hours of each (default 4)"
    )
    parser.add_argument(
        "--minutes", type=real(0.01, 1e6), default=15.0, metavar="M",
        help="real minutes for the volunteers; sizes that do not fit are left out (default 15)",
    )  # fmt: skip
    parser.add_argument(
        "--run", default="sim-quadratic", metavar="RUN", help="what the volunteers train (default sim-quadratic)"
    )
    parser.add_argument(
        "--network", default="home-internet", metavar="NET", help="a name in configs/networks/ or a .toml"
    )
    parser.add_argument("--seed", type=whole(0, 2**31 - 1), default=0, metavar="K", help="default 0")
    parser.add_argument("--report", type=Path, metavar="DIR", help="write goodput.json, table.md and plots")


def _add_explore_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--network", default="hostile", metavar="NET", help="as in `simulate` (default hostile)")
    parser.add_argument("--seeds", type=whole(1, 10_000_000), default=100, metavar="N", help="how many (default 100)")
    parser.add_argument("--first-seed", type=whole(0, 2**31 - 1), default=0, metavar="K", help="default 0")
    parser.add_argument(
        "--minutes", type=real(1.0, 10_000.0), default=10.0, metavar="M", help="virtual minutes of each (default 10)"
    )
    parser.add_argument("--peers", type=whole(2, 64), default=8, metavar="N", help="to begin with (default 8)")
    parser.add_argument("--faults", type=whole(0, 10_000), default=20, metavar="N", help="in each (default 20)")
    parser.add_argument("--jobs", type=whole(1, 1024), default=0, metavar="N", help="processes (default: all cores)")
    parser.add_argument("--replay", default="", metavar="SEED|FILE", help="run one seed, or a failing plan, once more")
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="with --replay: every event and message, a line each"
    )
    parser.add_argument("--report", type=Path, metavar="DIR", help="write summary.json, matrix.txt and failing plans")
