"""What evaluation costs: its share of a run, by default and if it evaluates every ten rounds.

python benchmarks/evaluation.py
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from fedtide.simulation.loop import Run
from measuring import Section, machine
from workload import Workload

EVALUATIONS = 5  # of each kind of run
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
        "100 clients a round, compiled, evaluated on all training samples (and so for each client) "
        "and the test set; or, with `evaluation: {clients: false}`, likewise but without figures "
        "of each client. Rounds between two evaluations: the default of a long run, which is "
        "larger where the data are larger than what a round trains on, and ten. Share: of the time "
        "of the run.",
        (
            "model",
            "training samples",
            "figures of clients",
            "every",
            "ms per evaluation",
            "share",
        ),
    )
    for name, work in WORKS.items():
        with TemporaryDirectory() as folder:
            work.write_data(Path(folder))
            for every, clients in product((None, 10), (True, False)):
                run, _ = work.run(Path(folder), "compiled", {"every": every, "clients": clients})
                samples = f"{work.clients * work.samples:,}"
                found.rows.append((name, samples, "yes" if clients else "no", *_row(run)))
    return found


def _row(run: Run) -> tuple[str, ...]:
    run.timings.training = run.timings.evaluation = 0.0
    run.metrics.clear()
    while len(run.metrics) < EVALUATIONS:
        run.round()
        if run.is_evaluation_due:
            run.evaluate()
    spent = run.timings
    share = spent.evaluation / (spent.evaluation + spent.training)
    rounds = run.metrics[-1]["round"] - run.metrics[-2]["round"]
    return f"{rounds}", f"{1000 * spent.evaluation / EVALUATIONS:.1f}", f"{100 * share:.0f} %"


if __name__ == "__main__":
    print(machine())
    print(section().markdown())
