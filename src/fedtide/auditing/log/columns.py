"""The columns of a participation log: finding them by name and parsing their values.

Every function raises InvalidInputError for columns or values that it cannot use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fedtide.errors import InvalidInputError, did_you_mean
from fedtide.participation.log.schema import STAGES

COLUMNS = ("round", "client", "stage", "weight", "samples")

_ALIASES = {
    "round": ("server_round", "round_number", "rnd", "current_round", "iteration", "epoch", "step"),
    "client": ("client_id", "cid", "node_id", "partition_id", "clientid", "device", "user", "id"),
    "samples": ("num_examples", "num_samples", "n_samples", "examples"),
}
_NOUNS = {"weight": "weight", "samples": "sample count"}
_MAX_WEIGHT = 1e30
_ROUND_HINT = "give whole numbers from 0"


def find_columns(available: Sequence[str], columns: Mapping[str, str]) -> dict[str, str]:
    """Return the log's names of round, client and, if present, stage, weight and samples.

    Args:
        available: the names of the log's columns.
        columns: names given by the user, such as {"round": "server_round"}.

    >>> find_columns(["server_round", "client"], {"round": "server_round"})
    {'round': 'server_round', 'client': 'client'}
    """
    for ours, theirs in columns.items():
        if ours not in COLUMNS:
            raise InvalidInputError(
                f"columns: an audit reads no column {ours!r}; {did_you_mean(ours, COLUMNS)}"
            )
        if theirs not in available:
            raise InvalidInputError(
                f"columns: the log has no column {theirs!r}; {did_you_mean(theirs, available)}"
            )
    taken = {theirs for ours, theirs in columns.items() if ours != theirs}
    names = {ours: columns.get(ours, "" if ours in taken else ours) for ours in COLUMNS}
    for ours in ("round", "client"):
        if names[ours] not in available:
            listed = ", ".join(repr(name) for name in available)
            raise InvalidInputError(
                f"log: no column {ours!r} among {listed}; name it with "
                f"--columns {ours}={_guess_column(ours, available)}"
            )
    if names["samples"] not in available:
        names["samples"] = _guess_column("samples", available)
    return {ours: theirs for ours, theirs in names.items() if theirs in available}


def parse_rounds(column: pa.Array) -> NDArray[np.int32] | NDArray[np.int64]:
    """Return the round numbers, as int32 where they fit."""
    if column.null_count:
        raise InvalidInputError(f"round: a row has no round; {_ROUND_HINT}")
    if not _is_number(column.type):
        raise InvalidInputError(f"round: the column has type {column.type}; {_ROUND_HINT}")
    given = _to_numpy(column)
    with np.errstate(invalid="ignore"):  # values that overflow are refused below
        rounds = given.astype(np.int64, copy=False)
    invalid = (rounds < 0) | (rounds != given)
    if invalid.any():
        raise InvalidInputError(f"round: {given[invalid][0]} is not a round; {_ROUND_HINT}")
    fits = len(rounds) == 0 or rounds.max() < 2**31
    return rounds.astype(np.int32) if fits else rounds


def parse_clients(column: pa.Array) -> pa.DictionaryArray:
    """Return the client ids, whole numbers or strings, dictionary-encoded."""
    if column.null_count:
        raise InvalidInputError("client: a row has no client; give every row a client id")
    encoded = pa.types.is_dictionary(column.type)
    kind = column.type.value_type if encoded else column.type
    text = any(
        is_text(kind)
        for is_text in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    )
    if not (text or pa.types.is_integer(kind)):
        raise InvalidInputError(
            f"client: ids of type {kind} are invalid or mixed; "
            "give whole numbers only or strings only"
        )
    if encoded:
        return column
    return (column.cast(pa.large_string()) if text else column).dictionary_encode()


def parse_codes(encoded: pa.DictionaryArray) -> NDArray[Any]:
    """Return the indices of a dictionary-encoded column without missing values."""
    return _to_numpy(encoded.indices)


def parse_stages(column: pa.Array) -> NDArray[np.uint8]:
    """Return the index in STAGES of each row's stage; rows without a stage count as used."""
    stages = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    names = stages.dictionary.to_pylist()
    levels = np.zeros(len(names) + 1, dtype=np.uint8)
    for code in pc.unique(stages.indices.drop_null()).to_pylist():
        if names[code] not in STAGES:
            stage = str(names[code])
            raise InvalidInputError(
                f"stage: unknown stage {stage!r}; {did_you_mean(stage, STAGES)}"
            )
        levels[code] = STAGES.index(names[code])
    levels[len(names)] = STAGES.index("used")
    codes = stages.indices.cast(pa.int64()).fill_null(len(names))
    return np.asarray(levels[_to_numpy(codes)])


def parse_numbers(field: str, column: pa.Array) -> NDArray[np.float32]:
    """Return participation weights or sample counts, NaN where missing."""
    if not _is_number(column.type):
        if column.null_count == len(column):
            return np.full(len(column), np.nan, dtype=np.float32)
        raise InvalidInputError(f"{field}: the column has type {column.type}; give numbers")
    missing = _to_numpy(column.is_null().cast(pa.uint8())) > 0
    given = _to_numpy(column.fill_null(0))
    invalid = ~((given >= 0) & (given < _MAX_WEIGHT))
    if invalid.any():
        raise InvalidInputError(
            f"{field}: {given[invalid][0]} is not a {_NOUNS[field]}; give numbers of at least 0"
        )
    return np.where(missing, np.nan, given).astype(np.float32)


def _guess_column(ours: str, available: Sequence[str]) -> str:
    lower = {name.lower(): name for name in available}
    return next((lower[alias] for alias in _ALIASES[ours] if alias in lower), "NAME")


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _to_numpy(column: pa.Array) -> NDArray[Any]:
    """Return a numeric column without missing values; Arrow's `to_numpy` would import pandas."""
    return np.from_dlpack(column)
