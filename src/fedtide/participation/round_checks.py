"""Checks of what processes and selections of the user's own give in a round."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtide.errors import InvalidInputError
from fedtide.participation.availability.base import AvailableClients, Ids


def is_own(thing: object) -> bool:
    """Return whether a class is not of fedtide, whose own ones keep the contract."""
    return not type(thing).__module__.startswith("fedtide.")


def check_available(found: Any, t: int, clients: int) -> AvailableClients:
    """Return what a process gave in round t.

    Raises:
        InvalidInputError: anything but sorted ids of the N clients, with a weight of each or none.

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
    """Return what a selection gave in round t.

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
    if not (np.diff(ids) > 0).all():
        raise InvalidInputError(
            f"{field}: in round {t} its clients {ids!s:.60} are not sorted, each at most once; "
            f"return {hint}"
        )
    return ids.astype(np.int64)


def _check_weights(field: str, given: Any, t: int, count: int) -> NDArray[np.float64] | None:
    if given is None:
        return None
    weights = np.asarray(given)
    if weights.shape != (count,) or weights.dtype.kind not in "iuf":
        raise InvalidInputError(
            f"{field}: in round {t} its weights are {given!r:.60}; return one for each of the "
            f"{count} clients"
        )
    if not (np.isfinite(weights) & (weights >= 0)).all():
        raise InvalidInputError(
            f"{field}: in round {t} its weights {weights!s:.60} are not all finite and at least "
            "0; return such weights"
        )
    return weights.astype(np.float64)
