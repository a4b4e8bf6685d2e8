"""Run every benchmark, print one page of tables, and write it to docs/benchmarks.md.

make bench
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import cluster
import cnn
import cohort
import evaluation
import limits
import memory
import peers
import population
from measuring import machine

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
GPU = """## GPU

No GPU could be had where this page was written, and nothing here was ever run on one. What depends
on a device is in `fedtide/training/devices.py`: cohorts are one chunk as far as memory allows, the
data and the models stay on the device, and a round asks the device for values once, at its end,
which a test checks on a device whose tensors have no values. Minibatches are still planned on the
CPU while the device waits, which will be the limit for thousands of small clients.

`python benchmarks/gpu.py` compares every method and trainer with the CPU (float64 to 1e-9, float32
to 1e-3 of how far the model moved), and measures paper 001's CIFAR-10 run (the goal is two minutes
for its 10,000 rounds on an H100), a logistic model with 100, 1,000 and 10,000 clients a round, and
the settings of pfl's CIFAR-10 benchmark beside pfl. With `--device cpu --quick` the same script
runs anywhere, as it does in the tests.
"""


def main() -> None:
    """Measure, print and write; what was compiled before is not used."""
    with TemporaryDirectory() as cache:
        os.environ["FEDTIDE_CACHE"] = cache
        _write()


def _write() -> None:
    rooms = (cohort, cnn, peers, population, memory, evaluation)
    recorded = cluster.section(json.loads(cluster.RECORD.read_text(encoding="utf-8"))).markdown()
    text = f"# Benchmarks\n\nWritten by `make bench`. {machine()}.\n\n{limits.about()}\n"
    for room in rooms:
        print(f"measuring {room.__name__}", file=sys.stderr, flush=True)
        part = room.section().markdown()
        print(part, flush=True)
        text += "\n" + part
        PAGE.write_text(f"{text}\n{recorded}\n{GPU}", encoding="utf-8")


if __name__ == "__main__":
    main()
