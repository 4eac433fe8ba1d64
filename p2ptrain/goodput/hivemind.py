"""Volunteers with hivemind's own matchmaking, in virtual time, beside p2ptrain's peers.

What runs is hivemind's `Matchmaking` over its DHT (sim/matchmaking.py says what is modelled around it): peers train for
an interval, then each looks for a group and stops training until its group has reduced. Whoever finds no group, or is in
one that a member vanished from, has lost the work of that interval.

Its goodput counts work that was merged in *any* group. hivemind's groups of one round share nothing, so the share of the
largest group says how far it is still one model.
"""

from dataclasses import dataclass
from statistics import fmean

from p2ptrain.goodput.sessions import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class HivemindResult:
    """What it came to. Shares from 0 to 1."""

    goodput: float
    goodput_while_on: float
    participation: float
    """Mean over rounds of the peers that merged / peers that were on."""
    largest_group: float
    """Mean over rounds of the largest group / peers that looked for one."""
    groups: float
    """Groups of a round, on average."""
    seconds_per_round: float
    """Mean virtual seconds from the end of an epoch until the last peer trains again."""
    rounds: int
    real_seconds: float


def simulate_hivemind(num_peers: int, plan: Plan, *, seconds: float, interval: float, seed: int) -> HivemindResult:
    """Run hivemind's matchmaking through a plan of sessions; `real_seconds` is for the caller to fill in."""
    from p2ptrain.sim.matchmaking import simulate_matchmaking  # imports hivemind, which takes seconds

    result = simulate_matchmaking(num_peers, seed=seed, hours=seconds / 3600.0, interval=interval, plan=plan)
    rounds = result.rounds
    return HivemindResult(
        goodput=result.goodput,
        goodput_while_on=result.goodput_while_on,
        participation=result.participation,
        largest_group=result.largest_group_share,
        groups=fmean(len(one.group_sizes) for one in rounds) if rounds else 0.0,
        seconds_per_round=fmean(one.seconds for one in rounds) if rounds else 0.0,
        rounds=len(rounds),
        real_seconds=0.0,
    )
