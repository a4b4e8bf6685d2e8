"""A convolutional network on CPU: paper 001's for CIFAR-10, against a plain PyTorch loop.

python benchmarks/cnn.py
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from fedtide.problems.models import resolve_model
from measuring import Section, gains, in_turn, machine, medians
from workload import PlainLoop, Workload

WORK = Workload(25, 5, 16, "cnn-001-cifar10", shape=(3, 32, 32), clients=100, samples=80, lr=1e-7)
TRAINERS = ("threaded", "threaded-compiled")
KINDS = [(trainer, dtype) for dtype in ("float32", "bfloat16") for trainer in TRAINERS]
REPEATS = 5


def section() -> Section:
    """Measure the trainers in turn."""
    with TemporaryDirectory() as name:
        WORK.write_data(Path(name))
        runs, prepared = zip(
            *(WORK.run(Path(name), trainer, dtype=dtype) for trainer, dtype in KINDS), strict=True
        )
        loop = PlainLoop(WORK, resolve_model(WORK.model).build(WORK.shape, WORK.classes))
        times = in_turn([loop.round, *(run.round for run in runs)], REPEATS)
    found = Section(
        "A convolutional network",
        "Paper 001's CNN for CIFAR-10, 25 clients a round, 5 local steps of 16 samples, whole "
        "rounds of `ft.simulate` against a plain PyTorch loop with its minibatches ready in "
        f"memory. Medians of {REPEATS} repeats in turn. First round: what capturing, or compiling "
        "without a cache, costs once.",
        ("trainer", "gradients in", "samples/s", "gain", "first round s"),
    )
    samples = WORK.cohort * WORK.steps * WORK.batch
    rows = zip(
        (("plain loop", "float32"), *KINDS),
        medians(times),
        (1.0, *gains(times)),
        (0.0, *prepared),
        strict=True,
    )
    for kind, ms, gain, seconds in rows:
        found.rows.append((*kind, f"{1000 * samples / ms:,.0f}", f"{gain:.1f}x", f"{seconds:.1f}"))
    return found


if __name__ == "__main__":
    print(machine())
    print(section().markdown())
