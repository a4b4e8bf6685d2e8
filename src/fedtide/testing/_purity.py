"""What all checks share: errors as assertions, and code that draws no global random numbers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import numpy as np
import torch

from fedtide.errors import InvalidInputError


def fail(sentence: str) -> NoReturn:
    """Raise AssertionError with this sentence."""
    raise AssertionError(sentence)


@contextmanager
def assertions() -> Iterator[None]:
    """Turn what a run refuses, such as ids out of range, into an AssertionError."""
    try:
        yield
    except InvalidInputError as error:
        raise AssertionError(str(error)) from error


@contextmanager
def no_global_randomness(what: str, hint: str) -> Iterator[None]:
    """Refuse code that draws from a global random generator of torch, NumPy or Python.

    The generators keep their states.

    Args:
        what: whose code runs in this context.
        hint: what to use instead.

    >>> with no_global_randomness("the loss", "give a loss without random numbers"):
    ...     mask = torch.rand(3)
    Traceback (most recent call last):
    AssertionError: the loss draws from a global random generator, so a run cannot be repeated; ...
    """
    plain, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        state = torch.get_rng_state()

        def is_drawn() -> bool:
            if not torch.equal(state, torch.get_rng_state()) or random.getstate() != plain:
                return True
            return not all(map(np.array_equal, np.random.get_state(), numpy))  # noqa: NPY002

        try:
            yield
        except AssertionError:  # the cause of what another check has found
            if not is_drawn():
                raise
        finally:
            drawn = is_drawn()
            random.setstate(plain)
            np.random.set_state(numpy)  # noqa: NPY002
    if drawn:
        fail(f"{what} draws from a global random generator, so a run cannot be repeated; {hint}")
