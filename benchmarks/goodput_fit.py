"""How well the paper's table pins down what it does not publish: the RMS difference around the fitted values.

    python benchmarks/goodput_fit.py

Each fitted parameter of the failure simulator is changed alone. Where the RMS hardly moves, many values fit as well.
"""

from dataclasses import replace

from rich.console import Console
from rich.table import Table

from p2ptrain.goodput.failures import FailureModel, root_mean_square, simulate_table

FITTED = ("stop_seconds", "readmission_seconds", "mean_repair_seconds", "readmission_interval", "slice_chips")
FACTORS = (0.5, 0.75, 1.0, 1.5, 2.0)
NUM_FAILURES = 20_000


def main() -> None:
    base = FailureModel()
    table = Table(*["parameter", "fitted", *(f"× {factor:g}" for factor in FACTORS)], title="RMS difference (points)")
    for name in FITTED:
        fitted = getattr(base, name)
        cells = []
        for factor in FACTORS:
            model = replace(base, **{name: type(fitted)(fitted * factor)})
            cells.append(f"{root_mean_square(simulate_table(seed=0, model=model, num_failures=NUM_FAILURES)):.2f}")
        table.add_row(name, f"{fitted:g}", *cells)
    Console().print(table)


if __name__ == "__main__":
    main()
