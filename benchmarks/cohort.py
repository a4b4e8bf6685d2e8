"""Small models: whole rounds of `ft.simulate` against a plain PyTorch loop over the same clients.

A round of fedtide is everything: who takes part, minibatches, training, aggregation, the log; no
evaluation. The plain loop is what one would write by hand, with all tensors ready in memory:
nn.Module, torch.optim, the mean.

    python benchmarks/cohort.py
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import limits
from fedtide.problems.models import resolve_model
from measuring import Section, gains, in_turn, machine, medians
from workload import PlainLoop, Workload

MLP = {"type": "mlp", "hidden": [200, 200]}
WIDE = {"type": "mlp", "hidden": [1000, 1000]}
WORKLOADS = {
    "784-10, 6 steps of 10": [Workload(cohort, 6, 10) for cohort in (10, 100)],
    "784-10, 5 steps of 20": [Workload(cohort, 5, 20) for cohort in (10, 100)],
    "784-200-200-10, 6 steps of 10": [Workload(cohort, 6, 10, MLP) for cohort in (10, 100)],
    "784-1000-1000-10, 5 steps of 32, Adam": [Workload(10, 5, 32, WIDE, optimizer="adam")],
}
TRAINERS = ("stacked", "compiled")


def section() -> Section:
    """Measure all workloads."""
    found = Section(
        "Small models",
        "Whole rounds of `ft.simulate` (participation, minibatches, training, aggregation, log; "
        "evaluation off), 1000 clients with 60 samples each, against a plain PyTorch loop over the "
        "same clients with its minibatches ready in memory and one of PyTorch's threads or all, "
        "whichever is faster (how many: in brackets). Milliseconds per round, medians of repeats "
        "in turn; ratios are medians of the ratios within a repeat. Limit: the least time "
        "of such a round on this machine, see above, and the share of it that the compiled rounds "
        "reach. First round: what capturing, or compiling without a cache, costs once.",
        (
            "model",
            "clients",
            "plain ms",
            "stacked ms",
            "gain",
            "compiled ms",
            "gain",
            "limit ms",
            "share of limit",
            "first round s",
        ),
    )
    for name, works in WORKLOADS.items():
        for work in works:
            found.rows.append((name, *_row(work)))
            print(" ".join(found.rows[-1]), flush=True)
    return found


def _row(work: Workload) -> tuple[str, ...]:
    with TemporaryDirectory() as name:
        work.write_data(Path(name))
        runs, prepared = zip(*(work.run(Path(name), trainer) for trainer in TRAINERS), strict=True)
        network = resolve_model(work.model).build(work.shape, work.classes)
        loop = PlainLoop(work, network)
        times = in_turn([loop.round, *(run.round for run in runs)])
    (plain, stacked, compiled), gained = medians(times), gains(times)
    needed = limits.need(work, network)
    return (
        f"{work.cohort}",
        f"{plain:.2f} ({loop.threads})",
        f"{stacked:.2f}",
        f"{gained[0]:.1f}x",
        f"{compiled:.2f}",
        f"**{gained[1]:.1f}x**",
        f"{needed.milliseconds:.2f}",
        needed.share(compiled),
        " / ".join(f"{seconds:.1f}" for seconds in prepared),
    )


if __name__ == "__main__":
    print(machine())
    print(limits.sentence())
    print(section().markdown())
