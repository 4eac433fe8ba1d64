"""What the paper says: "Decoupled DiLoCo for Resilient Distributed Pre-training" (arXiv:2604.21428, 2026).

Percentages and relative times are copied from its tables 1, 4 and 5. Its simulator's recovery times are not published.
"""

from typing import Final

SECONDS_PER_YEAR: Final = 365.25 * 86_400.0

CHIP_INTERRUPTION_INTERVAL: Final = SECONDS_PER_YEAR  # mean seconds between two interruptions of one chip
CHIPS: Final = (150_000, 300_000, 600_000, 1_200_000, 2_400_000)  # the columns of table 1

ELASTIC: Final = "elastic"
GOODPUT: Final[dict[str, tuple[float, ...]]] = {  # table 1, %: elastic data parallelism, and Decoupled with M learners
    ELASTIC: (88.0, 80.0, 69.0, 58.0, 40.0),
    "2": (94.0, 88.0, 80.0, 70.0, 54.0),
    "4": (96.0, 93.0, 89.0, 82.0, 73.0),
    "8": (98.0, 96.0, 94.0, 88.0, 80.0),
    "16": (99.0, 98.0, 96.0, 93.0, 86.0),
}
INELASTIC_GOODPUT: Final = (72.0, 57.0, 38.0, 27.0, 18.0)  # table 1, %: data parallelism without elasticity

NUM_FRAGMENTS: Final = 24  # P; one is due at each step
INNER_STEPS: Final = 24  # H: steps between two rounds of a fragment
OVERLAP_STEPS: Final = 2  # τ: steps within which a merge is to return
LONGEST_GRACE_STEPS: Final = 1.0  # "up to about one step"

NUM_MIXED_LEARNERS: Final = 8  # table 5
SLOWEST_BEHIND: Final = 0.18  # the slowest of two speed generations
JITTER: Final = 0.10
POLICIES: Final = {  # table 5: goodput %, text score, vision score
    "K = 8 (wait for all)": (84.0, 54.4, 37.6),
    "K = 1, no grace": (100.0, 51.4, 25.7),
    "K = 1 + adaptive grace": (100.0, 55.3, 37.0),
}

EXTRA_COMPUTE: Final = (0.0, 0.25, 0.5, 1.0, 3.0)  # table 4: scavenged chips, as a share of those that are always there
SCAVENGING_TIME: Final = {  # table 4: time to finish, relative to no extra chips
    "data parallel": (1.00, 1.07, 1.09, 1.02, 0.80),
    "decoupled": (1.00, 0.90, 0.83, 0.75, 0.62),
}
