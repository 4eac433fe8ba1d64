"""What is thrown away is not missed: thin lives are judged like whole ones."""

import random

import pytest

from p2ptrain.events import Event
from p2ptrain.simulate.lives import End, Life
from p2ptrain.simulate.measures import num_double_windows, pace_of
from p2ptrain.simulate.recorder import Draws, ThinLife

STOPPED_AT = 60.0


def account(at: float, **fields: object) -> Event:
    steps = int(10 * at)
    return Event("progress", at, at, {"inner_steps": steps, "tokens": 100 * steps, "loss": 2.0, "drawn": [], **fields})


def hear(life: Life, event: Event) -> None:
    if isinstance(life, ThinLife):
        life.hear_one(event, keep=True)
    else:
        life.hear([event])


def test_a_thin_life_has_the_pace_of_a_whole_one() -> None:
    whole, thin = Life(number=1, born_at=0.0), ThinLife(number=1, born_at=0.0, curve_interval=10.0)
    for second in range(80):
        if second == STOPPED_AT + 1:
            thin.stop()
        for life in (whole, thin):
            hear(life, account(float(second)))
    assert pace_of(thin, STOPPED_AT) == pace_of(whole, STOPPED_AT) is not None
    assert thin.latest("progress", "tokens", 0) == whole.latest("progress", "tokens", 0)
    assert len(thin.all("progress")) == 3
    assert list(thin.loss_curve()[0]) == [1.0, 11.0, 21.0, 31.0, 41.0, 51.0, 61.0, 71.0]


def test_dropped_tokens_are_summed_up_by_reason() -> None:
    life = ThinLife(number=1, born_at=0.0)
    for tokens, reason in ((5, "stale"), (7, "stale"), (2, "overwritten")):
        hear(life, Event("dropped", 1.0, 1.0, {"fragment": 0, "tokens": tokens, "reason": reason}))
    assert {event.fields["reason"]: event.fields["tokens"] for event in life.all("dropped")} == {
        "stale": 12,
        "overwritten": 2,
    }


def test_rounds_are_followed_although_nothing_of_them_is_kept() -> None:
    life = ThinLife(number=1, born_at=0.0)
    life.hear_one(Event("round-called", 1.0, 1.0, {"fragment": 0, "version": 3}), keep=False)
    assert life.open_rounds == {(0, 3)} and not life.events
    life.hear_one(Event("adopted", 2.0, 2.0, {"fragment": 0, "version": 3}), keep=False)
    assert not life.open_rounds and life.num_unkept == 2


@pytest.mark.parametrize("seed", range(20))
def test_double_draws_are_counted_one_by_one_as_they_are_from_the_whole_log(seed: int) -> None:
    chance, draws = random.Random(seed), Draws()
    lives = [Life(number=number, born_at=0.0) for number in (1, 2, 3)]
    for at in range(1, 40):
        index = chance.randrange(3)
        if lives[index].ended_at is not None:
            continue
        if chance.random() < 0.05:
            lives[index].ended_at, lives[index].end = float(at), End.KILLED
            continue
        drawn = [chance.randrange(30) for _ in range(3)]
        lives[index].hear([account(float(at), drawn=drawn)])
        for position in drawn:
            draws.draw(position, index, lives)
    assert draws.num_double == num_double_windows(lives), f"seed {seed}"
