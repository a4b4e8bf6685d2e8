"""The stages of a log's rows, and columns that say in other words who failed."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fedtide.auditing.log.columns import REASON_NAMES, is_called, name_columns
from fedtide.auditing.log.values import MISSING, NO, USED, YES, is_number, is_text, to_numpy
from fedtide.errors import InvalidInputError
from fedtide.participation.log.schema import STAGES

OTHER = "other"
"""Among the meanings of values: all values that are not named, missing ones included."""

_HINT = f"give one of {', '.join(STAGES)}"
_ANY = "STAGE"
"""Stands in a hint for a stage that cannot be guessed."""
_NO_STAGE, _UNKNOWN = len(STAGES), len(STAGES) + 1
_MOST = 50
"""Different values of a column that are counted."""
_ROWS = 1 << 14
"""Rows counted at a time: a column of measurements has as many different values as rows."""
_LISTED = 6
_FAILED = re.compile(
    r"(?<!\bno[\s_-])(fail|error|abort|crash|cancel|reject|refuse|drop|disconnect|unreachable)"
    r"|tim(e|ed)[\s_-]?out|\bnot?[\s_-](respon|reply|answer|reach)|\b(lost|killed|expired|offline)\b"
)
_PASSED_OVER = re.compile(
    r"(\b|_)not[\s_-](select|sampl|chosen|aggregat|us|avail|active|particip|train|includ|report|sent)"
    r"|skip|\b(idle|inactive|absent|unavailable)\b"
)
"""Words for a client that did not take part and did not fail."""
_BEFORE_ANSWER = re.compile(
    r"(?<![a-z])(?<!\bnot[\s_-])(available|selected|sampled|invited|assigned|dispatched|scheduled"
    r"|queued|pending|started|running|in[\s_-]progress)(?![a-z])"
)
"""Words for a client that has not answered, or not yet, as in a log of events."""
_SUCCEEDED = re.compile(r"ok|done|finished|succe\w+|completed?|no[\s_-]errors?|200")
_NUMBER = re.compile(r"[+-]?([\d.]+(e[+-]?\d+)?|inf)")
_GOOD = ("success", "succeeded", "completed", "ok")
_BAD = ("failed", "is_failed", "dropped")


class StageColumn:
    """The stages of a log, collected batch by batch: a byte for each row.

    Args:
        meanings: the stage of values that are no stages themselves, such as {"TIMEOUT":
            "selected"}; the value "" stands for a missing one, and "other" for all that are not
            named. Case and blanks around a value do not matter.

    Raises:
        InvalidInputError: a meaning that is no stage.

    >>> column = StageColumn({"OK": "used", "TIMEOUT": "selected"})
    >>> column.add(pa.array(["OK", "timeout", "used"]))
    >>> column.join()
    array([3, 1, 3], dtype=uint8)
    """

    def __init__(self, meanings: Mapping[Any, str]) -> None:
        self._given, self._meanings = dict(meanings), dict[str, int]()
        for value, stage in meanings.items():
            if stage not in STAGES:
                raise InvalidInputError(f"stages: {value!r:.60} is to mean {stage!r:.60}; {_HINT}")
            self._meanings[_plain("" if value is None else value)] = STAGES.index(stage)
        self._parts: list[NDArray[np.uint8]] = []
        self._unknown: Counter[str] = Counter()
        self._values: dict[int, str] = {}
        self.shared: set[int] = set()
        """Stages below `used` that several values mean, so that a turn may have rows of each."""

    def add(self, column: pa.Array) -> None:
        """Add the stages of a batch."""
        if self._meanings:
            column = _flatten(column)
        if pa.types.is_nested(column.type):
            raise InvalidInputError(f"stage: the column has type {column.type}; {_HINT}")
        encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        names = [str(name).strip() for name in encoded.dictionary.to_pylist()]
        codes = to_numpy(encoded.indices.cast(pa.int64()).fill_null(len(names)))
        counts = np.bincount(codes, minlength=len(names) + 1)
        levels = np.full(len(names) + 1, _NO_STAGE, dtype=np.uint8)
        for code in np.flatnonzero(counts):
            name = names[code] if code < len(names) else ""
            levels[code] = self._find(name)
            if levels[code] == _UNKNOWN:
                self._unknown[name] += int(counts[code])
            elif self._values.setdefault(int(levels[code]), _plain(name)) != _plain(name):
                self.shared |= {int(levels[code])} - {USED}
        self._parts.append(levels[codes])
        if len(self._unknown) > _MOST:
            self._reject_unknown()

    def join(self) -> NDArray[np.uint8] | None:
        """Return the stages of all rows; None: no row has one.

        Raises:
            InvalidInputError: values without a meaning, or only some rows with a stage.
        """
        if self._unknown:
            self._reject_unknown()
        if all((part == _NO_STAGE).all() for part in self._parts):
            return None
        stages = np.concatenate(self._parts)
        self._parts = [stages]
        if missing := int((stages == _NO_STAGE).sum()):
            row = int((stages == _NO_STAGE).argmax()) + 1
            means = self._given | {"": "selected"}
            raise InvalidInputError(
                f"stage: {missing:,} of {len(stages):,} rows have no stage, row {row:,} first; "
                f"{_HINT}, or say what a missing one means with {_name_meanings(means)}, or remove "
                "the column if all rows are used"
            )
        return stages

    def _find(self, name: str) -> int:
        """Return the index of a value's stage."""
        if (stage := self._meanings.get(_plain(name))) is not None:
            return stage
        if name in STAGES:
            return STAGES.index(name)
        if name.lower() in MISSING:
            return self._meanings.get("", self._meanings.get(OTHER, _NO_STAGE))
        return self._meanings.get(OTHER, _UNKNOWN)

    def _reject_unknown(self) -> None:
        named = _list_counts(self._unknown)
        plural = "" if len(self._unknown) == 1 else "s"
        guessed = {name: _guess(name) for name, _ in self._unknown.most_common(_LISTED)}
        means = self._given | guessed
        raise InvalidInputError(
            f"stage: unknown stage{plural} {named}; {_HINT}, or say what the values mean with "
            f"{_name_meanings(means)}"
        )


