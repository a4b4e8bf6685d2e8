"""Write docs/reference.md, every key of an experiment file, from the classes and their docstrings.

python docs/write_reference.py
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np
import torch
from torch import nn

from fedtide.algorithms import ALGORITHMS, Algorithm
from fedtide.configurable import field_types, is_union
from fedtide.differential_privacy import MECHANISMS, Mechanism
from fedtide.participation import (
    DROPOUTS,
    PROCESSES,
    RATES,
    SELECTIONS,
    Availability,
    Correlated,
    Dropout,
    Selection,
)
from fedtide.problems import MODELS, PARTITIONS, PROBLEMS, Partition, Problem
from fedtide.problems.datasets import natural
from fedtide.problems.datasets.catalogue import KNOWN
from fedtide.problems.losses import LOSSES
from fedtide.problems.models import MODEL_TYPES, Model
from fedtide.problems.sample_metrics import METRICS
from fedtide.simulation.experiment import Checkpoints, Evaluate, Experiment
from fedtide.sweep import Sweep
from fedtide.sweep.strategies import TwoStage
from fedtide.training import PROJECTIONS, SCHEDULES, LocalTraining
from fedtide.training.lr_schedules import LearningRateSchedule
from fedtide.training.projection import Projection

PAGE = Path(__file__).with_name("reference.md")

SECTIONS: dict[type, tuple[str, str]] = {
    Problem: ("problem", "Problems"),
    Partition: ("partition", "Partitions"),
    Model: ("model", "Models"),
    Availability: ("participation", "Participation"),
    Correlated: ("rates", "Rates"),
    Selection: ("selection", "Selections"),
    Dropout: ("dropout", "Dropout models"),
    Mechanism: ("privacy", "Privacy"),
    Algorithm: ("algorithm", "Algorithms"),
    LocalTraining: ("local", "Local training"),
    LearningRateSchedule: ("schedule", "Learning-rate schedules"),
    Projection: ("projection", "Projections"),
    Evaluate: ("evaluation", "Evaluation"),
    Checkpoints: ("checkpoint", "Checkpoints"),
}
"""For each class that a key takes: the key, and the title of its section."""

WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    Path: "path",
    type(None): "null",
    Mapping: "mapping",
    Any: "any value",
    nn.Module: "network (Python)",
    Callable: "function",
    np.ndarray: "list",
    torch.Tensor: "list",
}

INTRODUCTION = """# Configuration reference

Every key of an experiment file, written by `python docs/write_reference.py` from the code. The keys
are the fields of the classes in `fedtide`, so each table also lists the arguments in Python.

