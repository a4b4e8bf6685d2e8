"""Logs of one row per round with a list of clients: to one row per round and client."""

from __future__ import annotations

import ast
import json
import re

import pyarrow as pa
import pyarrow.compute as pc

from fedtide.auditing.log.columns import LIST_NAMES, is_called
from fedtide.auditing.log.values import encode_text, is_text
from fedtide.errors import InvalidInputError

_SEPARATORS = ";|,"
_BRACKETS = ("[", "(", "{")
_EXAMINED = 1000
"""Different cells of a batch by which it is judged whether cells are lists."""


def expand_lists(
    batch: dict[str, pa.Array], name: str | None, listed: bool = False
) -> tuple[dict[str, pa.Array], bool]:
    """Return one row per round and client, and whether the batch has lists of clients.

    A list is a column of lists, or text: JSON arrays and what Python prints of lists, tuples and
    sets, if most cells are; if no round has two rows, also a single such cell, or names separated
    by semicolons. In a column whose name says that it holds several clients, text is a list in any
    case; bars, commas, and blanks between numbers separate clients, too. Other columns may be
    lists of the same lengths, or single values that hold for all clients of the row.

    Args:
        batch: the columns of the log, by our names.
        name: the log's own name of the clients, if it was recognised; None: the user gave it.
        listed: whether earlier batches of the log had lists.

    Raises:
        InvalidInputError: a list that cannot be parsed; lists of different lengths; one number per
            round, which may be the number of clients; semicolons in most names, which may be lists.

    >>> batch = {"round": pa.array([4, 5, 6]), "client": pa.array(["ann;bob", "", "bob"])}
    >>> expanded, _ = expand_lists(batch, "clients")
    >>> {name: column.to_pylist() for name, column in expanded.items()}
    {'round': [4, 4, 6], 'client': ['ann', 'bob', 'bob']}
    """
    plural = name is not None and is_called(name, LIST_NAMES)
    clients, rounds = batch["client"], batch["round" if "round" in batch else "time"]
    # Types that cannot be compared are no rounds or times: `Entries` refuses them by name.
    single = not pa.types.is_nested(rounds.type) and len(rounds.unique()) == len(rounds)
    if plural and single:
        _reject_counts(clients, str(name))
    if is_text(clients.type):
        clients = encode_text(clients)
        batch = batch | {"client": clients}
        listed = listed or plural or _are_lists(clients, single, name)
    if is_text(clients.type) and listed:
        clients = pa.array([_parse_list(cell, plural) for cell in clients.to_pylist()])
        clients = clients.cast(pa.list_(pa.large_string()))
    if not (pa.types.is_list(clients.type) or pa.types.is_large_list(clients.type)):
        return batch, False
    lengths = pc.fill_null(pc.list_value_length(clients), 0)
    rows = pc.list_parent_indices(clients)
    expanded = {}
    for ours, column in (batch | {"client": clients}).items():
        if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
            expanded[ours] = column.take(rows)
            continue
        if not pc.fill_null(pc.list_value_length(column), 0).cast(lengths.type).equals(lengths):
            raise InvalidInputError(
                f"{ours}: a list is not as long as its round's list of clients; "
                "give one entry for each client"
            )
        expanded[ours] = pc.list_flatten(column)
    return expanded, True


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
            f"'clients' if these are lists (if they are names: --columns client={name})"
        )
    return single and arrays + joined > 0


def _parse_list(cell: str | None, plural: bool) -> list[str]:
    """Return the clients in a cell of text."""
    text = (cell or "").strip()
    if text.startswith(_BRACKETS):
        clients = _parse_brackets(text)
        if clients is None:
            raise InvalidInputError(
                f"client: {text!r:.60} is not a list of clients; write a JSON array, or ann;bob;eve"
            )
        return [str(client) for client in clients]
    if plural and re.fullmatch(r"\d+(\s+\d+)+", text):
        return text.split()
    separators = _SEPARATORS if plural else ";"
    separator = max(separators, key=text.count)
    return [client.strip() for client in text.split(separator) if client.strip()]


def _parse_brackets(text: str) -> list[str | int] | None:
    """Return the clients in a JSON array, or a list, tuple or set of Python; None: it is none."""
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
            f"their names (if the numbers are names: --columns client={name})"
        )
