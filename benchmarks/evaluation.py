"""What evaluation costs: its share of a run that evaluates every ten rounds.

python benchmarks/evaluation.py
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from fedtide.simulation.loop import Run
from measuring import Section, machine
from workload import Workload

EVERY, ROUNDS = 10, 100
WORKS = {
    "784-10, 6 steps of 10": Workload(100, 6, 10),
    "784-200-200-10, 6 steps of 10": Workload(
        100, 6, 10, {"type": "mlp", "hidden": [200, 200]}, samples=20
    ),
}


def section() -> Section:
    """Run and read the run's own timings."""
    found = Section(
        "Evaluation",
        f"100 clients a round, evaluated every {EVERY} rounds on all training samples (and so for "
        "each client) and the test set; or, with `evaluation: {clients: false}`, likewise but "
        "without figures of each client. Share: of the time of the run.",
        ("model", "training samples", "figures of clients", "ms per evaluation", "share"),
    )
    for name, work in WORKS.items():
        with TemporaryDirectory() as folder:
            work.write_data(Path(folder))
            for clients in (True, False):
                evaluation = {"every": EVERY, "clients": clients}
                run, _ = work.run(Path(folder), "compiled", evaluation)
                found.rows.append((name, f"{work.clients * work.samples:,}", *_row(run, clients)))
    return found


def _row(run: Run, clients: bool) -> tuple[str, ...]:
    run.timings.training = run.timings.evaluation = 0.0
    for _ in range(ROUNDS):
        run.round()
        run.evaluate_if_due()
    spent = run.timings
    share = spent.evaluation / (spent.evaluation + spent.training)
    each = 1000 * spent.evaluation / (ROUNDS / EVERY)
    return "yes" if clients else "no", f"{each:.1f}", f"{100 * share:.0f} %"


if __name__ == "__main__":
    print(machine())
    print(section().markdown())
