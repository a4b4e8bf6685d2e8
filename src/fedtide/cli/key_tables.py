"""Tables of all keys of an experiment file, made from the classes and their docstrings.

The documentation site and `fedtide keys` show them.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fedtide.algorithms import ALGORITHMS, Algorithm
from fedtide.differential_privacy import MECHANISMS, Mechanism
from fedtide.participation import (
    DROPOUTS,
    POLICIES,
    PROCESSES,
    RATES,
    SELECTIONS,
    Availability,
    DeviceSpeeds,
    Dropout,
    RateLaw,
    Selection,
    Synchronous,
    Timing,
)
from fedtide.problems import MODELS, PARTITIONS, PROBLEMS, Partition, Problem
from fedtide.problems.datasets import natural
from fedtide.problems.datasets.catalogue import KNOWN
from fedtide.problems.losses import LOSSES
from fedtide.problems.models import MODEL_TYPES, Model
from fedtide.problems.sample_metrics import METRICS
from fedtide.simulation.experiment import BUILDER, Checkpoints, Evaluate, Experiment
from fedtide.spec import Field, fields
from fedtide.spec.annotations import members, name_kind, origin
from fedtide.sweep import Sweep
from fedtide.sweep.strategies import TwoStage
from fedtide.training import PROJECTIONS, SCHEDULES, LocalTraining
from fedtide.training.lr_schedules import LearningRateSchedule
from fedtide.training.projection import Projection


class KeyTable(NamedTuple):
    """A table whose cells are Markdown.

    Args:
        heads: the titles of the columns.
        rows: the cells of each row.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


Part = str | KeyTable
"""One or more paragraphs, formatted as in a docstring, or a table."""


REQUIRED = "**required**"
"""Shown in place of a default for a key that has none."""


@dataclass(frozen=True)
class Section:
    """The description of what a key takes.

    Args:
        key: the key.
        title: the title.
        base: the base class of the objects that the key takes, if it takes objects.
        types: the classes of these objects, by their `type`; None: `base` itself.
        parts: further paragraphs and tables.
    """

    key: str
    title: str
    base: type | None = None
    types: Mapping[str, type] | None = None
    parts: Sequence[Part] = ()

    @property
    def classes(self) -> dict[str, type]:
        """The classes that have keys, by their path, such as "algorithm.fedau"."""
        if self.types is not None:
            return {f"{self.key}.{name}": cls for name, cls in self.types.items()}
        return {} if self.base is None else {self.key: self.base}


def tabulate_keys(cls: type, home: str = "") -> KeyTable:
    """Return the fields of a dataclass as a table: key, what it takes, default, meaning.

    Args:
        cls: the class.
        home: the page that links to sections lead to; empty: the page of the table itself.
    """
    known = fields(cls).values()
    if missing := [field.name for field in known if not field.meaning]:
        raise ValueError(f"{cls.__name__}: the docstring does not explain {missing}")
    rows = [(f"`{f.name}`", _kind(f.kind, home), _default(f), f.meaning) for f in known]
    return KeyTable(("key", "takes", "default", "meaning"), rows)


def tabulate_types(types: Mapping[str, type], link: Callable[[str], str]) -> KeyTable:
    """Return the types of a key as a table; `link` turns a name into a link."""
    return KeyTable(("type", "what it is"), [(link(n), summarise(c)) for n, c in types.items()])


def describe(cls: type) -> str:
    """Return the docstring of a class up to its list of arguments."""
    return split_docstring(inspect.getdoc(cls) or "")[0]


def split_docstring(text: str) -> tuple[str, str]:
    """Split a docstring into its prose and the rest, its sections and examples."""
    start = found.start() if (found := _PART.search(text)) else len(text)
    return text[:start], text[start:]


def summarise(thing: object) -> str:
    """Return the first line of the docstring, without a function's leading "Return"."""
    line = (inspect.getdoc(thing) or "").splitlines()[0]
    if line.startswith("Return "):
        line = line[7].upper() + line[8:]
    return line


