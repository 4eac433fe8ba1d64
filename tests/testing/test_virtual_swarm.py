"""A swarm in virtual time, driven as somebody's own test drives it."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from p2ptrain.averaging.merge import Contribution, weighted_mean
from p2ptrain.config import load_run_config
from p2ptrain.errors import ConfigError
from p2ptrain.fragments.layout import Fragment, TensorSpec
from p2ptrain.sim.checkers import Violation
from p2ptrain.sim.faults import Kill
from p2ptrain.testing import Experiment, VirtualSwarm

my_run = load_run_config("sim-quadratic")


def test_my_merge_rule_survives_a_partition(swarm: VirtualSwarm) -> None:
    swarm.add_peers(8, network="home-internet", run=my_run)
    swarm.partition(swarm.peers[:4], swarm.peers[4:])
    swarm.run(minutes=10)
    swarm.heal()
    swarm.run(minutes=5)
    assert swarm.heads_agree() and swarm.participation > 0.9


class Line:
    """A test's own model and data: fits a line to points, all in NumPy (a `Task`)."""

    num_windows, windows_per_step = 4096, 8

    def __init__(self) -> None:
        self.slope, self.offset = np.zeros(16, np.float32), np.zeros(16, np.float32)

    def shapes(self) -> list[TensorSpec]:
        return [TensorSpec("slope", (16,), is_embedding=False), TensorSpec("offset", (16,), is_embedding=False)]

    def read(self, name: str) -> np.ndarray:
        return getattr(self, name)

    def write(self, name: str, values: np.ndarray) -> None:
        getattr(self, name)[:] = values

    def train_step(self, windows: Sequence[int], learning_rate: float) -> tuple[float, int]:
        x = (np.asarray(windows, np.float32) % 64 / 32 - 1)[:, None]
        error = self.slope * x + self.offset - (3 * x - 1)
        self.slope -= np.float32(learning_rate) * (error * x).mean(0)
        self.offset -= np.float32(learning_rate) * error.mean(0)
        return float((error**2).mean()), len(windows)

    def evaluate(self, read: Callable[[str], np.ndarray] | None = None) -> tuple[float, int]:
        slope, offset = (read or self.read)("slope"), (read or self.read)("offset")
        return float(((slope - 3) ** 2 + (offset + 1) ** 2).mean()), 1

    def evaluator(self) -> "Line":
        return Line()

    def state_bytes(self) -> bytes:
        return b""

    def load_state_bytes(self, data: bytes) -> None:
        assert not data


def test_a_model_and_data_of_ones_own_converge_to_what_is_known(swarm: VirtualSwarm) -> None:
    swarm.add_peers(4, run=Experiment(task=lambda config: Line(), changes={"fragments": {"count": 2}}))
    swarm.run(minutes=30)
    assert swarm.losses[0] == pytest.approx(10.0)  # (0 - 3)² + (0 + 1)²
    assert swarm.losses[-1] < 0.01
    assert all(peer.tokens > 0 and peer.loss < 1.0 for peer in swarm.peers)


def test_a_merge_rule_of_ones_own_is_the_one_that_merges(swarm: VirtualSwarm) -> None:
    rounds: list[int] = []

    def nothing(contributions: Sequence[Contribution], fragment: Fragment, /, **_rule: object) -> np.ndarray:
        rounds.append(len(contributions))
        shares = [1.0 / len(contributions)] * len(contributions)
        return weighted_mean([0.0 * one.values for one in contributions], shares)

    swarm.add_peers(3, run=Experiment("sim-quadratic", merge=nothing))
    swarm.run(minutes=10)
    assert max(rounds) == 3 and min(swarm.versions) > 1
    assert swarm.losses[-1] == pytest.approx(
        swarm.losses[0]
    )  # what is merged is nothing, so nothing is learnt together


def test_the_same_seed_tells_the_same_story() -> None:
    def events(seed: int) -> list[object]:
        with VirtualSwarm(seed) as swarm:
            swarm.add_peers(3, network="hostile")
            swarm.run(minutes=5)
            return [(event.at, event.peer, event.kind, str(event.fields)) for event in swarm.events]

    assert events(5) == events(5) != events(6)


