"""Expansion of logs with a list of clients per round to one row per round and client."""

from __future__ import annotations

import ast
import json
import re

import pyarrow as pa
import pyarrow.compute as pc

from fedtide.auditing.log.columns import LIST_NAMES, is_called, name_columns
from fedtide.auditing.log.values import encode_text, is_text
from fedtide.errors import InvalidInputError

_SEPARATORS = ";|,"
_BRACKETS = ("[", "(", "{")
_LIKE_LISTS = re.compile(r"[|,]|^\d+(\s+\d+)+$|^\[.*\]$", re.DOTALL)
"""Cells that are lists in a column called `clients`, and might be in one called `client`."""
_EXAMINED = 1000
"""How many different cells of a batch decide whether cells are lists."""


class CohortLists:
    """What a log's column of clients holds: one client per row, or a list of a round's clients.

    Lists come as a column of lists, or as text: JSON arrays, or lists, tuples and sets as Python
    prints them, if most cells are such. If no round has two rows, a single such cell suffices, and
    so do names separated by semicolons. In a column whose name says that it holds several clients,
    text always is a list; bars, commas, and blanks between numbers separate clients, too. Other
    columns may hold lists of the same lengths, or single values for all clients of the row.

    Args:
        name: the log's own name of the clients, if it was recognised; None: the user gave it.
    """

    def __init__(self, name: str | None) -> None:
        self._name = name
        self._plural = name is not None and is_called(name, LIST_NAMES)
        self._listed: bool | None = None  # None: the batches so far do not tell
        self.notes: list[str] = []

    def expand(self, batch: dict[str, pa.Array]) -> tuple[dict[str, pa.Array], bool]:
        """Return the next batch of the log with a row for each client, and whether it had lists.

        Args:
            batch: the columns of the log, by our names.

        Raises:
            InvalidInputError: a list that cannot be parsed; lists of different lengths; one number
                per round, which may be the number of clients; text that may be a list or a name.

        >>> batch = {"round": pa.array([4, 5, 6]), "client": pa.array(["ann;bob", "", "bob"])}
        >>> lists = CohortLists("clients")
        >>> expanded, _ = lists.expand(batch)
        >>> {name: column.to_pylist() for name, column in expanded.items()}
        {'round': [4, 4, 6], 'client': ['ann', 'bob', 'bob']}
        >>> lists.notes
        ["cells such as 'ann;bob' are read as several clients"]
        """
        batch = {ours: _vary_lengths(column) for ours, column in batch.items()}
        clients, rounds = batch["client"], batch["round" if "round" in batch else "time"]
        single = _are_unique(rounds)
        if self._plural and single:
            _reject_counts(clients, str(self._name))
        if is_text(clients.type):
            clients = encode_text(clients)
            batch = batch | {"client": clients}
            clients = self._parse_text(clients, single, rounds, batch.get("stage"))
        if not (pa.types.is_list(clients.type) or pa.types.is_large_list(clients.type)):
            return batch, False
        return _expand_rows(batch | {"client": clients}), True

    def _parse_text(
        self, clients: pa.DictionaryArray, single: bool, rounds: pa.Array, stages: pa.Array | None
    ) -> pa.Array:
        """Return lists if the log has lists, else the cells; `single`: no round has two rows."""
        if self._listed is None:
            if self._plural or _are_lists(clients, single, self._name):
                self._listed = True
            elif self._name is not None and (single or _are_unique(rounds, stages)):
                _reject_doubtful(clients, self._name)
            if not single:  # one row per client, even if a later batch has a single row
                self._listed = bool(self._listed)
        if not self._listed:
            return clients
        cells = clients.to_pylist()
        lists = [_parse_list(cell, self._plural) for cell in cells]
        if not self.notes:
            for cell, names in zip(cells, lists, strict=True):
                if len(names) > 1 and not cell.strip().startswith(_BRACKETS):
                    self.notes.append(f"cells such as {cell!r:.60} are read as several clients")
                    break
        return pa.array(lists).cast(pa.list_(pa.large_string()))


def _expand_rows(batch: dict[str, pa.Array]) -> dict[str, pa.Array]:
    """Return one row for each entry of the lists in `client`."""
    clients = batch["client"]
    lengths = pc.fill_null(pc.list_value_length(clients), 0)
    rows = pc.list_parent_indices(clients)
    expanded = {}
    for ours, column in batch.items():
        if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
            expanded[ours] = column.take(rows)
            continue
        if not pc.fill_null(pc.list_value_length(column), 0).cast(lengths.type).equals(lengths):
            raise InvalidInputError(
                f"{ours}: a list is not as long as its round's list of clients; "
                "give one entry for each client"
            )
        expanded[ours] = pc.list_flatten(column)
    return expanded