def anchor(title: str) -> str:
    """Return the anchor of a heading on the documentation site."""
    return re.sub(r"[^\w -]", "", title).lower().replace(" ", "-")


_PART = re.compile(r"^(?:Args|Attributes|Raises|Returns|Yields):$|^>>>", re.MULTILINE)


def _kind(kind: Any, home: str) -> str:
    """Return what a field of this annotation takes, in words, with links to sections."""
    words = []
    for member in members(kind):
        homes = (section for section in SECTIONS if section.base is origin(member))
        section = next(homes, None)
        link = "" if section is None else f"[{section.key}]({home}#{anchor(section.title)})"
        words.append(link or name_kind(member).replace("None", "null"))
    return " or ".join(dict.fromkeys(words))


def _default(field: Field) -> str:
    if field.default is None:
        return REQUIRED
    plain = BUILDER.to_plain(field.default())
    if isinstance(plain, dict):
        return f"`{plain['type']}`" if "type" in plain else "its defaults"
    text = plain if isinstance(plain, str) else json.dumps(plain).replace("Infinity", ".inf")
    return f"`{text}`"


def _functions(functions: Mapping[str, Callable[..., Any]]) -> KeyTable:
    rows = [(f"`{name}`", summarise(function)) for name, function in functions.items()]
    return KeyTable(("name", "of each sample"), rows)


def _data_sets() -> Iterator[Part]:
    names = ", ".join(f"`{name}`" for name in ("digits", *KNOWN))
    yield f"`dataset` of `classification`: {names}, or a folder.\n"
    yield "`train` and `test` of `supervised`:\n"
    yield KeyTable(
        ("text", "the samples"),
        [
            ("a path that ends in .parquet or .csv", "the file"),
            ("`package.module:function`", "what the function returns"),
            ("`hub:OWNER/NAME`, `hub:OWNER/NAME:SPLIT`", "a split on the Hugging Face hub"),
            *((f"`{name}`", summarise(read)) for name, read in natural.NATURAL.items()),
        ],
    )


_MODEL_NAMES = KeyTable(("name", "is"), [(f"`{n}`", f"`{m!r}`") for n, m in MODELS.items()])

SECTIONS = (
    Section("experiment", "Experiment", base=Experiment),
    Section("local", "Local training", base=LocalTraining),
    Section("schedule", "Learning-rate schedules", base=LearningRateSchedule, types=SCHEDULES),
    Section("projection", "Projections", base=Projection, types=PROJECTIONS),
    Section("problem", "Problems", base=Problem, types=PROBLEMS),
    Section("loss", "Losses", parts=[_functions(LOSSES)]),
    Section(
        "metrics",
        "Metrics",
        parts=[
            _functions({n: m.function for n, m in METRICS.items()}),
            "Of the whole test set: `{auc: {type: set, function: package.module:function}}`.\n",
        ],
    ),
    Section("dataset", "Data sets", parts=[*_data_sets()]),
    Section("partition", "Partitions", base=Partition, types=PARTITIONS),
    Section("model", "Models", base=Model, types=MODEL_TYPES),
    Section("model", "Models by name", parts=[_MODEL_NAMES]),
    Section("participation", "Participation", base=Availability, types=PROCESSES),
    Section("rates", "Rates", base=RateLaw, types=RATES),
    Section("selection", "Selections", base=Selection, types=SELECTIONS),
    Section("dropout", "Dropout models", base=Dropout, types=DROPOUTS),
    Section("timing", "Timing", base=Timing),
    Section("policy", "Policies", base=Synchronous, types=POLICIES),
    Section("devices", "Devices", base=DeviceSpeeds),
    Section("privacy", "Privacy", base=Mechanism, types=MECHANISMS),
    Section("algorithm", "Algorithms", base=Algorithm, types=ALGORITHMS),
    Section("evaluation", "Evaluation", base=Evaluate),
    Section("checkpoint", "Checkpoints", base=Checkpoints),
    Section("sweep", "Sweeps", parts=[describe(Sweep).rstrip()]),
    Section("strategy", "Strategies", types={"two-stage": TwoStage}),
)
"""All keys, in the order of the reference."""
