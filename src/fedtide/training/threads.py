"""Doing several things side by side, each on one core."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

Item = TypeVar("Item")


def map_threads(do: Callable[[Item], None], items: Sequence[Item], threads: int) -> None:
    """Do something with each of the items, in so many threads whose operations use one core each.

    Operations of PyTorch that are small gain little from more cores and lose much where the cores
    are busy, since they wait for one another after each operation.
    """

    def run_alone(item: Item) -> None:
        torch.set_num_threads(1)
        do(item)

    with single_threaded(), ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(run_alone, items):
            pass


@contextmanager
def single_threaded() -> Iterator[None]:
    """Let every operation of PyTorch use one core."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
