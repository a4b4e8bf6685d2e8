"""What evaluation costs: its share of a run's time, by default and with one every ten rounds.

python benchmarks/evaluation.py
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from measuring import Section, machine
from workload import Workload

EVALUATIONS = 5  # of each kind of run
LOGISTIC = "784-10, 6 steps of 10"
NETWORK = "784-200-200-10, 6 steps of 10"
WORKS = {
    LOGISTIC: Workload(100, 6, 10),
    NETWORK: Workload(100, 6, 10, {"type": "mlp", "hidden": [200, 200]}, samples=20),
}
LONG = 10**6  # rounds


def section() -> Section:
    """Run and read the run's own timings."""
    found = Section(
        "Evaluation",
        "Compiled, evaluated on all training samples (and so for each client) and the test set; "
        "or, with `evaluation: {clients: false}`, without figures of each client. Every: the "
        "rounds between two evaluations, in brackets if asked for. By default a tenth of the "
        "samples that are trained on are evaluated, and at least every tenth of the rounds. Share: "
        "of the time of the run.",
        (
            "model",
            "training samples",
            "clients a round",
            "rounds of the run",
            "figures of clients",
            "every",
            "ms per evaluation",
            "share",
        ),
    )
    for name, work in WORKS.items():
        with TemporaryDirectory() as folder:
            work.write_data(Path(folder))
            for every, clients in ((None, True), (None, False), (10, True)):
                found.rows.append((name, *_row(work, Path(folder), LONG, every, clients)))
            if name == LOGISTIC:
                few = replace(work, cohort=10)
                found.rows.append((name, *_row(few, Path(folder), 500, None, True)))
    return found


def _row(
    work: Workload, folder: Path, rounds: int, every: int | None, clients: bool
) -> tuple[str, ...]:
    run, _ = work.run(folder, "compiled", {"every": every, "clients": clients}, rounds=rounds)
    run.timings.training = run.timings.evaluation = 0.0
    run.metrics.clear()
    while len(run.metrics) < EVALUATIONS:
        run.round()
        if run.is_evaluation_due:
            run.evaluate()
    spent = run.timings
    share = spent.evaluation / (spent.evaluation + spent.training)
    between = run.metrics[-1]["round"] - run.metrics[-2]["round"]
    return (
        f"{work.clients * work.samples:,}",
        f"{work.cohort}",
        "many" if rounds == LONG else f"{rounds}",
        "yes" if clients else "no",
        f"{between}" if every is None else f"({between})",
        f"{1000 * spent.evaluation / EVALUATIONS:.1f}",
        f"{100 * share:.0f} %",
    )


if __name__ == "__main__":
    print(machine())
    print(section().markdown())
