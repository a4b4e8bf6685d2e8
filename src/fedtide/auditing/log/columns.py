"""The columns of a participation log: finding them by name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedtide.errors import InvalidInputError, did_you_mean
from fedtide.participation.log.schema import EVENT_NAMES, OUTCOME_NAMES

COLUMNS = ("round", "client", "stage", "weight", "samples", "time", "reason")
"""The columns that an audit reads."""

LIST_NAMES = (
    "clients",
    "client_ids",
    "participants",
    "cohort",
    "selected_clients",
    "sampled_clients",
    "client_indexes",
    "client_indices",
    "nodes",
    "node_ids",
)
"""Names of a column with all clients of a round."""

_ALIASES = {
    "round": (
        "server_round",
        "round_number",
        "round_num",
        "round_id",
        "round_idx",
        "round_index",
        "rnd",
        "current_round",
        "global_round",
        "communication_round",
        "fl_round",
    ),
    "client": (
        "client_id",
        "client_name",
        "client_idx",
        "client_index",
        "cid",
        "node_id",
        "partition_id",
        "participant",
        "participant_id",
        "device",
        "device_id",
        "user",
        "user_id",
        "site",
        "site_name",
        "collaborator",
        "collaborator_name",
        *LIST_NAMES,
    ),
    "stage": (),
    "weight": (),
    "samples": ("num_examples", "num_samples", "n_samples", "examples"),
    "time": ("timestamp", "datetime", "date", "ts", "created_at", "started_at"),
    "reason": (
        "failure_reason",
        "refusal_reason",
        "rejection_reason",
        "dropout_reason",
        "error_type",
        "error_message",
        "exception",
    ),
}
"""Other names by which a column is recognised, the likeliest first."""

_SUGGESTED = {
    "round": ("iteration", "epoch", "step", "t"),
    "client": ("id", "name", "worker", "party", "member", "node"),
}
"""Names that may mean something else: errors suggest them, but they are not used by default."""

NOUNS = {column: column for column in COLUMNS} | {"samples": "sample count"}
"""What a value of each column is called."""

REASON_NAMES = _ALIASES["reason"]
"""Names of columns whose text says that a row's client failed."""
PRESENCE_NAMES = tuple(
    name
    for verb in (
        *("participated", "participates", "participating", "took_part", "takes_part", "present"),
        *("available", "selected", "reported", "used", "active", "online", "responded", "trained"),
    )
    for name in (verb, f"is_{verb}", f"has_{verb}", f"was_{verb}")
)
"""Names of columns whose 0 or False says that a row's client did not take part."""
_INDEX = re.compile(r"|__index_level_\d+__|Unnamed: \d+")
"""Names of a pandas index in a file."""
_LISTED = 8


@dataclass(frozen=True)
class ColumnNames:
    """Which column of the log is which.

    Args:
        columns: the log's own name of each of COLUMNS that it has.
        note: which columns were recognised under another name, in words; empty: none.
        unread: which columns are not read, in words; empty: none.
        outcomes: columns whose names suggest that they tell who failed or who took part, including
            that of the reasons; empty if there are stages.
    """

    columns: dict[str, str]
    note: str
    unread: str
    outcomes: tuple[str, ...] = ()


def find_columns(
    available: Sequence[str],
    columns: Mapping[str, str],
    timed: bool = False,
    has_meanings: bool = False,
) -> ColumnNames:
    """Find the columns of a log: by the user's names, the standard names, or common aliases.

    Case, spaces, hyphens and underscores do not matter.

    Args:
        available: the names of the log's columns.
        columns: names given by the user, such as {"round": "my_round"}.
        timed: whether rounds are to be computed from times, so that `time` is needed and `round`
            is not; without a column of times, the column `round` holds them.
        has_meanings: whether the user says which stages the values of a column mean; without a
            column `stage`, that is the one that tells who failed or who took part.

    Raises:
        InvalidInputError: a name that is unknown or not in the log; no column of rounds or
            clients.

    >>> found = find_columns(["server_round", "cid", "loss"], {"client": "cid"})
    >>> found.columns, found.note
    ({'round': 'server_round', 'client': 'cid'}, "'server_round' is the round")
    >>> found.unread
    "columns that are not read: 'loss'"
    """
    for ours in columns:
        if ours not in COLUMNS:
            raise InvalidInputError(
                f"columns: an audit reads no column {ours!r}; {did_you_mean(ours, COLUMNS)}"
            )
    if wrong := [theirs for theirs in columns.values() if theirs not in available]:
        raise InvalidInputError(
            f"columns: the log has no column {' or '.join(map(repr, wrong))}; "
            f"{did_you_mean(wrong[0], available)}"
        )
    free = [name for name in available if name not in columns.values()]
    found = {ours: recognise(ours, free) for ours in COLUMNS}
    names = {ours: theirs for ours, theirs in found.items() if theirs is not None} | {**columns}
    if has_meanings and "stage" not in names:
        names["stage"] = _find_outcome([name for name in free if name not in names.values()])
    if timed and "time" not in names and "round" in names:
        names["time"] = names["round"]
    _require(names, ("time" if timed else "round", "client"), available, timed)
    names.pop("round" if timed else "time", None)
    _reject_repeated(names, available)
    guessed = [
        f"{names[ours]!r} is the {NOUNS[ours]}"
        for ours in COLUMNS
        if ours in names and ours not in columns and names[ours] not in (ours, "round")
    ]
    others = [name for name in available if name not in names.values()]
    outcomes = [] if "stage" in names else [name for name in others if says_outcome(name)]
    unread = _describe_unread(others, outcomes)
    reason = names.get("reason", "")
    if "stage" not in names and "reason" not in columns and is_called(reason, REASON_NAMES):
        outcomes.append(reason)
    return ColumnNames(names, ", ".join(guessed), unread, tuple(outcomes))


