"""Does it learn as well as one big machine? The matrix of algorithms and settings, on real text, at equal tokens.

    python benchmarks/learning_matrix.py run [--only PATTERN] [--part 1/2] [--seeds 3]   # resumable, cell by cell
    python benchmarks/learning_matrix.py table                                           # what the committed CSV says

One process, no network: learners take turns by a clock of ticks (one inner step of an ordinary learner), and every part
that decides what is learned is the product's own: model, text, inner optimizer, accounts, codecs, merge rules, outer
step. What a real swarm adds is when things arrive; here that is a number (`tau`, the return time in steps), so it can be
varied. Every method of a seed starts from the same values, draws the same windows in the same order and is judged on
the same held-out windows. The loss is that of the anchors, in nats per byte, after all that was under way has landed.
"""

import argparse
import csv
import fnmatch
import math
import statistics
import time
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import numpy as np

from p2ptrain.averaging.merge import RULES, Contribution, merge
from p2ptrain.config import RunConfig, load_run_config
from p2ptrain.fragments.layout import Fragment, make_layout
from p2ptrain.fragments.outer import num_moments, outer_step
from p2ptrain.training.accounts import FragmentAccount, HandOver
from p2ptrain.training.corpus import Corpus
from p2ptrain.training.learner import assemble, gather
from p2ptrain.training.preparation import prepare
from p2ptrain.training.schedule import learning_rate
from p2ptrain.training.task import Task, make_task
from p2ptrain.wire.codecs import CODECS

RESULTS = Path(__file__).with_name("learning_matrix.csv")
SMALL = {"dim": 48, "layers": 3, "heads": 4, "hidden": 128, "context": 64}  # 0.1M parameters
LARGER = {"dim": 128, "layers": 5, "heads": 4, "hidden": 344, "context": 64}  # 1.0M parameters
NUM_VALIDATION_WINDOWS = 512
FIELDS = ["cell", "seed", "method", "tokens", "tokens_per_parameter", "rounds", "loss", "dropped", "seconds"]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One line of the matrix. The defaults are p2ptrain's own."""

    name: str
    method: str = "swarm"  # or "one" learner, or "dp": one learner with everybody's windows
    peers: int = 4
    steps: int = 1200  # inner steps of each peer
    windows: int = 8  # of 64 bytes, per inner step and peer
    interval: int = 20  # H
    fragments: int = 4
    tau: int = 2  # ticks from the hand-over to the adoption; 0 blocks
    adopt: str = "rebase"  # mix, overwrite; "streaming" mixes local and global parameters half and half
    late_share: float = 1.0
    merge: str = "rda"
    weight: str = "work"  # "equal"
    outer_rate: float = 0.7
    momentum: float = 0.5
    outer: str = "sgd"
    inner: str = "adamw"
    inner_rate: float = 6e-3
    up: str = "fp16"
    down: str = "fp16"
    participation: float = 1.0  # chance of a peer to be in a round
    churn_every: int = 0  # ticks after which one random peer is replaced
    slow: int = 1  # the last peer makes a step in every so many ticks
    model: dict[str, int] = field(default_factory=lambda: SMALL)

    def config(self, seed: int) -> RunConfig:
        base = load_run_config("pycode")
        sections = {
            "seed": seed,
            "model": base.model.model_copy(update=self.model),
            "inner": base.inner.model_copy(
                update={
                    "optimizer": self.inner, "learning_rate": self.inner_rate, "total_steps": self.steps,
                    "windows_per_step": self.windows,
                }
            ),
            "outer": base.outer.model_copy(
                update={"optimizer": self.outer, "learning_rate": self.outer_rate, "momentum": self.momentum}
            ),
            "fragments": base.fragments.model_copy(update={"count": self.fragments}),
            "data": base.data.model_copy(update={"num_validation_windows": NUM_VALIDATION_WINDOWS}),
        }  # fmt: skip
        return base.model_copy(update=sections)