def _are_lists(clients: pa.DictionaryArray, single: bool, name: str | None) -> bool:
    """Return whether cells are written as lists; `single`: no round has two rows."""
    texts = [text.strip() for text in clients.dictionary[:_EXAMINED].to_pylist()]
    arrays = sum(text.startswith(_BRACKETS) and _parse_brackets(text) is not None for text in texts)
    if 2 * arrays > len(texts):
        return True
    joined = sum(";" in text for text in texts)
    if not single and name is not None and 2 * joined > len(texts):
        raise InvalidInputError(
            "client: most ids contain semicolons, and rounds have several rows; call the column "
            f"'clients' if these are lists (if they are names: {name_columns({'client': name})})"
        )
    return single and arrays + joined > 0


def _reject_doubtful(clients: pa.DictionaryArray, name: str) -> None:
    """Raise InvalidInputError for text that would be a list in a column called `clients`."""
    several = next(filter(_LIKE_LISTS.search, clients.dictionary[:_EXAMINED].to_pylist()), None)
    if several is not None:
        raise InvalidInputError(
            f"client: {several!r:.60} may be one client or several, as no round or stage of one "
            "has two rows; call the column 'clients' if it is a list (if it is a name: "
            f"{name_columns({'client': name})})"
        )


def _are_unique(rounds: pa.Array, stages: pa.Array | None = None) -> bool:
    """Return whether no round, or no stage of a round, has two rows."""
    if pa.types.is_nested(rounds.type):  # no rounds or times: `LogBuilder` refuses them by name
        return False
    if stages is None or pa.types.is_nested(stages.type):
        return len(rounds.unique()) == len(rounds)
    stages = stages.dictionary_decode() if pa.types.is_dictionary(stages.type) else stages
    rows = pa.table({"round": rounds, "stage": stages})
    return int(rows.group_by(["round", "stage"]).aggregate([]).num_rows) == len(rounds)


def _vary_lengths(column: pa.Array) -> pa.Array:
    """Return lists of one length, as of a matrix of cohorts, as lists of any length."""
    fixed = pa.types.is_fixed_size_list(column.type)
    return column.cast(pa.list_(column.type.value_type)) if fixed else column


_NUMBERS = re.compile(r"\[\s*(\d+(?:\s+\d+)+)\s*\]|\d+(?:\s+\d+)+")
"""Numbers with blanks between them, in brackets as NumPy prints an array."""
_NO_COMMA = re.compile(r"(?<=['\"])\s+(?=['\"])")
"""Where NumPy prints no comma between two strings, which Python would then join."""


def _parse_list(cell: str | None, plural: bool) -> list[str]:
    """Return the clients in a cell of text."""
    text = (cell or "").strip()
    if plural and (numbers := _NUMBERS.fullmatch(text)):
        return (numbers[1] or numbers[0]).split()
    if text.startswith(_BRACKETS):
        clients = _parse_brackets(text)
        if clients is None:
            raise InvalidInputError(
                f"client: {text!r:.60} is not a list of clients; write a JSON array, or ann;bob;eve"
            )
        return [str(client) for client in clients]
    separators = _SEPARATORS if plural else ";"
    separator = max(separators, key=text.count)
    return [client.strip() for client in text.split(separator) if client.strip()]


def _parse_brackets(text: str) -> list[str | int] | None:
    """Return the clients in a JSON array, or a list, tuple or set of Python; None: it is none."""
    text = _NO_COMMA.sub(", ", text)
    for parse in (json.loads, ast.literal_eval):
        try:
            clients = parse(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        if isinstance(clients, list | tuple | set) and {str, int}.issuperset(map(type, clients)):
            return list(clients)
    return None


def _reject_counts(clients: pa.Array, name: str) -> None:
    """Raise InvalidInputError if each of several rounds has a number instead of its clients."""
    numbers = pa.types.is_integer(clients.type)
    if is_text(clients.type):
        names = encode_text(clients).dictionary
        numbers = pc.all(pc.match_substring_regex(names, r"^\s*\d+\s*$")).as_py()
    if numbers and len(clients) > 1:
        raise InvalidInputError(
            "client: every round has one number, which may be the number of its clients; give "
            f"their names (if the numbers are names: {name_columns({'client': name})})"
        )
