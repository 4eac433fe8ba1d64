"""What the inner loop costs alone: tokens per CPU-second, memory, imports. One command, one table.

    python benchmarks/inner_loop.py [--cpu-seconds 10] [--runs pycode char-mlp]

Every row is measured in a process of its own with one thread, so that memory and imports are that row's. Tokens are
counted per second of CPU time, which a busy machine distorts less than wall time. Where `transformers` is installed,
its Llama of the same shape trains on the same windows, with torch's fused AdamW, as its users would run it.
"""

import argparse
import importlib.util
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable

from p2ptrain.config import RunConfig, load_run_config
from p2ptrain.training.corpus import load_corpus, training_windows
from p2ptrain.training.task import make_task

WARM_UP_STEPS = 5  # lazy imports and first allocations

Step = Callable[[int], int]  # makes the step of this number, returns the tokens learned from


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cpu-seconds", type=float, default=10.0, help="CPU seconds of training for each row")
    parser.add_argument("--runs", nargs="+", default=["pycode", "char-mlp"], help="run configs to measure")
    parser.add_argument("--row", nargs=2, metavar=("IMPLEMENTATION", "RUN"), help="measure one row in this process")
    arguments = parser.parse_args()
    if arguments.row:
        implementation, run = arguments.row
        print(json.dumps(measured(implementation, run, arguments.cpu_seconds)))
        return
    rows = [("p2ptrain", run) for run in arguments.runs]
    if importlib.util.find_spec("transformers"):
        rows += [("transformers", run) for run in arguments.runs if load_run_config(run).model.kind == "llama"]
    else:
        print("transformers is not installed: no comparison with its Llama\n")
    print_table([in_own_process(implementation, run, arguments.cpu_seconds) for implementation, run in rows])


def in_own_process(implementation: str, run: str, cpu_seconds: float) -> dict[str, float | str]:
    command = [sys.executable, __file__, "--row", implementation, run, "--cpu-seconds", str(cpu_seconds)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    row: dict[str, float | str] = json.loads(output.splitlines()[-1])
    return row


def measured(implementation: str, run: str, cpu_seconds: float) -> dict[str, float | str]:
    """Return one row: train for so many CPU seconds, after a warm-up."""
    config = load_run_config(run)
    make_step = transformers_step if implementation == "transformers" else p2ptrain_step
    step, num_parameters = make_step(config)
    for number in range(WARM_UP_STEPS):
        step(number)
    start_cpu, num_tokens, num_steps = time.process_time(), 0, 0
    while time.process_time() - start_cpu < cpu_seconds:
        num_tokens += step(WARM_UP_STEPS + num_steps)
        num_steps += 1
    spent = time.process_time() - start_cpu
    return {
        "model": f"{run} ({implementation})",
        "parameters": num_parameters,
        "tokens/CPU-s": num_tokens / spent,
        "ms/step": 1000 * spent / num_steps,
        "start CPU-s": start_cpu,
        "max RSS MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def p2ptrain_step(config: RunConfig) -> tuple[Step, int]:
    task = make_task(config, load_corpus(config.data))

    def step(number: int) -> int:
        return task.train_step(windows_of(number, task.windows_per_step, task.num_windows), 1e-3)[1]

    return step, sum(spec.num_elements for spec in task.shapes())


def transformers_step(config: RunConfig) -> tuple[Step, int]:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(1)
    shape = config.model
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256,
            hidden_size=shape.dim,
            intermediate_size=shape.hidden,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            max_position_embeddings=shape.context,
            tie_word_embeddings=True,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    text = training_windows(load_corpus(config.data), shape.context)

    def step(number: int) -> int:
        windows = windows_of(number, config.inner.windows_per_step, text.num_windows)
        tokens = torch.from_numpy(text.batch(windows)).to(torch.int64)[:, :-1]
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.inner.clip)
        optimizer.step()
        return tokens.numel()

    return step, sum(parameter.numel() for parameter in model.parameters())


def windows_of(number: int, count: int, num_windows: int) -> list[int]:
    return [(number * count + index) % num_windows for index in range(count)]


def print_table(rows: list[dict[str, float | str]]) -> None:
    width = max(len(str(row["model"])) for row in rows)
    names = list(rows[0])[1:]
    print(f"{'model':{width}}", *(f"{name:>13}" for name in names))
    for row in rows:
        values = [f"{row[name]:>13,.2f}" if float(row[name]) < 10 else f"{row[name]:>13,.0f}" for name in names]
        print(f"{row['model']:{width}}", *values)


if __name__ == "__main__":
    main()