Where a table names a *type*, the value is a mapping with `type` and the keys of that type, or the
name alone if the defaults suit: `algorithm: fedau` is `algorithm: {type: fedau}`. Instead of a
name, `type` takes the import path `package.module:Class` of a class of your own, and losses,
metrics and data sources take that of a function ([your-own.md](your-own.md)). `None` in an
explanation is `null` in a file. Any value can be set on the command line:
`fedtide run file.yaml local.lr=0.3`.
"""


_RST_TABLE = re.compile(r"^(=+(?: +=+)+)\n(.+)\n\1\n((?:.+\n)+?)\1$", re.MULTILINE)


def page() -> str:
    """Return the page."""
    return "\n".join(_paragraphs()).rstrip() + "\n"


def _paragraphs() -> Iterator[str]:
    yield INTRODUCTION
    yield from _contents()
    yield "## Experiment\n"
    yield _table(Experiment)
    yield from _class_section(LocalTraining)
    yield from _types(LearningRateSchedule, SCHEDULES)
    yield from _types(Projection, PROJECTIONS)
    yield from _types(Problem, PROBLEMS)
    yield "### Losses\n"
    yield _functions(LOSSES)
    yield "### Metrics\n"
    yield _functions({name: metric.function for name, metric in METRICS.items()})
    yield "### Data sets\n"
    yield from _data_sets()
    yield from _types(Partition, PARTITIONS)
    yield from _types(Model, MODEL_TYPES)
    yield "### Models by name\n"
    names = "| name | is |\n|---|---|\n"
    yield names + "".join(f"| `{n}` | `{_escape(repr(m))}` |\n" for n, m in MODELS.items())
    yield from _types(Availability, PROCESSES)
    yield from _types(Correlated, RATES)
    yield from _types(Selection, SELECTIONS)
    yield from _types(Dropout, DROPOUTS)
    yield from _types(Mechanism, MECHANISMS)
    yield from _types(Algorithm, ALGORITHMS)
    yield from _class_section(Evaluate)
    yield from _class_section(Checkpoints)
    yield "## Sweeps\n"
    yield f"{_description(Sweep)}\n"
    yield "### `strategy: two-stage`\n"
    yield from _class_text(TwoStage)


def _contents() -> Iterator[str]:
    keys = (f"[`{key}`](#{_anchor(title)})" for key, title in SECTIONS.values())
    yield f"Sections: [Experiment](#experiment), {', '.join(keys)}, [sweeps](#sweeps).\n"


def _class_section(cls: type) -> Iterator[str]:
    key, title = SECTIONS[cls]
    yield f"## {title}\n"
    yield f"The keys of `{key}`.\n"
    yield from _class_text(cls)


def _types(base: type, registry: Mapping[str, type]) -> Iterator[str]:
    """Yield the section of a base class: a table of its types, then each type."""
    key, title = SECTIONS[base]
    yield f"## {title}\n"
    yield f"The types of `{key}`.\n"
    rows = (
        f"| [`{n}`](#{_heading_anchor(key, n)}) | {_summary(c)} |\n" for n, c in registry.items()
    )
    yield "| type | what it is |\n|---|---|\n" + "".join(rows)
    for name, cls in registry.items():
        yield f"### `{key}: {name}`\n"
        yield from _class_text(cls)


def _class_text(cls: type) -> Iterator[str]:
    yield f"{_description(cls)}\n"
    if field_types(cls):
        yield _table(cls)


def _table(cls: type) -> str:
    """Return the fields of a dataclass as a table: key, what it takes, default, meaning."""
    meaning, kinds = _arguments(cls), field_types(cls)
    rows = [
        f"| `{f.name}` | {_kind(kinds[f.name])} | {_default(f)} | {_escape(meaning[f.name])} |\n"
        for f in fields(cls)
        if f.init
    ]
    return "| key | takes | default | meaning |\n|---|---|---|---|\n" + "".join(rows)


def _functions(functions: Mapping[str, Callable[..., Any]]) -> str:
    rows = (f"| `{name}` | {_summary(f)} |\n" for name, f in functions.items())
    return "| name | of each sample |\n|---|---|\n" + "".join(rows)


def _data_sets() -> Iterator[str]:
    names = ", ".join(f"`{name}`" for name in ("digits", *KNOWN))
    yield f"`dataset` of `classification`: {names}, or a folder.\n"
    yield "`train` and `test` of `supervised`:\n"
    yield (
        "| text | the samples |\n|---|---|\n"
        "| a path that ends in .parquet or .csv | the file |\n"
        "| `package.module:function` | what the function returns |\n"
        "| `hub:OWNER/NAME`, `hub:OWNER/NAME:SPLIT` | a split on the Hugging Face hub |\n"
        + "".join(f"| `{n}` | {_summary(f)} |\n" for n, f in natural.NATURAL.items())
    )


def _description(cls: type) -> str:
    """Return the docstring up to the list of arguments."""
    text = inspect.getdoc(cls) or ""
    text = re.split(r"^(?:Args|Attributes|Raises|Returns):$|^>>>", text, flags=re.MULTILINE)[0]
    return _prose(text.strip())


def _summary(thing: object) -> str:
    """Return the first line of the docstring, of a function without "Return"."""
    line = (inspect.getdoc(thing) or "").splitlines()[0].removeprefix("Return ")
    return _escape(_prose(line[0].upper() + line[1:]))


def _arguments(cls: type) -> Mapping[str, str]:
    """Return what the docstring, or that of a base class, says of each field."""
    meaning: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        text = inspect.cleandoc(base.__doc__ or "")
        if other := re.search(r"^The arguments are those of (\w+)\.", text, re.MULTILINE):
            meaning |= _arguments(next(c for c in ALGORITHMS.values() if c.__name__ == other[1]))
        block = re.search(r"^Args:\n((?:    .*\n?|\n)+)", text, re.MULTILINE)
        for entry in re.split(r"\n(?=    \S)", block[1] if block else ""):
            names, _, about = entry.strip().partition(": ")
            meaning |= {name: " ".join(about.split()) for name in re.split(r",\s*", names)}
    missing = [f.name for f in fields(cls) if f.init and f.name not in meaning]
    if missing:
        raise ValueError(f"{cls.__name__}: the docstring does not explain {missing}")
    return meaning


def _kind(kind: Any) -> str:
    """Return what a field of this annotation takes, in words."""
    if is_union(kind):
        members = [member for member in get_args(kind) if member is not Any]
        return _either(dict.fromkeys(map(_kind, members)))
    base = get_origin(kind) or kind
    if base is Literal:
        return _either([f"`{option}`" for option in get_args(kind)])
    if base in SECTIONS:
        key, title = SECTIONS[base]
        return f"[{key}](#{_anchor(title)})"
    if base in (Sequence, list, tuple):
        inner = (*get_args(kind), Any)[0]
        return "list" if inner is Any else f"list of {_kind(inner)}s"
    if base is Callable or getattr(base, "__name__", "") == "Callable":
        return WORDS[Callable]
    return WORDS.get(base, f"{getattr(base, '__name__', base)} (Python)")


def _either(options: Iterable[str]) -> str:
    *others, last = options
    return f"{', '.join(others)} or {last}" if others else last


def _default(field: Field[Any]) -> str:
    value = field.default if field.default_factory is MISSING else field.default_factory()
    if value is MISSING:
        return "**required**"
    names = {cls: name for r in (SELECTIONS, DROPOUTS, ALGORITHMS) for name, cls in r.items()}
    if type(value) in names:
        return f"`{names[type(value)]}`"
    if isinstance(value, Evaluate | Checkpoints):
        return "its defaults"
    plain = {None: "null", True: "true", False: "false"}
    if value is None or isinstance(value, bool):
        return f"`{plain[value]}`"
    if isinstance(value, tuple | list):
        return f"`[{', '.join(map(str, value))}]`"
    return f"`{value}`"


def _prose(text: str) -> str:
    """Return a docstring as Markdown: its tables, and no emphasis where a star is meant."""
    text = _RST_TABLE.sub(_markdown_table, text)
    return re.sub(r"(?<![`\\])\*(?=\w)", r"\\*", text)


def _markdown_table(match: re.Match[str]) -> str:
    """Return a table whose columns are underlined with equals signs as a Markdown table."""
    spans = [part.span() for part in re.finditer("=+", match[1])]
    lines = [match[2], *match[3].splitlines()]
    rows = ["| " + " | ".join(line[a:b].strip() for a, b in spans) + " |" for line in lines]
    return "\n".join([rows[0], "|---" * len(spans) + "|", *rows[1:]])


def _escape(text: str) -> str:
    """Return text for the cell of a table."""
    return text.replace("|", "\\|")


def _anchor(title: str) -> str:
    return re.sub(r"[^\w -]", "", title).lower().replace(" ", "-")


def _heading_anchor(key: str, name: str) -> str:
    return _anchor(f"{key}: {name}")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"written: {PAGE}")
