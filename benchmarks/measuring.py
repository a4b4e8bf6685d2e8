"""Shared by the benchmarks: measuring in turn, and the sections of one page."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import torch

T = TypeVar("T")

REPEATS = 7


@dataclass
class Section:
    """One table of the page.

    Args:
        title: what is measured.
        about: how, in a few sentences.
        columns: the heads of the columns.
        rows: the cells.
        notes: what else was seen.
    """

    title: str
    about: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        """Return the section as Markdown."""
        lines = [f"## {self.title}", "", self.about, ""]
        lines.append("| " + " | ".join(self.columns) + " |")
        lines.append("|" + "---|" * len(self.columns))
        lines += ["| " + " | ".join(row) + " |" for row in self.rows]
        for note in self.notes:
            lines += ["", note]
        return "\n".join(lines) + "\n"


def machine() -> str:
    """Return in words what everything ran on."""
    return (
        f"{os.cpu_count()} cores ({processor()}), {_memory() / 2**30:.0f} GiB, "
        f"Python {platform.python_version()}, PyTorch {torch.__version__} with "
        f"{torch.get_num_threads()} threads, "
        + ("CUDA: " + torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU")
    )


def processor() -> str:
    """Return what the processor calls itself."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.split(":")[1].strip() for line in file if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def in_turn(rounds: Sequence[Callable[[], None]], repeats: int = REPEATS) -> list[list[float]]:
    """Return milliseconds per round of each, (repeats, rounds), measured in turn.

    A machine may be slower at some times than at others; times measured in turn are comparable.
    """
    return [[milliseconds(round) for round in rounds] for _ in range(repeats)]


def milliseconds(round: Callable[[], None]) -> float:
    """Return the time of a round, over at least three rounds and a fifth of a second."""
    count, began = 0, time.perf_counter()
    while count < 3 or time.perf_counter() - began < 0.2:
        round()
        count += 1
    return 1000 * (time.perf_counter() - began) / count


def fastest_threads(round: Callable[[], None], repeats: int = 3) -> int:
    """Return the number of PyTorch's threads with which a round is faster: 1, or all.

    Small operations are often slower with several threads, which wait for one another.
    """
    every = torch.get_num_threads()
    counts = sorted({1, every})
    times = in_turn([partial(with_threads, count, round) for count in counts], repeats)
    return min(zip(medians(times), counts, strict=True))[1]


def with_threads(count: int, function: Callable[[], T]) -> T:
    """Call a function while PyTorch uses so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        return function()
    finally:
        torch.set_num_threads(before)


def medians(times: list[list[float]]) -> list[float]:
    """Return the median of each column."""
    return [statistics.median(column) for column in zip(*times, strict=True)]


def gains(times: list[list[float]]) -> list[float]:
    """Return the median over the repeats of (first column / column), for the other columns."""
    ratios = [[row[0] / other for other in row[1:]] for row in times]
    return medians(ratios)
