"""Shrinking finds the faults that matter, by running smaller and smaller plans."""

import asyncio

import pytest

from p2ptrain.explore.plan import Plan, draw_plan
from p2ptrain.explore.shrink import MAX_ATTEMPTS, Shrinker
from p2ptrain.explore.story import Outcome


def outcome_of(plan: Plan, needed: set[int], least_peers: int = 2, rule: str = "anchor") -> Outcome:
    """Fail when all faults are there that are needed; each fault finds its moment but the odd ones below ten."""
    numbers = {fault.number for fault in plan.faults}
    fails = needed <= numbers and plan.peers >= least_peers
    hits = [(fault.number, fault.cell, fault.at) for fault in plan.faults if fault.number not in (1, 3, 5, 7, 9)]
    return Outcome(plan=plan, rule=rule if fails else "", failure="it failed", hits=hits, at=plan.seconds)


@pytest.mark.parametrize("needed", [set(), {4}, {0, 19}, {2, 6, 12}])
def test_only_the_faults_that_matter_are_left(needed: set[int]) -> None:
    async def attempt(plan: Plan) -> Outcome:
        return outcome_of(plan, needed, least_peers=5)

    plan = draw_plan(1)
    shrinker = Shrinker(attempt, outcome_of(plan, needed))
    smallest = asyncio.run(shrinker.shrink())
    assert {fault.number for fault in smallest.plan.faults} == needed
    assert smallest.plan.peers == 5 and smallest.plan.minutes < plan.minutes and smallest.failed
    assert shrinker.num_attempts <= MAX_ATTEMPTS


def test_another_failure_does_not_count() -> None:
    async def attempt(plan: Plan) -> Outcome:
        return outcome_of(plan, set(), rule="anchor" if len(plan.faults) == 20 else "weight")

    plan = draw_plan(1)
    smallest = asyncio.run(Shrinker(attempt, outcome_of(plan, set())).shrink())
    assert len(smallest.plan.faults) == 20 and smallest.rule == "anchor"
