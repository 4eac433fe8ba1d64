"""The learning rate of an inner step, as a pure function of the swarm's progress.

Warm-up, then a cosine down to a fraction (Loshchilov & Hutter 2017, arXiv:1608.03983). Progress is counted by the swarm
(versions of the anchors times H, plus the peer's own steps since), so that a newcomer trains at the others' rate.
"""

import math

from p2ptrain.config import InnerConfig


def learning_rate(progress_steps: float, config: InnerConfig) -> float:
    """Return the learning rate after `progress_steps` inner steps; it stays where the cosine ends."""
    warmth = min(1.0, (progress_steps + 1.0) / max(1, config.warmup_steps))
    cosine_steps = max(1, config.total_steps - config.warmup_steps)
    part = min(1.0, max(0.0, progress_steps - config.warmup_steps) / cosine_steps)
    height = 0.5 * (1.0 + math.cos(math.pi * part))
    return config.learning_rate * warmth * (config.final_fraction + (1.0 - config.final_fraction) * height)
