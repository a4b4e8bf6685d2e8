"""Larger networks on CPU: two papers' CNNs, a residual network, a transformer, and recurrent ones.

python benchmarks/cnn.py
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

import limits
from fedtide.problems.models import resolve_model
from measuring import Section, gains, in_turn, machine, medians
from workload import PlainLoop, Workload

CNN = Workload(25, 5, 16, "cnn-001-cifar10", shape=(3, 32, 32), clients=100, samples=80)
RESNET = replace(CNN, model={"type": "imported", "path": "networks:resnet8"})
TRANSFORMER = replace(
    CNN, model={"type": "imported", "path": "networks:Transformer"}, shape=(1, 64, 64)
)
RECURRENT = {
    kind: replace(
        CNN,
        model={"type": "imported", "path": "networks:Recurrent", "arguments": {"kind": kind}},
        shape=(1, 32, 32),
    )
    for kind in ("LSTM", "GRU")
}
THREADED = ("threaded", "threaded-compiled")
WORKLOADS = {
    "paper 001's CNN": (CNN, THREADED, ("float32", "bfloat16")),
    "paper 002's CNN": (
        replace(CNN, model="cnn-002-cifar10"),
        ("stacked", "threaded-compiled"),
        ("float32",),
    ),
    "ResNet-8, group normalisation": (RESNET, THREADED, ("float32",)),
    "transformer, 2 layers, width and length 64": (
        TRANSFORMER,
        ("stacked", "compiled"),
        ("float32",),
    ),
    **{
        f"{kind}, width 64, length 32": (work, (trainer,), ("float32",))
        for (kind, work), trainer in zip(RECURRENT.items(), ("threaded", "stacked"), strict=True)
    },
}
REPEATS = 5


def section() -> Section:
    """Measure the trainers of each network in turn."""
    found = Section(
        "Larger networks",
        "25 clients a round, 5 local steps of 16 samples (images of 32×32 in colour; for the "
        "transformer, sequences of 64 vectors; for the recurrent networks, of 32), otherwise as "
        f"above, with the plain loop in float32; medians of {REPEATS} repeats in turn.",
        (
            "network",
            "trainer",
            "gradients in",
            "samples/s",
            "gain",
            "limit ms",
            "share of limit",
            "first round s",
        ),
    )
    for name, (work, trainers, dtypes) in WORKLOADS.items():
        for row in _rows(work, [(t, d) for d in dtypes for t in trainers]):
            found.rows.append((name, *row))
            print(" ".join(found.rows[-1]), flush=True)
    return found


def _rows(work: Workload, kinds: list[tuple[str, str]]) -> list[tuple[str, ...]]:
    network = resolve_model(work.model).build(work.shape, work.classes)
    with TemporaryDirectory() as name:
        work.write_data(Path(name))
        runs, prepared = zip(
            *(work.run(Path(name), trainer, dtype=dtype) for trainer, dtype in kinds), strict=True
        )
        loop = PlainLoop(work, network)
        times = in_turn([loop.round, *(run.round for run in runs)], REPEATS)
    samples = work.cohort * work.steps * work.batch
    found = []
    for (trainer, dtype), ms, gain, seconds in zip(
        [(f"plain loop ({loop.threads})", "float32"), *kinds],
        medians(times),
        (1.0, *gains(times)),
        (0.0, *prepared),
        strict=True,
    ):
        needed = limits.need(work, network, getattr(torch, dtype))
        found.append(
            (
                trainer,
                dtype,
                f"{1000 * samples / ms:,.0f}",
                f"{gain:.1f}x",
                f"{needed.milliseconds:.1f}",
                needed.share(ms),
                f"{seconds:.1f}",
            )
        )
    return found


if __name__ == "__main__":
    print(machine())
    print(limits.sentence())
    print(section().markdown())
