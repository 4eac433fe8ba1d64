"""From what the command line says to what is simulated in virtual time.

Options become a scenario (sim/scenario.py); with `--scenario`, the file is the scenario, and options change it.
"""

import shlex
from dataclasses import dataclass
from typing import Any, Final

from p2ptrain.config import RunConfig, load_run_config
from p2ptrain.errors import ConfigError
from p2ptrain.sim.churn import ChurnConfig
from p2ptrain.sim.compute import REFERENCE, step_seconds_of
from p2ptrain.sim.faults import Fault, Join, Kill, Who
from p2ptrain.sim.profiles import NetworkProfile, load_network_profile
from p2ptrain.sim.scenario import Expect, Scenario, load_scenario
from p2ptrain.simulate.options import MAX_TORCH_PEERS, VirtualOptions
from p2ptrain.training.task import tensor_specs

DEFAULT_PEERS: Final = 8
DEFAULT_HOURS: Final = 1.0
DEFAULT_NETWORK: Final = "home-internet"
DEFAULT_STEP_SECONDS: Final = (
    15.0  # about a batch of a model that fits a small GPU; with H = 20, rounds are five minutes apart
)
RAISE_WITHIN: Final = 120.0  # virtual seconds in which all peers begin to join
RESTART_AFTER: Final = 60.0  # virtual seconds that a killed peer stays dead


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be simulated."""

    scenario: Scenario
    config: RunConfig
    network: NetworkProfile | None
    data: str
    words: str
    """For the user: what is simulated, in a line."""
    command: str
    """That tells the same story again."""

    @property
    def is_stand_in(self) -> bool:
        return self.config.model.kind == "quadratic"

    @property
    def seconds(self) -> float:
        """Virtual, after the swarm stands."""
        return 60.0 * self.scenario.minutes


def make_plan(options: VirtualOptions) -> Plan:
    """Return what the options ask for, with everything that has to be read; ConfigError or DataError."""
    options.check()
    config = load_run_config(options.run)
    scenario = _from_file(options) if options.scenario is not None else _from_options(options)
    network = load_network_profile(scenario.network) if scenario.network else None
    scenario = scenario.model_copy(update=_changes(options, scenario, config, network))
    _check_numbers(scenario, options)
    config = scenario.config()
    return Plan(
        scenario=scenario, config=config, network=network, data=options.data, words=_in_words(scenario, config, network),
        command=_command(options, scenario),
    )  # fmt: skip


def _from_options(options: VirtualOptions) -> Scenario:
    return Scenario(
        name="command-line", network=options.network or DEFAULT_NETWORK, peers=options.num_peers or DEFAULT_PEERS,
        minutes=60.0 * (DEFAULT_HOURS if options.hours is None else options.hours), seed=options.seed or 0,
        step_seconds=DEFAULT_STEP_SECONDS, counts_from_first_step=True, expect=Expect(heads_agree_within_seconds=None),
        seconds_between_starts=min(1.0, RAISE_WITHIN / (options.num_peers or DEFAULT_PEERS)),
    )  # fmt: skip


def _from_file(options: VirtualOptions) -> Scenario:
    assert options.scenario is not None
    scenario = load_scenario(options.scenario)
    given: dict[str, Any] = {
        "network": options.network, "peers": options.num_peers, "seed": options.seed,
        "minutes": None if options.hours is None else 60.0 * options.hours,
    }  # fmt: skip
    return scenario.model_copy(update={key: value for key, value in given.items() if value is not None})


def _changes(
    options: VirtualOptions, scenario: Scenario, config: RunConfig, network: NetworkProfile | None
) -> dict[str, Any]:
    """Return what the options change in a scenario, now that run and network are known."""
    changes: dict[str, Any] = {"run": options.run, "faults": [*scenario.faults, *_kills_and_joins(options, scenario)]}
    is_stand_in = options.learner == "stand-in" or (options.learner is None and scenario.learner == "stand-in")
    if options.scenario is None and options.learner is None and scenario.peers > MAX_TORCH_PEERS:
        is_stand_in = True
    changes["learner"] = "stand-in" if is_stand_in and config.model.kind != "quadratic" else "own"
    if options.learner == "torch" and config.model.kind == "quadratic":
        raise ConfigError(f"--learner torch: the run {config.name} has no model for torch; it is the stand-in itself")
    if options.step_seconds == "model":
        changes["step_seconds"] = _by_size(config)
    elif options.step_seconds is not None:
        changes["step_seconds"] = float(options.step_seconds)
    if options.scenario is None and options.churn and network is not None and network.sessions is not None:
        changes["churn"] = ChurnConfig(sessions=network.sessions, spare=[1])
    elif not options.churn:
        changes["churn"] = None
    if options.use_directory:
        changes["directory"] = True
    return changes


def _kills_and_joins(options: VirtualOptions, scenario: Scenario) -> list[Fault]:
    faults: list[Fault] = []
    seconds = 60.0 * scenario.minutes
    targets: tuple[tuple[float | None, Who], ...] = (
        (options.kill_one_every, "any"),
        (options.kill_leader_every, "leader"),
    )
    for every, target in targets:
        due_at = every
        while every is not None and due_at is not None and due_at < seconds - RESTART_AFTER:
            faults.append(Kill(kind="kill", at=due_at, peers=target, restart_after=RESTART_AFTER))
            due_at += every
    if options.late_join_at is not None:
        if options.late_join_at >= seconds:
            raise ConfigError(f"--late-join-at {options.late_join_at:g}: less than the {seconds:g} seconds of training")
        faults.append(Join(kind="join", at=options.late_join_at))
    return faults


def _by_size(config: RunConfig) -> float:
    """Return what an inner step of a run takes on the reference device, by the cost model (s)."""
    if config.model.kind == "quadratic":
        raise ConfigError(f"--step-seconds model: the run {config.name} has no model; say how long a step takes")
    tokens = config.inner.windows_per_step * (1 if config.model.kind == "char-mlp" else config.model.context)
    return step_seconds_of(num_parameters(config), tokens, REFERENCE)


def _check_numbers(scenario: Scenario, options: VirtualOptions) -> None:
    """Raise ConfigError for a fault of a peer that does not exist, since options may change how many there are."""
    num_peers = scenario.peers + sum(fault.count for fault in scenario.faults if isinstance(fault, Join))
    for index, fault in enumerate(scenario.faults):
        missing = [number for number in fault.numbers() if number > num_peers]
        if missing:
            raise ConfigError(
                f"--peers {scenario.peers}: faults.{index} of {options.scenario} needs peer {missing[0]}, and there are "
                f"only {num_peers}"
            )


def num_parameters(config: RunConfig) -> int:
    return sum(spec.num_elements for spec in tensor_specs(config))


def _in_words(scenario: Scenario, config: RunConfig, network: NetworkProfile | None) -> str:
    if config.model.kind == "quadratic":
        learner = "stand-in learner (a noisy quadratic)"
    else:
        learner = f"torch learner ({num_parameters(config):,} parameters)"
    where = f"network {network.name}" if network is not None else f"{scenario.latency_ms:g} ms apart"
    story = f"scenario {scenario.name}: " if scenario.name != "command-line" else ""
    return (
        f"{story}{scenario.peers} peers, {where}, {_hours(scenario.minutes)} of virtual time, seed {scenario.seed}, {learner}, "
        f"{scenario.step_seconds:.3g} s a step on the reference device"
    )


def _hours(minutes: float) -> str:
    return f"{minutes / 60:g} hours" if minutes > 60.0 else f"{minutes:g} minutes"


def _command(options: VirtualOptions, scenario: Scenario) -> str:
    words = ["p2ptrain", "simulate", options.run, "--virtual"]
    if options.scenario is not None:
        words += ["--scenario", str(options.scenario)]
    named = {
        "--peers": options.num_peers, "--network": options.network, "--hours": options.hours, "--learner": options.learner,
        "--step-seconds": options.step_seconds, "--kill-one-every": options.kill_one_every,
        "--kill-leader-every": options.kill_leader_every, "--late-join-at": options.late_join_at,
    }  # fmt: skip
    for name, value in named.items():
        if value is not None:
            words += [name, f"{value:g}" if isinstance(value, float) else str(value)]
    words += ["--no-churn"] * (not options.churn) + ["--dht"] * options.use_directory
    words += ["--data", options.data] if options.data else []
    return shlex.join([*words, "--seed", str(scenario.seed)])
