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
import gpu
import limits
import memory
import peers
import population
from measuring import machine

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
GPU = """
Most of a round of the CNN is spent in its kernels, more than a third of it in convolutions and
their gradients; the rest is Python, which plans the minibatches while the GPU waits. Twenty-five
clients of 16 samples are far from filling this GPU. A round of a hundred logistic models takes
about as long as it does compiled on two cores of a CPU: here Python is their limit, and for
thousands of them planning. `trainer: auto` does not compile on a GPU: what compiling saves of a
round must make up for the seconds before, for every size that cohorts have. The compiled steps were
found in the cache here, where processes beside the comparisons had compiled them; without it, the
first two rounds of the CNN took 50 to 54 s.
"""


def main() -> None:
    """Measure, print and write; what was compiled before is not used."""
    with TemporaryDirectory() as cache:
        os.environ["FEDTIDE_CACHE"] = cache
        _write()


def _write() -> None:
    rooms = (cohort, cnn, peers, population, memory, evaluation)
    recorded = [
        room.section(json.loads(room.RECORD.read_text(encoding="utf-8"))).markdown()
        for room in (cluster, gpu)
    ]
    text = f"# Benchmarks\n\nWritten by `make bench`. {machine()}.\n\n{limits.about()}\n"
    for room in rooms:
        print(f"measuring {room.__name__}", file=sys.stderr, flush=True)
        part = room.section().markdown()
        print(part, flush=True)
        text += "\n" + part
        PAGE.write_text("\n".join([text, *recorded]) + GPU, encoding="utf-8")


if __name__ == "__main__":
    main()
