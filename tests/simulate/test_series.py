"""What the plots of real processes are drawn from."""

import pytest

from p2ptrain.config import load_run_config
from p2ptrain.events import Event
from p2ptrain.simulate.chains import AdoptedCommit
from p2ptrain.simulate.lives import End, Life
from p2ptrain.simulate.plots import noise_floor
from p2ptrain.simulate.series import series_of
from p2ptrain.training.quadratic import Quadratic


def a_life(number: int) -> Life:
    life = Life(number=number, born_at=100.0)
    life.hear([Event("started", 100.0, 0.0, {"peer": f"peer-{number}"}), Event("training", 100.0, 0.0, {})])
    for second in range(1, 101):
        fields = {"inner_steps": second, "tokens": 10 * second, "loss": 1.0, "bytes_sent": 1000 * second}
        life.hear([Event("progress", 100.0 + second, 0.0, fields)])
    return life


def test_a_swarm_of_real_processes_over_time() -> None:
    one, other = a_life(1), a_life(2)
    other.close(End.KILLED, 150.5)
    tokens = {"peer-1": 250, "peer-2": 250}
    commit = AdoptedCommit(fragment=0, version=1, commit="aa", parent="00", committed_at=125.2, tokens=tokens)
    leads = {
        "fragment": 0,
        "version": 1,
        "commit": "aa",
        "contributors": list(tokens),
        "seconds": 2.0,
        "staleness": 0.5,
    }
    one.hear(
        [Event("round-committed", 125.2, 0.0, leads), Event("round-aborted", 150.0, 0.0, {"fragment": 0, "version": 2})]
    )
    for life, at in ((one, 125.2), (other, 130.0)):
        life.hear([Event("adopted", at, 0.0, {"fragment": 0, "version": 1})])
    one.hear([Event("adopted", 128.0, 0.0, {"fragment": 0, "version": 2})])
    series = series_of(
        [one, other], [commit], num_fragments=1, largest=64, interval=5.0, began_at=100.0, stopped_at=200.0
    )
    looks = {round(look.at, 1): look for look in series.looks}
    assert (looks[50.0].num_alive, looks[51.0].num_alive) == (2, 1)
    assert looks[50.0].bytes_sent == 100_000
    assert looks[25.0].goodput == 0.0 and looks[25.5].goodput == pytest.approx(500 / (2 * 10 * 25.5))
    assert looks[29.0].behind == 0.0  # the other one has adopted nothing yet
    assert looks[40.0].behind == pytest.approx(0.5)
    assert [(one.at, one.share, one.staleness) for one in series.rounds] == [(pytest.approx(25.2), 1.0, 0.5)]
    assert series.aborted == [(50.0, 0)]


def test_one_peer_alone_ends_at_the_noise_floor() -> None:
    config = load_run_config("sim-quadratic")
    task, losses = Quadratic(config), []
    for step in range(2000):
        loss, _ = task.train_step([step], config.inner.learning_rate)
        losses.append(loss)
    assert sum(losses[1000:]) / 1000 == pytest.approx(noise_floor(config), rel=0.05)
