"""Running a function on several threads, each on one core."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

Item = TypeVar("Item")


def map_threads(do: Callable[[Item], None], items: Sequence[Item], threads: int) -> None:
    """Call `do` with each item, on `threads` threads whose tensor operations use one core each.

    Small operations gain little from more cores, and lose much on busy ones, because cores wait
    for one another after each operation.
    """

    def run_alone(item: Item) -> None:
        torch.set_num_threads(1)
        do(item)

    with single_threaded(), ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(run_alone, items):
            pass


@contextmanager
def single_threaded() -> Iterator[None]:
    """Limit tensor operations to one core within the context."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
