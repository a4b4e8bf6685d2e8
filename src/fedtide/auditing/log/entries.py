"""Collecting a log's entries batch by batch, in 8 bytes each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fedtide.auditing.log.client_table import ClientTable
from fedtide.auditing.log.participation_log import ParticipationLog, attend
from fedtide.errors import InvalidInputError, did_you_mean
from fedtide.participation.log.schema import STAGES

Numbers = NDArray[np.int32] | NDArray[np.int64]

_MOST_WEIGHT = 1e30
_NO_ROUND = "give whole numbers from 0"


class Entries:
    """The rows of the stage "used", as numbers: rounds, and clients in the order first named.

    Clients that the log names at a lower stage only are known as well: they could have come.
    """

    def __init__(self) -> None:
        self._codes: dict[int | str, int] = {}
        self._rounds: list[Numbers] = []
        self._clients: list[NDArray[np.int32]] = []
        self._weights: list[NDArray[np.float32]] | None = []

    def add(
        self,
        rounds: pa.Array,
        clients: pa.Array,
        stages: pa.Array | None = None,
        weights: pa.Array | None = None,
    ) -> None:
        """Take in a batch of rows. Weights count if every row of the stage "used" has one.

        Raises:
            InvalidInputError: a value that cannot be used.
        """
        numbers = _rounds(rounds)
        codes = self._encode(clients)
        given = None if weights is None else _weights(weights)
        if stages is not None:
            used = _used(stages)
            numbers, codes = numbers[used], codes[used]
            given = None if given is None else given[used]
        if given is None or np.isnan(given).any():
            self._weights = None
        if self._weights is not None and given is not None:
            self._weights.append(given)
        self._rounds.append(numbers)
        self._clients.append(codes)

    def attendance(
        self, roster: ClientTable | None, clients: int | None, span: tuple[int, int] | None
    ) -> ParticipationLog:
        """Return all entries, of the clients of the roster, or 0..clients − 1, or those named.

        Raises:
            InvalidInputError: a client that is not one of them, and what `attend` refuses.
        """
        seen = list(self._codes)
        if len({type(name) for name in seen}) > 1:
            raise InvalidInputError(
                "client: ids are numbers and strings; give whole numbers or strings"
            )
        names = _names(seen, roster, clients)
        places = _places(seen, names, "--clients" if roster is None else "--roster")
        rounds = _joined(self._rounds)
        codes = _joined(self._clients)
        for chunk in range(0, len(codes), 1 << 22):  # in place: no third copy of a long log
            codes[chunk : chunk + (1 << 22)] = places[codes[chunk : chunk + (1 << 22)]]
        weights = _joined(self._weights) if self._weights else None
        return attend(names, rounds, codes, span, weights)

    def _encode(self, clients: pa.Array) -> NDArray[np.int32]:
        """Return the code of each row's client; new clients get the next codes."""
        encoded = _dictionary(clients)
        named = encoded.dictionary.to_pylist()
        table = np.array(
            [self._codes.setdefault(name, len(self._codes)) for name in named], dtype=np.int32
        )
        codes: NDArray[np.int32] = table[_numbers(encoded.indices)]
        return codes


def _numbers(column: pa.Array) -> NDArray[Any]:
    """Return a column of numbers, none missing. (Arrow's `to_numpy` would import pandas first.)"""
    return np.from_dlpack(column)


def _rounds(column: pa.Array) -> Numbers:
    if column.null_count:
        raise InvalidInputError(f"round: it is missing in a row; {_NO_ROUND}")
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise InvalidInputError(f"round: type {column.type} is no number; {_NO_ROUND}")
    given = _numbers(column)
    with np.errstate(invalid="ignore"):  # what does not fit is refused below
        rounds = given.astype(np.int64, copy=False)
    wrong = (rounds < 0) | (rounds != given)
    if wrong.any():
        raise InvalidInputError(f"round: {given[wrong][0]} is no round; {_NO_ROUND}")
    fits = len(rounds) == 0 or rounds.max() < 2**31
    return rounds.astype(np.int32) if fits else rounds


def _weights(column: pa.Array) -> NDArray[np.float32]:
    """Return the weights, NaN where there is none."""
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        if column.null_count == len(column):
            return np.full(len(column), np.nan, dtype=np.float32)
        raise InvalidInputError(f"weight: type {column.type} is no number; give numbers")
    missing = _numbers(column.is_null().cast(pa.uint8())) > 0
    given = _numbers(column.fill_null(0))
    wrong = ~((given >= 0) & (given < _MOST_WEIGHT))
    if wrong.any():
        raise InvalidInputError(
            f"weight: {given[wrong][0]} is no weight; give numbers of at least 0"
        )
    return np.where(missing, np.nan, given).astype(np.float32)


def _dictionary(column: pa.Array) -> pa.DictionaryArray:
    """Return the client ids, whole numbers or strings, as codes into a table of them."""
    if column.null_count:
        raise InvalidInputError("client: the client is missing in a row; name it")
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    text = text or pa.types.is_string_view(kind)
    if not (text or pa.types.is_integer(kind)):
        raise InvalidInputError(
            f"client: client ids of type {kind} are mixed or no ids; "
            "give whole numbers only or strings only"
        )
    if pa.types.is_dictionary(column.type):
        return column
    return (column.cast(pa.large_string()) if text else column).dictionary_encode()


def _used(stages: pa.Array) -> NDArray[np.bool_]:
    """Return which rows reached the stage "used"; a row without a stage did."""
    stages = stages if pa.types.is_dictionary(stages.type) else stages.dictionary_encode()
    known = stages.dictionary.to_pylist()
    present = set(pc.unique(stages.indices.drop_null()).to_pylist())
    for code in present:
        if known[code] not in STAGES:
            stage = str(known[code])
            raise InvalidInputError(f"stage: {stage!r} is unknown; {did_you_mean(stage, STAGES)}")
    used = known.index("used") if "used" in known else -2
    return np.asarray(_numbers(stages.indices.fill_null(used)) == used)


def _names(seen: Sequence[int | str], roster: ClientTable | None, clients: int | None) -> pl.Series:
    if roster is not None:
        return roster.names
    if clients is None:
        return pl.Series("client", sorted(seen))
    if seen and isinstance(seen[0], str):
        if len(seen) > clients:
            raise InvalidInputError(
                f"clients: the log names {len(seen)}, more than {clients}; raise it"
            )
        unnamed = [f"(unnamed {i + 1})" for i in range(clients - len(seen))]
        return pl.Series("client", [*sorted(seen), *unnamed])
    return pl.Series("client", np.arange(clients))


def _places(seen: Sequence[int | str], names: pl.Series, source: str) -> NDArray[np.int32]:
    """Return where in `names` each client stands."""
    place = {str(name): i for i, name in enumerate(names.to_list())}
    for name in seen:
        if str(name) not in place:
            hint = "give their number, or --roster" if source == "--clients" else "add it"
            raise InvalidInputError(
                f"client: {name!r} is not one of the {len(names)} clients of {source}; {hint}"
            )
    return np.array([place[str(name)] for name in seen], dtype=np.int32)


def _joined(parts: list[Any]) -> NDArray[Any]:
    """Return the parts end to end, giving each back as it is copied."""
    if not parts:
        return np.empty(0, dtype=np.int32)
    joined = np.empty(sum(map(len, parts)), dtype=np.result_type(*parts))
    low = 0
    parts.reverse()
    while parts:
        part = parts.pop()
        joined[low : low + len(part)] = part
        low += len(part)
    return joined