def cells() -> list[Cell]:
    """Return the matrix; the cells that decide something come first and get all seeds."""
    base = Cell(name="p2ptrain")
    paper = {"merge": "rda", "adopt": "overwrite", "tau": 2}
    deciding = [
        Cell(name="one worker", method="one"),
        Cell(name="synchronous DP", method="dp"),
        Cell(name="DiLoCo 0.7/0.9", merge="mean", outer_rate=0.7, momentum=0.9, tau=0, adopt="overwrite"),
        Cell(name="DiLoCo 0.7/0.5", merge="mean", outer_rate=0.7, momentum=0.5, tau=0, adopt="overwrite"),
        Cell(name="Streaming DiLoCo", merge="mean", outer_rate=0.7, momentum=0.9, tau=2, adopt="streaming"),
        Cell(name="Decoupled DiLoCo", outer_rate=0.7, momentum=0.9, **paper),
        base,
        replace(base, name="p2ptrain int4", up="int4"),
        replace(base, name="p2ptrain tau=10", tau=10),
        replace(base, name="p2ptrain churn", churn_every=500),
        replace(base, name="p2ptrain muon", inner="muon"),
        Cell(name="synchronous DP muon", method="dp", inner="muon"),
    ]
    others = [
        *(
            replace(base, name=f"budget {steps}: {cell.name}", **{**_settings(cell), "steps": steps})
            for steps in (2400, 4800)
            for cell in deciding[1:7]
        ),
        *(
            replace(base, name=f"tau={tau} {adopt}", tau=tau, adopt=adopt)
            for tau in (2, 10, 20)
            for adopt in ("rebase", "mix", "overwrite")
        ),
        *(replace(base, name=f"up={up}", up=up) for up in ("fp32", "bf16", "int8", "int4", "topk2")),
        replace(base, name="up=topk2 outer 1/0 mean", up="topk2", merge="mean", outer_rate=1.0, momentum=0.0),
        *(replace(base, name=f"down={down}", down=down) for down in ("bf16", "int8", "int4")),
        *(replace(base, name=f"merge={rule}", merge=rule) for rule in RULES),
        *(
            replace(base, name=f"outer {rate}/{momentum} {rule}", outer_rate=rate, momentum=momentum, merge=rule)
            for rate, momentum in ((1.0, 0.0), (0.7, 0.3), (0.7, 0.5), (0.7, 0.7), (0.7, 0.9), (1.0, 0.5))
            for rule in ("rda", "mean")
        ),
        replace(base, name="outer adam", outer="adam", outer_rate=0.002, momentum=0.9),
        *(replace(base, name=f"H={interval}", interval=interval) for interval in (5, 10, 40)),
        *(replace(base, name=f"{peers} peers", peers=peers, windows=32 // peers) for peers in (8, 16)),
        *(
            Cell(name=f"{peers} peers: DP", method="dp", peers=peers, windows=32 // peers) for peers in (8, 16)
        ),  # the same batch in all: they differ from "synchronous DP" by rounding only
        *(
            replace(base, name=f"participation 50% late_share={share}", participation=0.5, late_share=share)
            for share in (1.0, 0.5, 0.0)
        ),
        replace(base, name="one peer 10x slower", slow=10),
        replace(base, name="one peer 10x slower, equal weights", slow=10, weight="equal"),
        replace(base, name="solo rounds", participation=0.25),
        *(replace(base, name=f"inner lr {rate:g}", inner_rate=rate) for rate in (3e-3, 1.2e-2)),
        *(replace(base, name=f"muon lr {rate:g}", inner="muon", inner_rate=rate) for rate in (3e-3, 1.2e-2)),
        *(
            Cell(name=f"synchronous DP lr {rate:g}", method="dp", inner_rate=rate) for rate in (3e-3, 1.2e-2)
        ),
    ]  # fmt: skip
    return deciding + others


def _settings(cell: Cell) -> dict[str, object]:
    return {key: value for key, value in vars(cell).items() if key not in ("name", "steps")}


NUM_DECIDING = 12


class Learner:
    """A task with its accounts, and where it is in the text."""

    def __init__(self, cell: Cell, config: RunConfig, corpus: Corpus, fragments: list[Fragment]) -> None:
        self.task: Task = make_task(config, corpus)
        self.num_steps = 0
        keep = {"rebase": 1.0, "mix": 0.5}.get(cell.adopt, 0.0)
        self.accounts = [
            FragmentAccount(
                anchor=gather(self.task.read, fragment), version=0, keep=keep, keep_late=cell.late_share, max_staleness=8
            )
            for fragment in fragments
        ]  # fmt: skip


@dataclass(frozen=True)
class Flight:
    """A commit on its way: what everybody adopts at `lands_at`."""

    lands_at: int
    fragment: int
    included: dict[int, HandOver]
    update: np.ndarray


class Swarm:
    """The matrix's clock: learners, anchors, and what is under way."""

    def __init__(self, cell: Cell, seed: int, corpus: Corpus) -> None:
        self.cell, self.seed, self.corpus = cell, seed, corpus
        self.config = cell.config(seed)
        self.num_peers = cell.peers if cell.method == "swarm" else 1
        self.windows_per_step = cell.windows * (cell.peers if cell.method == "dp" else 1)
        probe = make_task(self.config, corpus)
        self.fragments = list(make_layout(probe.shapes(), cell.fragments).fragments)
        self.learners = [Learner(cell, self.config, corpus, self.fragments) for _ in range(self.num_peers)]
        self.anchors = [gather(probe.read, fragment) for fragment in self.fragments]
        self.moments = [np.zeros(num_moments(self.config.outer) * len(anchor), np.float32) for anchor in self.anchors]
        self.versions = [0] * len(self.fragments)
        self.order = np.random.default_rng([seed, 1]).permutation(probe.num_windows)
        self.chance = Random(seed)
        self.flights: list[Flight] = []
        self.num_drawn = self.tokens = self.dropped = self.num_rounds = 0
        self.num_parameters = sum(len(anchor) for anchor in self.anchors)

    def run(self) -> float:
        for tick in range(1, self.cell.steps + 1):
            for number, learner in enumerate(self.learners):
                is_slow = self.cell.slow > 1 and number == self.num_peers - 1
                if not is_slow or tick % self.cell.slow == 0:
                    self._step(learner, tick)
            if self.cell.method == "swarm":
                self._average(tick)
        for flight in self.flights:
            self._land(flight)
        return self._loss()

    def _step(self, learner: Learner, tick: int) -> None:
        count = self.windows_per_step
        chosen = self.order[np.arange(self.num_drawn, self.num_drawn + count) % len(self.order)]
        self.num_drawn += count
        _, tokens = learner.task.train_step(
            [int(window) for window in chosen], learning_rate(tick - 1, self.config.inner)
        )
        learner.num_steps += 1
        self.tokens += tokens
        for account in learner.accounts:
            account.count_step(learner.num_steps, tokens)

    def _average(self, tick: int) -> None:
        for flight in [one for one in self.flights if one.lands_at <= tick]:
            self.flights.remove(flight)
            self._land(flight)
        for index in range(len(self.fragments)):
            if tick >= self.cell.interval and tick % self.cell.interval == index * self.cell.interval // len(
                self.fragments
            ):
                self._hand_over(index, tick)
        if self.cell.churn_every and tick % self.cell.churn_every == 0:
            self._replace_one()

    def _hand_over(self, index: int, tick: int) -> None:
        fragment, least = self.fragments[index], max(1, self.cell.interval // 10)
        if any(flight.fragment == index for flight in self.flights):
            return  # the head has not moved yet: no round can begin
        codec, included, contributions = CODECS[self.cell.up], {}, []
        for number, learner in enumerate(self.learners):
            if self.chance.random() >= self.cell.participation or learner.accounts[index].pending_steps < least:
                continue
            hand_over = learner.accounts[index].hand_over(gather(learner.task.read, fragment))
            assert hand_over is not None
            values = codec.decode(codec.encode(hand_over.exact), fragment.num_elements)
            hand_over.encoded_error = hand_over.exact - values
            included[number] = hand_over
            tokens, steps = (hand_over.tokens, hand_over.steps) if self.cell.weight == "work" else (1, 1)
            contributions.append(Contribution(tokens, steps, values))
        if not contributions:
            return
        update = merge(contributions, fragment, rule=self.cell.merge, max_weight_ratio=3.0)
        down = CODECS[self.cell.down]
        update = down.decode(down.encode(update, seed=f"{index} {tick}".encode()), fragment.num_elements)
        flight = Flight(tick + self.cell.tau, index, included, update)
        self.num_rounds += 1
        if self.cell.tau:
            self.flights.append(flight)
        else:
            self._land(flight)

    def _land(self, flight: Flight) -> None:
        index, fragment = flight.fragment, self.fragments[flight.fragment]
        self.versions[index] += 1
        self.anchors[index], self.moments[index] = outer_step(
            self.anchors[index], self.moments[index], flight.update, self.config.outer, step=self.versions[index]
        )
        for number, learner in enumerate(self.learners):
            account = learner.accounts[index]
            mine = flight.included.get(number)
            merged_step = mine.last_step if mine is not None else account.merged_step
            local = gather(learner.task.read, fragment)
            adoption = account.adopt(local, self.anchors[index], self.versions[index], merged_step)
            self.dropped += sum(adoption.dropped.values())
            parameters = adoption.parameters
            if self.cell.adopt == "streaming":
                parameters = np.float32(0.5) * (local + self.anchors[index])
            _scatter(learner.task, fragment, parameters)

    def _replace_one(self) -> None:
        """Let one peer vanish with its pending work, and a newcomer begin on the anchors with a fresh optimizer."""
        number = self.chance.randrange(self.num_peers)
        newcomer = Learner(self.cell, self.config, self.corpus, self.fragments)
        for index, fragment in enumerate(self.fragments):
            newcomer.accounts[index].anchor = self.anchors[index]
            newcomer.accounts[index].version = self.versions[index]
            _scatter(newcomer.task, fragment, self.anchors[index])
        self.dropped += self.learners[number].accounts[0].tally().pending
        self.learners[number] = newcomer
        for flight in self.flights:
            flight.included.pop(number, None)

    def _loss(self) -> float:
        task = self.learners[0].task
        if self.cell.method != "swarm":
            return task.evaluate()[0]
        layout = make_layout(task.shapes(), self.cell.fragments)
        return task.evaluator().evaluate(assemble(layout, self.anchors).__getitem__)[0]


def _scatter(task: Task, fragment: Fragment, values: np.ndarray) -> None:
    for piece in fragment.pieces:
        whole = np.array(task.read(piece.tensor.name))
        whole[piece.start : piece.stop] = values[piece.place]
        task.write(piece.tensor.name, whole)


def run(arguments: argparse.Namespace) -> None:
    part, num_parts = (int(number) for number in arguments.part.split("/"))
    todo = [
        (cell, seed)
        for index, cell in enumerate(cells())
        for seed in range(arguments.seeds if index < NUM_DECIDING else 1)
        if fnmatch.fnmatch(cell.name, arguments.only)
    ]
    corpus = prepare(cells()[0].config(0), None, data="", threads=1, device="cpu").corpus
    assert corpus is not None
    for position, (cell, seed) in enumerate(todo):
        if position % num_parts != part - 1 or (cell.name, str(seed)) in {(row["cell"], row["seed"]) for row in rows()}:
            continue
        began_at = time.process_time()
        swarm = Swarm(cell, seed, corpus)
        loss = swarm.run()
        row = {
            "cell": cell.name, "seed": seed, "method": cell.method, "tokens": swarm.tokens,
            "tokens_per_parameter": round(swarm.tokens / swarm.num_parameters, 1),
            "rounds": round(swarm.num_rounds / cell.fragments, 1), "loss": round(loss, 5),
            "dropped": round(swarm.dropped / cell.fragments / swarm.tokens, 4), "seconds": round(time.process_time() - began_at, 1),
        }  # fmt: skip
        is_new = not RESULTS.exists()
        with RESULTS.open("a", newline="") as file:
            writer = csv.DictWriter(file, FIELDS)
            if is_new:
                writer.writeheader()
            writer.writerow(row)
        print(f"{cell.name:<36} seed {seed}  loss {loss:.4f}  {row['seconds']} s", flush=True)


def rows() -> list[dict[str, str]]:
    if not RESULTS.exists():
        return []
    with RESULTS.open(newline="") as file:
        return list(csv.DictReader(file))


def table() -> None:
    """Print each cell's loss and its paired difference to synchronous data parallel at equal tokens."""
    losses: dict[str, dict[str, float]] = defaultdict(dict)
    first: dict[str, dict[str, str]] = {}
    for row in rows():
        losses[row["cell"]][row["seed"]] = float(row["loss"])
        first.setdefault(row["cell"], row)
    print("| cell | seeds | loss | minus DP | gap % | tokens/parameter | rounds | dropped |")
    print("|---|---|---|---|---|---|---|---|")
    for cell in cells():
        if cell.name not in losses:
            continue
        prefix = f"budget {cell.steps}: " if cell.name.startswith("budget") else ""
        reference = losses.get(f"{prefix}synchronous DP", {})
        pairs = [(loss, reference[seed]) for seed, loss in losses[cell.name].items() if seed in reference]
        differences = [loss - other for loss, other in pairs]
        mean = statistics.fmean(losses[cell.name].values())
        gap = statistics.fmean(differences) if differences else math.nan
        error = statistics.stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else math.nan
        spread = f" ± {error:.4f}" if len(differences) > 1 else ""
        percent = 100 * gap / statistics.fmean(other for _, other in pairs) if pairs else math.nan
        row = first[cell.name]
        print(
            f"| {cell.name} | {len(losses[cell.name])} | {mean:.4f} | {gap:+.4f}{spread} | {percent:+.1f} | "
            f"{row['tokens_per_parameter']} | {row['rounds']} | {100 * float(row['dropped']):.0f} % |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    runner = commands.add_parser("run", help="fill in the cells that the CSV lacks")
    runner.add_argument("--only", default="*", metavar="PATTERN", help="cells by name, with * and ?")
    runner.add_argument("--part", default="1/1", metavar="I/N", help="every N-th cell from the I-th, for N processes")
    runner.add_argument("--seeds", type=int, default=3, help="of the cells that decide something")
    runner.set_defaults(function=run)
    commands.add_parser("table", help="print the results as a table").set_defaults(function=lambda _: table())
    arguments = parser.parse_args()
    arguments.function(arguments)


if __name__ == "__main__":
    main()