class OutcomeColumn:
    """The values of a column that is not read, but may say that some clients failed, counted.

    Args:
        name: the log's name of the column.
        is_only: whether no other column may say so.
    """

    def __init__(self, name: str, is_only: bool) -> None:
        self._name, self._is_only = name, is_only
        self._has_messages = is_called(name, ("error", *REASON_NAMES))
        self._counts: Counter[str] = Counter()
        self._lacking: Counter[str] = Counter()

    def add(self, column: pa.Array, samples: pa.Array | None) -> None:
        """Count the values of a batch, and those without a sample count in the same row."""
        column = _flatten(column)
        values = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        kind = values.type
        if not (is_text(kind) or is_number(kind) or pa.types.is_boolean(kind)):
            return
        lacking = None if samples is None else samples.is_null(nan_is_null=True)
        for low in range(0, len(values), _ROWS):
            if len(self._counts) > _MOST and (is_number(kind) or not self._has_messages):
                return  # so many different values say nothing
            part = values[low : low + _ROWS]
            _count(part, self._counts)
            if lacking is not None:
                _count(part.filter(lacking[low : low + _ROWS]), self._lacking)

    def reject_failures(self) -> None:
        """Raise InvalidInputError if some rows, but not all, plainly say that a client failed."""
        failed = sorted(self._find_failures())
        if not failed or len(failed) == len(self._counts):
            return
        good = {
            value: _ANY if _BEFORE_ANSWER.search(value.lower()) else "used"
            for value in self._counts
            if value not in failed
        }
        if len(good) > 1 and "" in good:
            good[""] = _ANY
        if len(good) > 1 and any(_BEFORE_ANSWER.search(value.lower()) for value in failed):
            good = {value: _guess(value) for value in good}  # a log of events
            if "used" not in good.values():  # then the answer is all that such a log has
                good = {v: "used" if stage == "reported" else stage for v, stage in good.items()}
        over = set() if self._has_messages else {v for v in failed if _guess(v) == "available"}
        bad = {value: "available" if value in over else "selected" for value in failed}
        if len(bad) > _LISTED:
            means = good | {OTHER: "selected"}
        elif len(good) > _LISTED:
            means = bad | {value: stage for value, stage in good.items() if stage == _ANY}
            means |= {OTHER: "used"}
        else:
            means = good | bad
        rows = sum(self._counts[value] for value in failed)
        example = max(failed, key=lambda value: (value != OTHER, self._counts[value]))
        what = repr(example) if len(failed) == 1 else f"{example!r:.60} or the like"
        named = "" if self._is_only else f"{name_columns({'stage': self._name})} and "
        raise InvalidInputError(
            f"log: {self._name!r:.60} is {what:.80} in {rows:,} of {self._counts.total():,} rows, "
            "which would count as participation; leave out rows of clients that were not there, "
            f"and say how far the others came ({', '.join(STAGES)}) with {named}"
            f"{_name_meanings(means)}"
        )

    def _find_failures(self) -> set[str]:
        """Return the values that say that a client failed, or whose rows alone have no samples."""
        full = len(self._counts) > _MOST
        silent = {value for value, count in self._counts.items() if self._lacking[value] == count}
        if (
            silent
            and not full
            and sum(self._counts[value] for value in silent) == self._lacking.total()
        ):
            return silent | self._find_words()
        return self._find_words()

    def _find_words(self) -> set[str]:
        """Return the values that say in words, or by a flag, that a client failed."""
        texts = {value: value.lower() for value in self._counts}
        if {*texts.values()} <= NO | YES | {*MISSING}:
            wrong = NO if is_called(self._name, _GOOD) else YES
            flagged = is_called(self._name, (*_GOOD, *_BAD, "error"))
            return {value for value, text in texts.items() if flagged and text in wrong}
        if self._has_messages:
            fine = {*MISSING, *NO}
            wrong = {
                value
                for value, text in texts.items()
                if not (text in fine or _NUMBER.fullmatch(text) or _SUCCEEDED.fullmatch(text))
            }
            # of many values, the rest is counted as OTHER, which says nothing by itself
            return set() if wrong == {OTHER} and len(self._counts) > _MOST else wrong
        if len(self._counts) > _MOST:
            return set()
        begun = {value for value, text in texts.items() if _BEFORE_ANSWER.search(text)}
        words = (_FAILED, _PASSED_OVER)
        failed = {value for value, text in texts.items() if any(w.search(text) for w in words)}
        return failed if failed | begun == {*texts} else failed | begun


