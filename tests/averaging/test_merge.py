"""Merging against one-process references."""

import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2ptrain.averaging.merge import (
    RULES,
    Contribution,
    merge,
    norm,
    norms_match,
    piece_norms,
    radial_directional_mean,
    weighted_mean,
    weighted_median,
    weights,
)
from p2ptrain.fragments.layout import TensorSpec, make_layout

FRAGMENT = make_layout([TensorSpec("large", (64, 64)), TensorSpec("small", (8,))], 1).fragments[0]


def contribution(values: np.ndarray, tokens: int = 100, steps: int = 10) -> Contribution:
    return Contribution(tokens, steps, values.astype(np.float32))


def random_values(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(FRAGMENT.num_elements).astype(np.float32)


def test_one_contributor_is_merged_as_it_is_bit_for_bit() -> None:  # BUG-A02
    values = random_values(1)
    np.testing.assert_array_equal(merge([contribution(values)], FRAGMENT, rule="rda", max_weight_ratio=3.0), values)


def test_an_empty_round_is_refused() -> None:  # BUG-M01
    with pytest.raises(ValueError, match="without contributions"):
        merge([], FRAGMENT, rule="rda", max_weight_ratio=3.0)


def test_the_mean_is_the_weighted_mean() -> None:
    one, other = random_values(1), random_values(2)
    merged = merge(
        [contribution(one, tokens=100), contribution(other, tokens=300, steps=30)],
        FRAGMENT,
        rule="mean",
        max_weight_ratio=3.0,
    )
    np.testing.assert_allclose(merged, 0.25 * one + 0.75 * other, rtol=1e-5, atol=1e-6)


@settings(max_examples=100, deadline=None)
@given(seeds=st.lists(st.integers(0, 10_000), min_size=2, max_size=8, unique=True), radius=st.floats(1e-3, 1e3))
def test_equal_lengths_stay_that_length_whatever_the_directions(seeds: list[int], radius: float) -> None:
    parts = [random_values(seed)[:4096] for seed in seeds]
    parts = [np.float32(radius / norm(part)) * part for part in parts]
    merged = radial_directional_mean(parts, [1 / len(parts)] * len(parts))
    assert norm(merged) == pytest.approx(radius, rel=1e-4)


def test_opposite_directions_are_not_blown_up() -> None:
    part = random_values(1)[:4096]
    nearly_opposite = -part + np.float32(1e-4) * random_values(2)[:4096]
    merged = radial_directional_mean([part, nearly_opposite], [0.5, 0.5])
    mean = weighted_mean(
        [part / np.float32(norm(part)), nearly_opposite / np.float32(norm(nearly_opposite))], [0.5, 0.5]
    )
    assert norm(merged) <= 2 * 2**0.5 * norm(part) * norm(mean) * 1.01


def test_all_zero_contributions_merge_to_zero() -> None:
    zeros = np.zeros(FRAGMENT.num_elements)
    merged = merge([contribution(zeros), contribution(zeros)], FRAGMENT, rule="rda", max_weight_ratio=3.0)
    assert not merged.any() and np.isfinite(merged).all()


def test_small_tensors_take_the_plain_mean_and_large_ones_the_direction() -> None:
    one, other = random_values(1), random_values(2)
    merged = merge([contribution(one), contribution(other)], FRAGMENT, rule="rda", max_weight_ratio=3.0)
    small = next(piece.place for piece in FRAGMENT.pieces if piece.tensor.name == "small")
    large = next(piece.place for piece in FRAGMENT.pieces if piece.tensor.name == "large")
    np.testing.assert_allclose(merged[small], (one[small] + other[small]) / 2, rtol=1e-5)
    assert norm(merged[large]) > 1.2 * norm((one[large] + other[large]) / 2)


def test_weight_is_work_times_batch_and_nobody_outweighs_the_median_by_far() -> None:
    equal = weights([Contribution(100, 10, random_values(1))] * 3, 3.0)
    assert equal == [1000.0] * 3
    half_the_steps = weights([Contribution(100, 10, random_values(1)), Contribution(50, 5, random_values(1))], 3.0)
    assert half_the_steps[1] == half_the_steps[0] / 2
    absurd = weights([Contribution(100, 10, random_values(1))] * 3 + [Contribution(10**12, 1, random_values(1))], 3.0)
    assert absurd[-1] == 3000.0


def test_norms_that_are_not_those_of_the_bytes_are_noticed() -> None:
    values = random_values(1)
    norms = piece_norms(values, FRAGMENT)
    assert norms_match(norms, values, FRAGMENT)
    assert not norms_match((norms[0] * 2, *norms[1:]), values, FRAGMENT)
    assert not norms_match(norms, values * np.float32(1.5), FRAGMENT)


def reference(parts: list[np.ndarray], rule: str) -> np.ndarray:
    """Each rule again, written the other way: one element at a time, in float64."""
    rows = np.array(parts, np.float64)
    count = len(parts)
    lengths = [float(np.linalg.norm(row)) for row in rows]
    if rule == "mean":
        return rows.mean(axis=0)
    if rule == "median":
        return np.array([statistics.median(column) for column in rows.T])
    if rule == "trimmed-mean":
        cut = max(count // 5, 1 if count >= 3 else 0)
        return np.array([statistics.fmean(sorted(column)[cut : count - cut]) for column in rows.T])
    if rule == "centered-clip":
        radius = statistics.median(lengths)
        return sum(row * min(1.0, radius / length) for row, length in zip(rows, lengths, strict=True)) / count
    radius = statistics.median(lengths) if rule == "rda-median" else statistics.fmean(lengths)
    direction = sum(row / length for row, length in zip(rows, lengths, strict=True)) / count
    return direction * radius * min(1 / float(np.linalg.norm(direction)), 2 * count**0.5)


@pytest.mark.parametrize("rule", list(RULES))
@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 11])
def test_every_rule_is_its_reference(rule: str, count: int) -> None:
    parts = [random_values(seed)[:200] * np.float32(1 + seed % 3) for seed in range(count)]
    if rule == "rda-median" and count % 2 == 0:
        parts = [part / np.float32(norm(part)) for part in parts]  # an even median of equal lengths is one of them
    merged = RULES[rule](parts, [1 / count] * count)
    assert merged.dtype == np.float32
    np.testing.assert_allclose(merged, reference(parts, rule), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rule", ["trimmed-mean", "median", "centered-clip", "rda-median"])
@pytest.mark.parametrize("attack", ["huge", "flipped", "one element"])
def test_a_robust_rule_stays_near_the_honest_mean_with_one_hostile_peer_of_eight(rule: str, attack: str) -> None:
    honest_direction = random_values(99)
    honest = [honest_direction + np.float32(0.3) * random_values(seed) for seed in range(7)]
    hostile = {
        "huge": np.float32(1e6) * random_values(7),
        "flipped": np.float32(-10) * honest_direction,
        "one element": np.where(np.arange(honest_direction.size) == 5, np.float32(1e6), honest[0]),
    }[attack]
    merged = merge([contribution(part) for part in [*honest, hostile]], FRAGMENT, rule=rule, max_weight_ratio=3.0)
    large = FRAGMENT.pieces[0].place
    mean = np.mean(honest, axis=0)[large]
    assert norm(merged[large] - mean) < 0.5 * norm(mean)
    if attack == "huge":
        poisoned = merge(
            [contribution(part) for part in [*honest, hostile]], FRAGMENT, rule="mean", max_weight_ratio=3.0
        )
        assert norm(poisoned[large] - mean) > 100 * norm(mean)


def test_the_weighted_median_follows_the_shares() -> None:
    assert weighted_median([1.0, 2.0, 3.0], [1 / 3] * 3) == pytest.approx(2.0)
    assert weighted_median([3.0, 1.0, 2.0], [0.8, 0.1, 0.1]) > 2.5
    assert weighted_median([5.0, 5.0], [0.5, 0.5]) == 5.0


@settings(max_examples=50, deadline=None)
@given(seeds=st.lists(st.integers(0, 10_000), min_size=2, max_size=7, unique=True), rule=st.sampled_from(list(RULES)))
def test_no_rule_depends_on_who_comes_first(seeds: list[int], rule: str) -> None:
    parts = [random_values(seed)[:64] for seed in seeds]
    forwards = RULES[rule](parts, [1 / len(parts)] * len(parts))
    backwards = RULES[rule](parts[::-1], [1 / len(parts)] * len(parts))
    np.testing.assert_allclose(forwards, backwards, rtol=1e-3, atol=1e-5)
