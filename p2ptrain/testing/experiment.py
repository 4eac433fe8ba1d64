"""What a test lets peers train: a run of p2ptrain's, or its own model, data and merge rule.

    def clipped_mean(contributions, fragment, /, *, rule, max_weight_ratio):
        ...                                                   # pure: NumPy vectors in, one vector (num_elements,) out

    my_run = Experiment(task=lambda config: MyTask(config), merge=clipped_mean, changes={"fragments": {"count": 2}})
    swarm.add_peers(8, run=my_run)

A task is anything with the methods of `p2ptrain.training.task.Task`: it owns parameters, an inner optimizer, and data in
numbered windows. A merge rule has the signature of `p2ptrain.averaging.merge.merge`.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from p2ptrain.averaging.merge import Merge
from p2ptrain.config import RunConfig, load_run_config, validated
from p2ptrain.run import HeldOut
from p2ptrain.training.preparation import Training
from p2ptrain.training.task import Task


@dataclass(frozen=True, slots=True)
class Experiment:
    """A run, and what of it is the test's own. Only this process can make such a run: nobody can join it from outside."""

    config: str | RunConfig = "sim-quadratic"
    """A name in configs/, a path to a .toml file, or a config."""
    task: Callable[[RunConfig], Task] | None = None
    """Called once for each peer; all must have the same tensors, and the host's initial values become everybody's.
    None: the run's model. With a task, [model] and [data] of the config mean nothing; take those of sim-quadratic."""
    merge: Merge | None = None
    """Makes a round's update of its contributions. None: the run's rule."""
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Keys of the config that are another here, as in {"rounds": {"inner_steps": 50}, "fragments": {"count": 2}}."""

    @classmethod
    def of(cls, run: "str | RunConfig | Experiment") -> "Experiment":
        return run if isinstance(run, Experiment) else cls(run)

    def load(self) -> RunConfig:
        """Return the config with the changes; ConfigError when there is none of that name, or no such key."""
        config = self.config if isinstance(self.config, RunConfig) else load_run_config(self.config)
        if not self.changes:
            return config
        values: dict[str, Any] = config.model_dump()
        for section, keys in self.changes.items():
            values[section] = {**values.get(section, {}), **keys}
        return validated(RunConfig, values, "Experiment(changes=…)")

    def peer_options(self) -> dict[str, Any]:
        """Return what peers have to be told of it."""
        options: dict[str, Any] = {}
        if self.task is not None:
            options["make_training"] = functools.partial(_training, self.task)
        if self.merge is not None:
            options["merge"] = self.merge
        return options


def _training(make_task: Callable[[RunConfig], Task], config: RunConfig, _held_out: HeldOut | None) -> Training:
    task = make_task(config)
    return Training(task=task, evaluator=task.evaluator(), corpus=None)
