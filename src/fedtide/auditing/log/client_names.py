"""The clients of a log: those that it names, those of a roster, or 0..N − 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedtide.auditing.log.client_table import ClientTable
from fedtide.errors import InvalidInputError, list_names


def list_clients(
    seen: Sequence[int | str], roster: ClientTable | None, clients: int | None
) -> pl.Series:
    """Return the names of all clients, given those that the log names."""
    if roster is not None:
        return roster.names
    if clients is None:
        return pl.Series("client", _within_64_bits(sorted(seen)))
    if seen and isinstance(seen[0], str):
        if len(seen) > clients:
            raise InvalidInputError(
                f"clients: the log names {len(seen)} clients, more than {clients}; "
                "give a larger number"
            )
        unnamed = [f"(unnamed {i + 1})" for i in range(clients - len(seen))]
        return pl.Series("client", [*sorted(seen), *unnamed])
    return pl.Series("client", np.arange(clients))


def reject_decimals(names: Sequence[int | str]) -> None:
    """Raise InvalidInputError if two ids are the same number, as in 7 and 7.0."""
    written = set(names)
    for name in names:
        if isinstance(name, str) and name.endswith(".0") and name[:-2] in written:
            raise InvalidInputError(
                f"client: the log has the clients {name[:-2]!r} and {name!r}; "
                "write the id of a client in one way"
            )


def _within_64_bits(names: list[Any]) -> list[Any]:
    """Return whole numbers beyond 64 bits, and all beside them, as strings."""
    fits = not names or isinstance(names[0], str) or -(2**63) <= names[0] <= names[-1] < 2**63
    return names if fits else [str(name) for name in names]


def find_positions(seen: Sequence[int | str], names: pl.Series, option: str) -> NDArray[np.int32]:
    """Return the position in `names` of each client seen."""
    positions = {str(name): i for i, name in enumerate(names.to_list())}
    unknown = [name for name in seen if str(name) not in positions]
    if unknown:
        hint = "give a larger number, or --roster" if option == "--clients" else "complete it"
        raise InvalidInputError(
            f"client: {list_names(unknown)} not among the {len(names)} "
            f"client{'' if len(names) == 1 else 's'} of {option}; {hint}"
        )
    return np.array([positions[str(name)] for name in seen], dtype=np.int32)
