"""Checks of what user-defined processes, selections and dropout models return."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtide.errors import InvalidInputError
from fedtide.participation.availability.base import AvailableClients, Ids
from fedtide.validation import Numbers, require_one_per_client, require_probabilities

_TRIED = (3, 7, 15, 31, 63)
"""The rounds that are compared when a schedule is tried out: a hidden state may change rarely."""
_SECONDS = 0.1
"""After this time, the trial ends at the next of these rounds."""
_STAGES = {"participation": "available", "selection": "selected", "dropout": "reported"}
"""What each part of a schedule decides."""


def check_stream(method: str, found: Any, expected: type) -> None:
    """Raise InvalidInputError unless a method returned a stream of the expected class."""
    if not isinstance(found, expected):
        raise InvalidInputError(
            f"{method}: it returned {found!r:.60}; return a stream, derived from "
            f"{expected.__name__}"
        )


def check_length(found: Any) -> None:
    """Raise InvalidInputError unless a stream's length is a positive whole number or None."""
    if found is not None and (not isinstance(found, int | np.integer) or found < 1):
        raise InvalidInputError(
            f"length: {found!r:.60} is not a number of rounds; give at least 1, or None for no end"
        )


def check_known_rates(found: Any, clients: int) -> Numbers:
    """Return a process's `known_rates`, (N,).

    Raises:
        InvalidInputError: anything but a probability for each of the N clients.

    >>> check_known_rates([0.5, -3], clients=2)
    Traceback (most recent call last):
    fedtide.errors.InvalidInputError: known_rates: -3 is not within [0, 1]; give probabilities
    """
    rates = require_probabilities("known_rates", found)
    require_one_per_client("known_rates", rates, clients)
    return rates


def check_available(found: Any, t: int, clients: int) -> AvailableClients:
    """Return the clients that a process made available in round t.

    Raises:
        InvalidInputError: anything but sorted ids of the N clients, with a weight for each or none.

    >>> check_available(AvailableClients(np.array([2, 1])), t=7, clients=3)
    Traceback (most recent call last):
    fedtide.errors.InvalidInputError: participation: in round 7 its clients [2 1] are not sorted,
    each at most once; return AvailableClients(np.unique(ids))
    """
    field = "participation"
    if not isinstance(found, AvailableClients):
        raise InvalidInputError(
            f"{field}: in round {t} it gave {found!r:.60}; return AvailableClients(ids)"
        )
    ids = _check_ids(field, found.clients, t, clients, "AvailableClients(np.unique(ids))")
    return AvailableClients(ids, _check_weights(field, found.weights, t, len(ids)))


def check_selected(found: Any, t: int, available: Ids) -> Ids:
    """Return the clients that a selection selected in round t.

    Raises:
        InvalidInputError: anything but sorted ids of available clients.
    """
    most = int(available.max(initial=-1)) + 1
    ids = _check_ids("selection", found, t, most, "np.unique(ids)")
    absent = np.setdiff1d(ids, available)
    if len(absent):
        raise InvalidInputError(
            f"selection: in round {t} it selected client {absent[0]}, which is not available; "
            "choose from available.clients"
        )
    return ids


def check_reported(found: Any, t: int, count: int) -> NDArray[np.bool_]:
    """Return a dropout model's mask: whether each of `count` selected clients reports.

    Raises:
        InvalidInputError: anything but a boolean for each: numbers would be taken as positions.

    >>> check_reported(np.array([1, 0]), t=7, count=2)
    Traceback (most recent call last):
    fedtide.errors.InvalidInputError: dropout: in round 7 its mask is array([1, 0]); return True or
    False for each selected client, 2 in all
    """
    mask = np.asarray(found if isinstance(found, np.ndarray | list | tuple) else None)
    if mask.shape != (count,) or (count and mask.dtype != np.bool_):
        raise InvalidInputError(
            f"dropout: in round {t} its mask is {found!r:.60}; return True or False for each "
            f"selected client, {count} in all"
        )
    return mask.astype(np.bool_)


def check_repeatable(stream: Any, start: Callable[[], Any]) -> None:
    """Raise InvalidInputError if the participants of a round depend on the rounds asked for before.

    Args:
        stream: of a schedule, before any round was asked for; unusable afterwards.
        start: starts the same schedule again.
    """
    for t, participants, again in _try_out(stream, start):
        for field, stage in _STAGES.items():
            one, other = getattr(participants, stage), getattr(again, stage)
            if not np.array_equal(one, other):
                raise InvalidInputError(
                    f"{field}: started twice with the same seed, it gave the clients {one!s:.60} "
                    f"and {other!s:.60} in round {t}; let a round follow from its number, the "
                    "population and the seed alone, with numbers drawn from "
                    "fedtide.randomness.uniforms(seed, purpose, t, ids)"
                )


def _try_out(stream: Any, start: Callable[[], Any]) -> list[tuple[int, Any, Any]]:
    """Return some rounds, each with its participants and those of a stream that skips the others.

    Any exception of user code ends the trial; it will occur again when a run asks for that round.
    """
    length = stream.length or _TRIED[-1] + 1
    compared = [t for t in _TRIED if t < length] or [length - 1]
    found: dict[int, Any] = {}
    both: list[tuple[int, Any, Any]] = []
    end = time.monotonic() + _SECONDS
    with suppress(Exception):
        for t in range(compared[-1] + 1):
            participants = stream.round(t)
            if t in compared:
                found[t] = participants
                if time.monotonic() > end:
                    break
    with suppress(Exception):
        other = start()  # only now: a process may be its own stream
        for t, participants in found.items():
            both.append((t, participants, other.round(t)))
    return both


@contextmanager
def silence() -> Iterator[None]:
    """Drop the log messages of this thread."""
    thread = threading.get_ident()

    def is_of_others(record: logging.LogRecord) -> bool:
        return record.thread != thread

    logger = logging.getLogger("fedtide")
    logger.addFilter(is_of_others)
    try:
        yield
    finally:
        logger.removeFilter(is_of_others)


def _check_ids(field: str, found: Any, t: int, clients: int, hint: str) -> Ids:
    ids = np.asarray(found if isinstance(found, np.ndarray | list | tuple) else None)
    if ids.ndim != 1 or (len(ids) and ids.dtype.kind not in "iu"):
        raise InvalidInputError(
            f"{field}: in round {t} its clients are {found!r:.60}; return {hint} with ids of "
            "dtype int64"
        )
    wrong = ids[(ids < 0) | (ids >= clients)]
    if len(wrong):
        raise InvalidInputError(
            f"{field}: in round {t} it gave client {wrong[0]}; ids are 0 to {clients - 1}"
        )
    ids = ids.astype(np.int64)
    if not (ids[1:] > ids[:-1]).all():
        raise InvalidInputError(
            f"{field}: in round {t} its clients {ids!s:.60} are not sorted, each at most once; "
            f"return {hint}"
        )
    return ids


def _check_weights(field: str, given: Any, t: int, count: int) -> NDArray[np.float64] | None:
    if given is None:
        return None
    weights = np.asarray(given)
    if weights.shape != (count,) or weights.dtype.kind not in "iuf":
        raise InvalidInputError(
            f"{field}: in round {t} its weights are {given!r:.60}; return one for each client, "
            f"{count} in all"
        )
    if not (np.isfinite(weights) & (weights >= 0)).all():
        raise InvalidInputError(
            f"{field}: in round {t} its weights {weights!s:.60} are not all finite and at least "
            "0; return such weights"
        )
    return weights.astype(np.float64)