def _find_outcome(others: Sequence[str]) -> str:
    """Return the only column whose name suggests that it tells who failed or who took part."""
    found = [name for name in others if says_outcome(name)]
    found = [name for name in found if not is_called(name, EVENT_NAMES)] or found
    if len(found) == 1:
        return found[0]
    wrong = "no column is called 'stage', 'status' or the like"
    if found:
        wrong = f"{' and '.join(map(repr, found[:2]))} may say which stage clients reached"
    raise InvalidInputError(
        f"stages: {wrong}; name the column with {name_columns({'stage': (*found, 'NAME')[0]})}"
    )


def _describe_unread(others: Sequence[str], outcomes: Sequence[str]) -> str:
    """Return which columns are not read, and what that means if one may say who failed."""
    if not (named := name_unread(others)):
        return ""
    text = f"columns that are not read: {named}"
    outcome = next((name for name in outcomes if is_called(name, OUTCOME_NAMES)), None)
    if outcome is None:
        return text
    return (
        f"{text}; if {outcome!r:.60} says who failed, say what its values mean with "
        "--stages VALUE=STAGE,...: otherwise every row counts as participation"
    )


def name_columns(columns: Mapping[str, str]) -> str:
    """Return how a user names columns, in Python and on the command line.

    >>> name_columns({"client": "worker"})
    "columns={'client': 'worker'} or --columns client=worker"
    """
    options = " ".join(f"--columns {ours}={theirs}" for ours, theirs in columns.items())
    return f"columns={dict(columns)!r} or {options}"


def is_called(name: str, aliases: Sequence[str]) -> bool:
    """Return whether a column's name is one of these, ignoring case and separators."""
    return _plain(name) in {_plain(alias) for alias in aliases}


def says_outcome(name: str) -> bool:
    """Return whether a column of this name may say who failed, or who took part."""
    return is_called(name, (*OUTCOME_NAMES, *PRESENCE_NAMES))


def is_recognised(name: str) -> bool:
    """Return whether a column of this name is read by default, and changes numbers."""
    return any(
        is_called(name, (ours, *aliases)) for ours, aliases in _ALIASES.items() if ours != "reason"
    )


def recognise(ours: str, available: Sequence[str]) -> str | None:
    """Return which of these names stands for one of our COLUMNS, as written; None: none does.

    >>> recognise("client", ["region", "Client Name"])
    'Client Name'
    """
    return _find_first(available, (ours, *_ALIASES[ours]))


def name_unread(columns: Sequence[str]) -> str:
    """Return the columns that are not read, in words, without a pandas index; empty: none."""
    others = [name for name in columns if not _INDEX.fullmatch(name)]
    more = f" and {len(others) - _LISTED} more" if len(others) > _LISTED else ""
    return ", ".join(f"{name!r:.60}" for name in others[:_LISTED]) + more


def _find_first(available: Sequence[str], aliases: Sequence[str]) -> str | None:
    """Return the first of the aliases that is a column, as the log writes it."""
    written = {_plain(name): name for name in reversed(available)}
    return next((written[_plain(alias)] for alias in aliases if _plain(alias) in written), None)


def _plain(name: str) -> str:
    return re.sub(r"[\s_.-]", "", name.lower())


def _require(
    names: Mapping[str, str], needed: Sequence[str], available: Sequence[str], timed: bool
) -> None:
    """Raise InvalidInputError, naming everything that is missing."""
    missing = [ours for ours in needed if ours not in names]
    if not missing:
        return
    if missing[0] == "round" and "time" in names:
        what, named = "", ""
        if len(missing) > 1:
            what, named = " and no column 'client'", f", and {_suggest(missing[1:], available)}"
        raise InvalidInputError(
            f"log: no column 'round'{what}, but the times {names['time']!r}; give the length of a "
            f"round in seconds with round_seconds= or --round-seconds{named}"
        )
    if not available:
        raise InvalidInputError(
            "log: the table has no columns (the index of a pandas table is not read; give "
            "frame.reset_index())"
        )
    wanted = " and ".join(repr(ours) for ours in missing)
    kind, them = ("column", "it") if len(missing) == 1 else ("columns", "them")
    hint = ""
    if missing == ["client"] and len(available) > _LISTED:
        hint = ", or if each client has a column, turn the columns into rows with unpivot"
    if len(missing) == len(needed) and len(available) <= len(needed):
        hint = ", or put the column names in the first line of the file"
    raise InvalidInputError(
        f"log: no {kind} {wanted} among {name_unread(available)}; "
        f"name {them} with {_suggest(missing, available)}{hint}"
    )


def _suggest(missing: Sequence[str], available: Sequence[str]) -> str:
    """Return how to name the columns that are missing."""
    found = {ours: _find_first(available, _SUGGESTED.get(ours, ())) for ours in missing}
    return name_columns({ours: theirs or "NAME" for ours, theirs in found.items()})


def _reject_repeated(names: Mapping[str, str], available: Sequence[str]) -> None:
    for theirs in names.values():
        if list(available).count(theirs) > 1:
            raise InvalidInputError(
                f"log: two columns are called {theirs!r}; rename or remove one of them"
            )
