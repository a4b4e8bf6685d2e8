"""The command `fedtide keys`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedtide.cli.key_tables import (
    REQUIRED,
    SECTIONS,
    KeyTable,
    Part,
    Section,
    describe,
    tabulate_keys,
    tabulate_types,
)
from fedtide.errors import InvalidInputError
from fedtide.plotting.console import new_console
from fedtide.simulation.experiment import SWEEP_KEYS
from fedtide.spec import fields

_OF_SWEEPS = ("base", *SWEEP_KEYS)
_PLAIN: dict[str, Any] = {"markup": False, "highlight": False}
_NEAR = 5  # names listed for an unknown one
_MARKUP = re.compile(r"\[([^\]]*)\]\([^)]*\)|\*\*|`")  # of Markdown: links, bold, code


def keys_command(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A key (local, selection, local.lr, cutoff), or a type of one (fedau, "
            "algorithm.fedau).",
            show_default="the keys at the top of a file",
        ),
    ] = None,
) -> None:
    """Explain the keys of an experiment file: what each takes, its default and its meaning.

    Some keys take a type that has its own keys, as in `algorithm: {type: fedau, cutoff: 50}`. Give
    the name of such a key to list its types, and the name of a type to see its keys. None in an
    explanation is written null in a file. In Python, the classes take the same arguments:
    ft.algorithms.FedAU(cutoff=50).

    Examples: fedtide keys algorithm (all methods), fedtide keys fedau (one method and its keys),
    fedtide keys local (the keys of local training), fedtide keys cutoff (that key wherever it
    occurs)
    """
    parts = list(_find(name) if name else _overview())
    if not parts:
        raise InvalidInputError(f"name: unknown {name!r:.60}; {_near(name or '')}")
    console = new_console()
    for number, part in enumerate(parts):
        if number:
            console.print()
        _print(part, console)


def _overview() -> Iterator[Part]:
    names = dict.fromkeys(section.key for section in SECTIONS[1:])
    yield tabulate_keys(SECTIONS[0].classes["experiment"])
    yield f"More on: {', '.join(names)}. For instance: fedtide keys selection"


def _find(name: str) -> Iterator[Part]:
    """Yield the help on the key or type of this name; the last parts of its path are enough."""
    sections = [section for section in SECTIONS if section.key == name]
    for section in sections:
        yield from _section(section)
    if sections:
        return
    if name in _OF_SWEEPS:
        yield from _find("sweep")
        return
    classes = {place: cls for section in SECTIONS for place, cls in section.classes.items()}
    for place, cls in classes.items():
        if f".{place}".endswith(f".{name}"):
            yield from _class(place, cls)
    owner, _, key = name.rpartition(".")
    rows = [
        (f"{place}.{key}".removeprefix("experiment."), *row[1:])
        for place, cls in classes.items()
        if f".{place}".endswith(f".{owner}" if owner else "")
        for row in tabulate_keys(cls).rows
        if row[0] == f"`{key}`"
    ]
    if rows:
        yield KeyTable(("key", "takes", "default", "meaning"), rows)


def _section(section: Section) -> Iterator[Part]:
    if section.types is not None:
        yield f"The types of {section.key}; fedtide keys {section.key}.NAME explains one:"
        yield tabulate_types(section.types, str)
    elif section.base is not None:
        yield from _class(section.key, section.base)
    else:
        yield f"{section.title}:"
    yield from section.parts


def _class(place: str, cls: type) -> Iterator[Part]:
    table = tabulate_keys(cls) if fields(cls) else None
    key, _, kind = place.partition(".")
    rows = table.rows if table else ()
    required = (f", {row[0].strip('`')}: ..." for row in rows if row[2] == REQUIRED)
    yield f"{key}: {{type: {kind}{''.join(required)}}}" if kind else f"{key}:"
    yield describe(cls).rstrip()
    if table:
        yield table


def _near(name: str) -> str:
    """Return the hint for an unknown name: similar names, or else where to look."""
    places = {place: cls for section in SECTIONS for place, cls in section.classes.items()}
    known = {section.key for section in SECTIONS} | {*_OF_SWEEPS, *places}
    for place, cls in places.items():
        known |= {place.partition(".")[2] or place, *fields(cls)}
        known |= {f"{place}.{key}" for key in fields(cls)}
    near = difflib.get_close_matches(name, sorted(known), n=_NEAR, cutoff=0.6)
    return f"did you mean {', '.join(near)}?" if near else "begin with those of: fedtide keys"


def _print(part: Part, console: Console) -> None:
    if isinstance(part, str):
        for number, text in enumerate(part.split("\n\n")):
            is_laid_out = text.startswith((" ", "=", "- "))  # an equation, a table, a list
            shown = text if is_laid_out else " ".join(text.split())
            shown = re.sub(r"\n +", " ", shown) if text.startswith("- ") else shown
            console.print("\n" * (number > 0) + shown.replace("`", ""), **_PLAIN)
        return
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", show_edge=False, collapse_padding=True)
    for head in part.heads:
        table.add_column(head, no_wrap=head in ("key", "type"))
    for row in part.rows:
        table.add_row(*(escape(_MARKUP.sub(r"\1", cell)) for cell in row))
    console.print(table)
