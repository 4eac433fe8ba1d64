"""What a simulation shows."""

import io

from rich.console import Console

from p2ptrain.events import Event
from p2ptrain.simulate.lives import End, Life
from p2ptrain.simulate.progress import SimulationView, doing, plain_line, sizes, table, verdict


class StoppedClock:
    """A clock that moves when told to."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now


def a_life(number: int) -> Life:
    life = Life(number=number, born_at=0.0)
    progress = {"tokens": 5000, "tokens_merged": 4000, "loss": 2.0, "inner_steps": 50, "tokens_per_second": 100.0}
    life.hear(
        [
            Event("started", 0.0, 0.0, {"peer": f"12D3KooWpeer{number}"}),
            Event("training", 1.0, 1.0, {"first_step": 1}),
            Event("progress", 2.0, 2.0, progress),
            Event("adopted", 2.0, 2.0, {"fragment": 0, "version": 1, "commit": "aa"}),
        ]
    )
    return life


def test_a_plain_line_counts_each_commit_once() -> None:
    line = plain_line([a_life(1), a_life(2)], 65.0)
    assert line == "0:01:05 · 2 alive · 10k tokens trained, 8k merged in 1 commits · loss 2.000"


def test_without_a_terminal_there_is_a_line_every_few_seconds() -> None:
    out, clock = io.StringIO(), StoppedClock()
    with SimulationView(Console(file=out, force_terminal=False), clock) as view:
        for tenth in range(200):
            clock.now = tenth / 10
            view.update([a_life(1)], clock.now)
    assert [line[:7] for line in out.getvalue().splitlines()] == ["0:00:00", "0:00:05", "0:00:10", "0:00:15"]


def test_a_terminal_gets_a_table_and_keeps_what_was_said() -> None:
    out, clock = io.StringIO(), StoppedClock()
    with SimulationView(Console(file=out, force_terminal=True, width=120, height=30), clock) as view:
        view.update([a_life(1)], 1.0)
        view.say("killed peer 2 (kill-one)")
    assert "training" in out.getvalue()
    assert "killed peer 2 (kill-one)" in out.getvalue()


def test_a_table_shows_the_latest_life_of_each_peer() -> None:
    killed = a_life(2)
    killed.close(End.KILLED, 3.0)
    out = io.StringIO()
    Console(file=out, width=120).print(table([a_life(1), killed, Life(number=2, born_at=8.0)], 9.0))
    rows = out.getvalue().splitlines()
    assert rows[2].split()[:3] == ["1", "Wpeer1", "training"]
    assert "starting" in rows[3]


def test_what_a_peer_does_is_a_word_or_two() -> None:
    life = a_life(1)
    assert doing(life) == "training"
    life.hear([Event("round-called", 3.0, 3.0, {"fragment": 0, "version": 2})])
    assert doing(life) == "leads a round"
    life.hear([Event("draining", 4.0, 4.0, {})])
    assert doing(life) == "draining"
    life.close(End.CRASHED, 5.0)
    assert doing(life) == "crashed"


def test_the_verdict_says_why_there_is_no_agreement() -> None:
    summary = {
        "tokens_trained": 1000, "tokens_merged": 800, "tokens_pending": 100, "tokens_dropped": {"killed": 100}, "seconds": 60.0,
        "contributors_per_round": {"2": 5, "3": 7}, "rounds_committed": 12, "rounds_aborted": 1, "forks": 0, "reorgs": 0,
        "utilisation": 0.95, "participation": 0.9, "participation_of_limit": 0.95, "goodput": 0.8,
        "validation_loss_first": 5.5, "validation_loss_last": None,
        "anchors_agree": False, "num_reports": 2, "anchors_compared": 4, "disagreements": ["peer 3 was not there at the end"], "peers": [],
    }  # fmt: skip
    lines = verdict(summary)
    assert "dropped: 100 killed" in lines[0]
    assert "2: 5, 3: 7" in lines[1]
    assert lines[2] == "utilisation 95%, participation 90% (95% of what a leader takes), goodput 80%"
    assert lines[3] == "validation loss 5.500 (genesis) to – (anchors)"
    assert lines[-1] == "NOT AGREED: peer 3 was not there at the end"


def test_rounds_of_many_sizes_are_summed_up() -> None:
    assert sizes({}) == "none"
    assert sizes({str(number): number for number in range(1, 15)}) == "1 to 14, median 10"
