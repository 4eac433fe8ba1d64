"""A process that runs plans: one line of JSON in (the plan), one line out (what became of it), until its stdin ends.

python -m p2ptrain.explore.worker RUN
"""

import json
import sys
from dataclasses import asdict
from typing import Any, TextIO

from p2ptrain.config import load_run_config
from p2ptrain.explore.plan import Plan
from p2ptrain.explore.story import Outcome, hunt_config, run_plan


def outcome_to_json(outcome: Outcome) -> str:
    fields: dict[str, Any] = {**asdict(outcome), "plan": outcome.plan.model_dump()}
    return json.dumps(fields, default=str)


def outcome_from_json(line: str | bytes) -> Outcome:
    fields = json.loads(line)
    plan = Plan.model_validate(fields.pop("plan"))
    hits = [(number, tuple(cell), at) for number, cell, at in fields.pop("hits")]
    return Outcome(plan=plan, hits=hits, **fields)


def serve(run: str, lines: TextIO, answers: TextIO) -> None:
    """Run the plans in `lines`, each in the process as it is."""
    config = hunt_config(load_run_config(run))
    for line in lines:
        outcome = run_plan(config, Plan.model_validate_json(line))
        answers.write(outcome_to_json(outcome) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve(sys.argv[1], sys.stdin, sys.stdout)
