"""Every key of an experiment file as Markdown, from the classes and their docstrings."""

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
    Dropout,
    RateLaw,
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
from site_builder.docstrings import split_docstring, to_markdown

SECTIONS: dict[type, tuple[str, str]] = {
    Problem: ("problem", "Problems"),
    Partition: ("partition", "Partitions"),
    Model: ("model", "Models"),
    Availability: ("participation", "Participation"),
    RateLaw: ("rates", "Rates"),
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

PAGES: dict[type, str] = {Algorithm: "methods", Availability: "participation"}
"""The base classes whose types have a page each, and the folder of these pages."""


def all_keys() -> str:
    """Return the sections of all keys, but for the types that have a page each."""
    return "\n".join(_paragraphs()).rstrip() + "\n"


def class_text(cls: type, home: str = "") -> str:
    """Return what a class is, and a table of its keys.

    Args:
        cls: the class.
        home: the page of the keys as seen from the page of the class; empty: the same page.
    """
    text = f"{_description(cls)}\n"
    return f"{text}\n{_table(cls, home)}" if field_types(cls) else text


def summary(thing: object) -> str:
    """Return the first line of the docstring, of a function without "Return"."""
    line = (inspect.getdoc(thing) or "").splitlines()[0].removeprefix("Return ")
    return _escape(to_markdown(line[0].upper() + line[1:]))


def meanings(cls: type) -> Mapping[str, str]:
    """Return what the docstring, or that of a base class, says of each field."""
    meaning: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        text = inspect.cleandoc(base.__doc__ or "")
        if other := re.search(r"^The arguments are those of (\w+)\.", text, re.MULTILINE):
            meaning |= meanings(next(c for c in ALGORITHMS.values() if c.__name__ == other[1]))
        block = re.search(r"^Args:\n((?:    .*\n?|\n)+)", text, re.MULTILINE)
        for entry in re.split(r"\n(?=    \S)", block[1] if block else ""):
            names, _, about = entry.strip().partition(": ")
            meaning |= {name: " ".join(about.split()) for name in re.split(r",\s*", names)}
    missing = [f.name for f in fields(cls) if f.init and f.name not in meaning]
    if missing:
        raise ValueError(f"{cls.__name__}: the docstring does not explain {missing}")
    return meaning


def _paragraphs() -> Iterator[str]:
    keys = (f"[`{key}`](#{_anchor(title)})" for key, title in SECTIONS.values())
    yield f"Sections: [Experiment](#experiment), {', '.join(keys)}, [sweeps](#sweeps).\n"
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
    yield from _types(RateLaw, RATES)
    yield from _types(Selection, SELECTIONS)
    yield from _types(Dropout, DROPOUTS)
    yield from _types(Mechanism, MECHANISMS)
    yield from _types(Algorithm, ALGORITHMS)
    yield from _class_section(Evaluate)
    yield from _class_section(Checkpoints)
    yield "## Sweeps\n"
    yield f"{_description(Sweep)}\n"
    yield "### `strategy: two-stage`\n"
    yield class_text(TwoStage)


def _class_section(cls: type) -> Iterator[str]:
    key, title = SECTIONS[cls]
    yield f"## {title}\n"
    yield f"The keys of `{key}`.\n"
    yield class_text(cls)


def _types(base: type, registry: Mapping[str, type]) -> Iterator[str]:
    """Yield the section of a base class: a table of its types, then each without a page."""
    key, title = SECTIONS[base]
    folder = PAGES.get(base)
    yield f"## {title}\n"
    yield f"The types of `{key}`.\n"
    places = {
        name: f"{folder}/{name}.md" if folder else f"#{_anchor(f'{key}: {name}')}"
        for name in registry
    }
    rows = (f"| [`{n}`]({places[n]}) | {summary(c)} |\n" for n, c in registry.items())
    yield "| type | what it is |\n|---|---|\n" + "".join(rows)
    for name, cls in registry.items() if folder is None else ():
        yield f"### `{key}: {name}`\n"
        yield class_text(cls)


def _table(cls: type, home: str = "") -> str:
    """Return the fields of a dataclass as a table: key, what it takes, default, meaning."""
    meaning, kinds = meanings(cls), field_types(cls)
    known = [field for field in fields(cls) if field.init]
    rows = [
        f"| `{f.name}` | {_kind(kinds[f.name], home)} | {_default(f)} | "
        f"{_escape(meaning[f.name])} |\n"
        for f in known
    ]
    return "| key | takes | default | meaning |\n|---|---|---|---|\n" + "".join(rows)


def _functions(functions: Mapping[str, Callable[..., Any]]) -> str:
    rows = (f"| `{name}` | {summary(f)} |\n" for name, f in functions.items())
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
        + "".join(f"| `{n}` | {summary(f)} |\n" for n, f in natural.NATURAL.items())
    )


def _description(cls: type) -> str:
    """Return the docstring up to the list of arguments."""
    return to_markdown(split_docstring(inspect.getdoc(cls) or "")[0])


def _kind(kind: Any, home: str) -> str:
    """Return what a field of this annotation takes, in words."""
    if is_union(kind):
        members = [member for member in get_args(kind) if member is not Any]
        return _either(dict.fromkeys(_kind(member, home) for member in members))
    base = get_origin(kind) or kind
    if base is Literal:
        return _either([f"`{option}`" for option in get_args(kind)])
    if base in SECTIONS:
        key, title = SECTIONS[base]
        return f"[{key}]({home}#{_anchor(title)})"
    if base in (Sequence, list, tuple):
        inner = (*get_args(kind), Any)[0]
        return "list" if inner is Any else f"list of {_kind(inner, home)}s"
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


def _escape(text: str) -> str:
    """Return text for the cell of a table."""
    return text.replace("|", "\\|")


def _anchor(title: str) -> str:
    return re.sub(r"[^\w -]", "", title).lower().replace(" ", "-")