def test_a_killed_peer_is_dead_until_it_is_restarted(swarm: VirtualSwarm) -> None:
    first, second, third = swarm.add_peers(3)
    swarm.run(minutes=5)
    swarm.kill(third)
    assert not third.is_alive and third.versions == [] and math.isnan(third.loss)
    swarm.run(minutes=5)
    swarm.restart(third)
    swarm.run(minutes=10)
    assert third.is_alive and swarm.heads_agree()
    assert first.versions == second.versions == third.versions
    assert [event.fields["resumed"] for event in swarm.events_of("run")] == [False]


def test_a_frozen_peer_stands_still_and_goes_on(swarm: VirtualSwarm) -> None:
    _, second = swarm.add_peers(2)
    swarm.run(minutes=3)
    swarm.freeze(second)
    before = second.tokens
    swarm.run(minutes=3)
    assert second.tokens == before
    swarm.thaw(2)
    swarm.run(minutes=3)
    assert second.tokens > before


def test_faults_are_objects_or_as_in_a_scenario_file(swarm: VirtualSwarm) -> None:
    swarm.add_peers(4)
    swarm.apply(Kill(kind="kill", peers=[2]))
    swarm.apply({"kind": "kill", "peers": [3], "at": 60.0, "restart_after": 60.0})
    assert [peer.is_alive for peer in swarm.peers] == [True, False, True, True]
    swarm.run(seconds=90)
    assert [peer.is_alive for peer in swarm.peers] == [True, False, False, True]
    swarm.run(minutes=5)
    assert [peer.is_alive for peer in swarm.peers] == [True, False, True, True]


def test_peers_come_and_go_by_themselves(swarm: VirtualSwarm) -> None:
    swarm.add_peers(4)
    swarm.churn(replace_share=0.5, every_minutes=2.0, spare=[1])
    swarm.run(minutes=10)
    assert len(swarm.peers) > 4 and swarm.peers[0].is_alive
    swarm.stop_churn()
    swarm.run(minutes=5)
    assert swarm.heads_agree()


def test_a_settled_swarm_has_merged_everything(swarm: VirtualSwarm) -> None:
    swarm.add_peers(3)
    swarm.run(minutes=5)
    swarm.settle()
    assert swarm.heads_agree(within=0) and swarm.goodput > 0.8
    pending = [
        tally.pending
        for peer in swarm.peers
        if peer.peer and peer.peer.learner
        for tally in peer.peer.learner.tallies()
    ]
    assert pending == [0] * 12


def test_what_a_checker_finds_is_raised_where_it_happens() -> None:
    swarm = VirtualSwarm(seed=1)
    swarm.add_peers(2)
    follower = swarm.peers[1].peer.chains.followers[0]  # type: ignore[union-attr]
    state = follower.archive.state
    state.anchor.setflags(write=True)
    state.anchor[0] += 1.0  # a bit flips in its memory
    with pytest.raises(Violation, match=r"seed 1, .*anchor"):
        swarm.run(minutes=10)
    swarm.close()


def test_nothing_can_be_asked_of_a_swarm_without_peers_or_after_its_end() -> None:
    swarm = VirtualSwarm()
    with pytest.raises(ConfigError, match="add_peers comes first"):
        swarm.run(minutes=1)
    swarm.add_peers(1)
    swarm.close()
    with pytest.raises(ConfigError, match="closed"):
        swarm.run(minutes=1)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda swarm: swarm.add_peers(0), r"add_peers\(0\)"),
        (lambda swarm: swarm.add_peers(1, network="home-intrenet"), "did you mean 'home-internet'"),
        (lambda swarm: swarm.add_peers(1, run="pycode"), "one run"),
        (lambda swarm: swarm.run(minutes=-1), "greater than 0"),
        (lambda swarm: swarm.kill(9), "there is no peer 9, only 2"),
        (lambda swarm: swarm.apply({"kind": "kill", "peers": [9]}), "there is no peer 9, only 2"),
        (lambda swarm: swarm.apply({"kind": "kil", "peers": [1]}), "kil"),
        (lambda swarm: swarm.partition([1], [1, 2]), "both"),
        (lambda swarm: swarm.churn(), r"no \[sessions\]"),
        (lambda swarm: swarm.churn(every=2.0), "unknown key every"),
    ],
)
def test_a_mistake_is_one_line(swarm: VirtualSwarm, wrong: Callable[[VirtualSwarm], object], words: str) -> None:
    swarm.add_peers(2)
    with pytest.raises(ConfigError, match=words) as caught:
        wrong(swarm)
    assert "\n" not in str(caught.value)
