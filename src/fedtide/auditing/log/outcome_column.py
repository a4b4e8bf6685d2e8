"""A column that is not read as stages, but may say that some clients failed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

import pyarrow as pa

from fedtide.auditing.log.columns import PRESENCE_NAMES, REASON_NAMES, is_called, name_columns
from fedtide.auditing.log.stage_column import (
    MOST_LISTED,
    MOST_VALUES,
    OTHER,
    UNSURE,
    Guess,
    flatten,
    guess_stage,
    name_meanings,
)
from fedtide.auditing.log.values import MISSING, NO, YES, is_number, is_text
from fedtide.errors import InvalidInputError
from fedtide.participation.log.schema import STAGES

_ROWS = 1 << 14
"""Rows counted at a time: a column of measurements may have as many different values as rows."""
_NUMBER = re.compile(r"[+-]?([\d.]+(e[+-]?\d+)?|inf)")
"""A number among messages, which may be a code or a loss."""
_GOOD = ("success", "succeeded", "completed", "ok", *PRESENCE_NAMES)
"""Names of columns in which "no" says that a client failed or was not there."""
_BAD = ("failed", "is_failed", "dropped", "error")
"""Names of columns in which "yes" does."""
_EARLY = ("available", "selected")


class OutcomeColumn:
    """Counts of the values of a column that is not read, but may say that some clients failed.

    Args:
        name: the log's name of the column.
        is_only: whether no other column may say so.
    """

    def __init__(self, name: str, is_only: bool) -> None:
        self._name, self._is_only = name, is_only
        self._has_messages = is_called(name, ("error", *REASON_NAMES))
        self._says_presence = is_called(name, PRESENCE_NAMES)
        self._counts: Counter[str] = Counter()
        self._lacking: Counter[str] = Counter()

    def add(self, column: pa.Array, samples: pa.Array | None) -> None:
        """Count the values of a batch, and those without a sample count in the same row."""
        column = flatten(column)
        values = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        kind = values.type
        if not (is_text(kind) or is_number(kind) or pa.types.is_boolean(kind)):
            return
        lacking = None if samples is None else samples.is_null(nan_is_null=True)
        for low in range(0, len(values), _ROWS):
            if self._is_full and (is_number(kind) or not self._has_messages):
                return  # so many different values say nothing
            part = values[low : low + _ROWS]
            _count(part, self._counts)
            if lacking is not None:
                _count(part.filter(lacking[low : low + _ROWS]), self._lacking)

    @property
    def _is_full(self) -> bool:
        """Whether there are too many values to count each; the others count as OTHER."""
        return len(self._counts) > MOST_VALUES

    def reject_failures(self) -> None:
        """Raise InvalidInputError if some rows plainly say that a client failed.

        If all rows do, only a column whose name says who took part is refused.
        """
        guesses = self._guess_stages()
        failed = {value for value, guess in guesses.items() if guess.failed}
        lacking = failed | self._find_lacking()
        if lacking != {*guesses}:  # else the missing sample counts tell nobody apart
            failed = lacking
        begun = {value for value, guess in guesses.items() if guess.stage in _EARLY} - failed
        has_turns = bool(begun) and failed | begun != {*guesses}
        if has_turns:  # a log of events: rows from before the answer are no participation
            failed |= begun
        # of many messages, the rest is counted as OTHER, which says nothing by itself
        if not failed or (self._is_full and failed == {OTHER}):
            return
        says_nobody = self._says_presence and all(guess.failed for guess in guesses.values())
        if failed == {*guesses} and not says_nobody:
            return
        stages = {value: guess.stage for value, guess in guesses.items()}
        others = {value: stage for value, stage in stages.items() if value not in failed}
        means = _shorten(
            _guess_others(others, has_turns),
            {v: "available" if stages[v] == "available" else "selected" for v in sorted(failed)},
        )
        rows = sum(self._counts[value] for value in failed)
        example = max(sorted(failed), key=lambda value: (value != OTHER, self._counts[value]))
        what = repr(example) if len(failed) == 1 else f"{example!r:.60} or the like"
        named = "" if self._is_only else f"{name_columns({'stage': self._name})} and "
        raise InvalidInputError(
            f"log: {self._name!r:.60} is {what:.80} in {rows:,} of {self._counts.total():,} rows, "
            "which would count as participation; remove the rows of absent clients, and say which "
            f"stage the others reached ({', '.join(STAGES)}) with {named}"
            f"{name_meanings(means)}"
        )

    def _guess_stages(self) -> dict[str, Guess]:
        """Return what each value seems to say: by flags, as a message, or by the words in it."""
        texts = {value: value.lower() for value in self._counts}
        good, bad = is_called(self._name, _GOOD), is_called(self._name, _BAD)
        if (good or bad) and {*texts.values()} <= NO | YES | {*MISSING}:
            failed = {value for value, text in texts.items() if text in (NO if good else YES)}
        elif self._has_messages:
            failed = {value for value, text in texts.items() if not _is_fine(text)}
        else:
            return {} if self._is_full else {value: guess_stage(value) for value in texts}
        return {v: Guess("selected", True) if v in failed else Guess("used") for v in texts}

    def _find_lacking(self) -> set[str]:
        """Return the values whose rows, and no others, all have no sample count."""
        found = {value for value, count in self._counts.items() if self._lacking[value] == count}
        total = sum(self._counts[value] for value in found)
        return found if total == self._lacking.total() and not self._is_full else set()


def _is_fine(message: str) -> bool:
    """Return whether a message says that there was no error, or is a number, such as a code."""
    is_empty = message in {*MISSING, *NO}
    return is_empty or bool(_NUMBER.fullmatch(message)) or guess_stage(message).stage == "used"


def _guess_others(stages: Mapping[str, str], has_turns: bool) -> dict[str, str]:
    """Return, for a hint, the meanings of the values that do not say that a client failed.

    Args:
        stages: what they seem to mean.
        has_turns: whether a client's turn has several rows, not all of them answers.
    """
    several = len(stages) > 1
    meant = {
        "used": "used",
        "reported": "reported" if "used" in stages.values() else "used",
        UNSURE: UNSURE if several and has_turns else "used",
    }
    means = {value: meant.get(stage, UNSURE) for value, stage in stages.items()}
    return means | {"": UNSURE} if several and "" in means else means


def _shorten(others: Mapping[str, str], failed: Mapping[str, str]) -> Mapping[str, str]:
    """Return what values mean, with one meaning for all of a kind if there are many."""
    if len(failed) > MOST_LISTED:
        return {**others, OTHER: "selected"}
    if len(others) > MOST_LISTED:
        return {**failed, OTHER: UNSURE if UNSURE in others.values() else "used"}
    return {**others, **failed}


def _count(values: pa.Array, counts: Counter[str]) -> None:
    """Add how often each value occurs to the counts; beyond MOST_VALUES values, as OTHER."""
    for entry in values.value_counts().to_pylist():
        text = "" if entry["values"] is None else str(entry["values"]).strip()
        text = "" if text.lower() in MISSING else text
        full = len(counts) >= MOST_VALUES and text not in counts
        counts[OTHER if full else text] += entry["counts"]
