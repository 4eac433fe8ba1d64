"""Chips fail: the paper's table within its bound, and what must hold whatever the numbers are."""

from dataclasses import replace

import pytest

from p2ptrain.goodput import published
from p2ptrain.goodput.failures import (
    Cell,
    FailureModel,
    closed_form,
    differences,
    inelastic,
    root_mean_square,
    seconds_in_all,
    simulate_cell,
    simulate_table,
)


@pytest.fixture(scope="module")
def table() -> dict[str, list[Cell]]:
    return simulate_table(seed=1, num_failures=20_000)


def test_the_papers_25_cells_within_one_and_a_half_points(table: dict[str, list[Cell]]) -> None:
    assert [len(cells) for cells in table.values()] == [5] * 5
    assert root_mean_square(table) <= 1.5
    assert max(abs(error) for row in differences(table).values() for error in row) <= 3.5


def test_more_chips_cost_goodput_and_more_learners_save_it(table: dict[str, list[Cell]]) -> None:
    shares = [[cell.goodput for cell in cells] for cells in table.values()]
    for cells in shares:
        assert cells == sorted(cells, reverse=True)
    for column in zip(*shares, strict=True):
        assert list(column) == sorted(column)


def test_uptime_is_whole_from_four_learners_on(table: dict[str, list[Cell]]) -> None:
    assert all(cell.uptime > 0.99 for row in ("4", "8", "16") for cell in table[row])
    assert all(cell.uptime == 1.0 for cell in table["16"])
    assert all(cell.goodput <= cell.uptime for cells in table.values() for cell in cells)


@pytest.mark.parametrize(("num_chips", "num_learners"), [(20_000, 1), (40_000, 1), (40_000, 4), (150_000, 16)])
def test_rare_failures_cost_what_the_closed_form_says(num_chips: int, num_learners: int) -> None:
    simulated = simulate_cell(num_chips, num_learners, seed=2, num_failures=20_000).goodput
    assert 1.0 - simulated == pytest.approx(1.0 - closed_form(num_chips, num_learners), rel=0.06)
    assert simulated < 0.99


def test_a_system_of_learners_is_as_good_as_one_learner_of_their_size() -> None:
    together = simulate_cell(600_000, 4, seed=3).goodput
    alone = simulate_cell(150_000, 1, seed=3).goodput
    assert together == pytest.approx(alone, abs=0.005)


@pytest.mark.parametrize("name", ["stop_seconds", "readmission_seconds", "mean_repair_seconds"])
def test_whatever_takes_longer_costs_goodput(name: str) -> None:
    model = FailureModel()
    slower = replace(model, **{name: 3.0 * getattr(model, name)})
    before, after = (simulate_cell(300_000, 2, seed=4, model=one, num_failures=10_000) for one in (model, slower))
    assert after.goodput < before.goodput - 0.005


def test_without_pauses_only_the_slices_that_are_away_are_lost() -> None:
    model = FailureModel(stop_seconds=0.0, readmission_seconds=0.0, readmission_interval=0.0)
    cell = simulate_cell(150_000, 1, seed=5, model=model, num_failures=20_000)
    failures_per_slice = model.slice_chips / model.interruption_interval
    assert cell.uptime == 1.0
    assert 1.0 - cell.goodput == pytest.approx(model.mean_repair_seconds * failures_per_slice, rel=0.05)


def test_the_same_seed_gives_the_same_cell() -> None:
    first, again, other = (simulate_cell(300_000, 2, seed=seed, num_failures=2_000) for seed in (6, 6, 7))
    assert first == again != other


def test_restarting_after_every_failure_is_the_papers_extra_row() -> None:
    ours = [100.0 * inelastic(chips) for chips in published.CHIPS]
    assert ours == pytest.approx(published.INELASTIC_GOODPUT, abs=4.0)


@pytest.mark.parametrize(
    ("pauses", "seconds"),
    [
        ([[(1.0, 3.0)], [(2.0, 4.0)]], 1.0),
        ([[(1.0, 2.0)], [(2.0, 3.0)]], 0.0),
        ([[(0.0, 9.0)], [(2.0, 3.0), (5.0, 6.5)]], 2.5),
        ([[(-5.0, 1.0), (9.0, 20.0)]], 2.0),
        ([[(1.0, 2.0)], []], 0.0),
    ],
)
def test_nobody_trains_where_all_pauses_overlap(pauses: list[list[tuple[float, float]]], seconds: float) -> None:
    assert seconds_in_all(pauses, 0.0, 10.0) == pytest.approx(seconds)
