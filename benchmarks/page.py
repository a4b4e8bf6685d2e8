"""Run every benchmark, print one page of tables, and write it to docs/benchmarks.md.

make bench
"""

from __future__ import annotations

import sys
from pathlib import Path

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

No GPU could be had where this page was written, so nothing is said about one. The same code runs on
CUDA (`device: cuda`): tensors of the data, the models and the draws lie there.
"""


def main() -> None:
    """Measure, print and write."""
    rooms = (cohort, cnn, peers, population, memory, evaluation)
    text = f"# Benchmarks\n\nWritten by `make bench`. {machine()}.\n\n{limits.about()}\n"
    for room in rooms:
        print(f"measuring {room.__name__}", file=sys.stderr, flush=True)
        part = room.section().markdown()
        print(part, flush=True)
        text += "\n" + part
        PAGE.write_text(text + "\n" + GPU, encoding="utf-8")


if __name__ == "__main__":
    main()