def _plain(value: object) -> str:
    return str(value).strip().lower().removesuffix(".0")


def _guess(value: str) -> str:
    """Return the stage that a value seems to mean, for a hint."""
    if _FAILED.search(value.lower()):
        return "selected"
    if _PASSED_OVER.search(value.lower()):
        return "available"
    if value.lower() in STAGES:
        return value.lower()
    if _BEFORE_ANSWER.search(value.lower()):
        return "available" if "available" in value.lower() else "selected"
    return "used" if _SUCCEEDED.fullmatch(value.lower()) else _ANY


def _flatten(column: pa.Array) -> pa.Array:
    """Return objects, such as errors with a code and a message, as the text "object"."""
    if not pa.types.is_struct(column.type):
        return column
    return pc.if_else(column.is_valid(), "object", pa.scalar(None, pa.string()))


def _count(values: pa.Array, counts: Counter[str]) -> None:
    """Add how often each value occurs to the counts, of which there are not many different ones."""
    for entry in values.value_counts().to_pylist():
        text = "" if entry["values"] is None else str(entry["values"]).strip()
        text = "" if text.lower() in MISSING else text
        full = len(counts) >= _MOST and text not in counts
        counts[OTHER if full else text] += entry["counts"]


def _list_counts(counts: Counter[str]) -> str:
    shown = [f"{value!r:.60} ({n:,})" for value, n in counts.most_common(_LISTED)]
    more = len(counts) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _name_meanings(means: Mapping[str, str]) -> str:
    """Return how a user says what values mean, in Python and on the command line.

    >>> _name_meanings({"OK": "used", "timed out": "selected"})
    "stages={'OK': 'used', 'timed out': 'selected'} or --stages 'OK=used,timed out=selected'"
    """
    pairs = ",".join(f"{value}={stage}" for value, stage in means.items())
    return f"stages={dict(means)!r} or --stages {shlex.quote(pairs)}"
