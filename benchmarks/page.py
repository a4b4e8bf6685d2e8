"""Run every benchmark, print one page of tables, and write it to docs/benchmarks.md.

make bench
python benchmarks/page.py --recorded    # only the sections that come from records
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import cluster
import cnn
import cohort
import commands
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
their gradients; the rest is Python, which plans the minibatches while the GPU waits. So several
runs share a GPU well: on the H100, full runs of paper 001 on the real data, two side by side under
NVIDIA's Multi-Process Service, took 198 to 213 s each, evaluations included
([records](results-001.md#001cifar10)). A round of a hundred logistic models takes at most half as
long as compiled on two cores of a CPU: here Python is their limit, and for thousands of them
planning. `trainer: auto` does not compile on a GPU, as compiling is repeated for every size of a
cohort. On the H200 the compiled steps were found in the cache; without it, the first two rounds of
the CNN took 50 to 54 s.
"""


def main() -> None:
    """Measure, print and write; nothing compiled earlier is reused."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recorded", action="store_true", help="measure nothing")
    if parser.parse_args().recorded:
        title = _recorded()[0].partition("\n")[0]
        measured, found, _ = PAGE.read_text(encoding="utf-8").partition(f"\n{title}\n")
        if not found:
            sys.exit(f"{PAGE}: no section {title!r}; run all benchmarks")
        _write(measured)
        return
    with TemporaryDirectory() as cache:
        os.environ["FEDTIDE_CACHE"] = cache
        _measure()


def _measure() -> None:
    text = f"# Benchmarks\n\nWritten by `make bench`. {machine()}.\n\n{limits.about()}\n"
    for room in (cohort, cnn, peers, population, memory, evaluation, commands):
        print(f"measuring {room.__name__}", file=sys.stderr, flush=True)
        part = room.section().markdown()
        print(part, flush=True)
        text += "\n" + part
        _write(text)


def _write(measured: str) -> None:
    PAGE.write_text("\n".join([measured, *_recorded()]) + GPU, encoding="utf-8")


def _recorded() -> list[str]:
    """Return the sections that come from records."""
    record = json.loads(cluster.RECORD.read_text(encoding="utf-8"))
    return [cluster.section(record).markdown(), gpu.section(gpu.read_records()).markdown()]


if __name__ == "__main__":
    main()
