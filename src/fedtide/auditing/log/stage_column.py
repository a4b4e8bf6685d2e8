"""The stages of a log's rows, and guesses at what other values mean."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fedtide.auditing.log.values import MISSING, USED, to_numpy
from fedtide.errors import InvalidInputError
from fedtide.participation.log.schema import STAGES

OTHER = "other"
"""Among the meanings of values: all values that are not named, missing ones included."""

UNSURE = "STAGE"
"""Stands in a hint for a stage that cannot be guessed."""

MOST_VALUES = 50
"""How many different values of a column are counted."""

MOST_LISTED = 6
"""How many different values of a column an error lists."""

_HINT = f"give one of {', '.join(STAGES)}"
_NO_STAGE, _UNKNOWN = len(STAGES), len(STAGES) + 1


class Guess(NamedTuple):
    """What a value seems to say of a client.

    Args:
        stage: the furthest that it reached, or UNSURE.
        failed: whether it came no further: it failed, or did not take part.
    """

    stage: str
    failed: bool = False


_WORDS = (
    (
        r"(?<!\bno[\s_-])(fail|error|abort|crash|cancel|reject|refuse|drop|disconnect|unreachable)"
        r"|tim(e|ed)[\s_-]?out|\bnot?[\s_-](respon|reply|answer|reach)"
        r"|\b(lost|killed|expired|offline)\b",
        Guess("selected", failed=True),
    ),
    (
        r"(\b|_)not[\s_-](select|sampl|chosen|aggregat|us|avail|active|particip|train|includ|report"
        r"|sent)|skip|\b(idle|inactive|absent|unavailable)\b",
        Guess("available", failed=True),
    ),
    (r"(?<![a-z])(?<!\bnot[\s_-])available(?![a-z])", Guess("available")),
    (
        r"(?<![a-z])(?<!\bnot[\s_-])(selected|sampled|invited|assigned|dispatched|scheduled"
        r"|queued|pending|started|running|in[\s_-]progress)(?![a-z])",
        Guess("selected"),
    ),
    (r"^reported$", Guess("reported")),
    (r"^(used|ok|done|finished|succe\w+|completed?|no[\s_-]errors?|200)$", Guess("used")),
)
"""Patterns of words in lower case; the first that is found in a value says what it means."""


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
        """Stages below `used` that several values mean, each of which may have a row in a round."""

    def add(self, column: pa.Array) -> None:
        """Add the stages of a batch."""
        if self._meanings:
            column = flatten(column)
        if pa.types.is_nested(column.type):
            raise InvalidInputError(f"stage: the column has type {column.type}; {_HINT}")
        encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        missing = len(encoded.dictionary)
        names = [*(str(name).strip() for name in encoded.dictionary.to_pylist()), ""]
        codes = to_numpy(encoded.indices.cast(pa.int64()).fill_null(missing))
        counts = np.bincount(codes, minlength=len(names))
        levels = np.full(len(names), _NO_STAGE, dtype=np.uint8)
        for code in np.flatnonzero(counts):
            name = names[code]
            levels[code] = self._find(name)
            if levels[code] == _UNKNOWN:
                self._unknown[name] += int(counts[code])
            elif self._values.setdefault(int(levels[code]), _plain(name)) != _plain(name):
                self.shared |= {int(levels[code])} - {USED}
        self._parts.append(levels[codes])
        if len(self._unknown) > MOST_VALUES:
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
                f"{_HINT}, or say what a missing one means with {name_meanings(means)}, or remove "
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
        guessed = {
            name: guess_stage(name).stage for name, _ in self._unknown.most_common(MOST_LISTED)
        }
        means = self._given | guessed
        raise InvalidInputError(
            f"stage: unknown stage{plural} {named}; {_HINT}, or say what the values mean with "
            f"{name_meanings(means)}"
        )


def guess_stage(value: str) -> Guess:
    """Return what a value seems to say, by the words in it.

    >>> guess_stage("TASK_ASSIGNED"), guess_stage("timed out")
    (Guess(stage='selected', failed=False), Guess(stage='selected', failed=True))
    """
    found = (guess for words, guess in _WORDS if re.search(words, value.lower()))
    return next(found, Guess(UNSURE))


def flatten(column: pa.Array) -> pa.Array:
    """Return objects, such as errors with a code and a message, as the text "object"."""
    if not pa.types.is_struct(column.type):
        return column
    return pc.if_else(column.is_valid(), "object", pa.scalar(None, pa.string()))


def name_meanings(means: Mapping[str, str]) -> str:
    """Return how a user says what values mean, in Python and on the command line.

    >>> name_meanings({"OK": "used", "timed out": "selected"})
    "stages={'OK': 'used', 'timed out': 'selected'} or --stages 'OK=used,timed out=selected'"
    """
    pairs = ",".join(f"{value}={stage}" for value, stage in means.items())
    return f"stages={dict(means)!r} or --stages {shlex.quote(pairs)}"


def _plain(value: object) -> str:
    return str(value).strip().lower().removesuffix(".0")


def _list_counts(counts: Counter[str]) -> str:
    shown = [f"{value!r:.60} ({n:,})" for value, n in counts.most_common(MOST_LISTED)]
    more = len(counts) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
