"""Every key of an experiment file as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fedtide.algorithms import Algorithm
from fedtide.cli.key_tables import (
    SECTIONS,
    KeyTable,
    Part,
    Section,
    anchor,
    describe,
    summarise,
    tabulate_keys,
    tabulate_types,
)
from fedtide.participation import Availability
from fedtide.simulation import Experiment
from fedtide.spec import fields
from site_builder.docstrings import to_markdown

PAGES: Mapping[type | None, str] = {Algorithm: "methods", Availability: "participation"}
"""The base classes whose types have a page each, and the folder of these pages."""


def all_keys() -> str:
    """Return the sections of all keys, but for the types that have a page each."""
    links = (f"[{section.title}](#{anchor(section.title)})" for section in SECTIONS)
    paragraphs = [f"Sections: {', '.join(links)}.\n"]
    for section in SECTIONS:
        paragraphs += [f"## {section.title}\n", *_section(section)]
    return "\n".join(paragraphs).rstrip() + "\n"


def class_text(cls: type, home: str = "") -> str:
    """Return what a class is, and a table of its keys.

    Args:
        cls: the class.
        home: the page of the keys as seen from the page of the class; empty: the same page.
    """
    text = f"{to_markdown(describe(cls))}\n"
    return f"{text}\n{_table(tabulate_keys(cls, home))}" if fields(cls) else text


def summary(thing: object) -> str:
    """Return the first line of the docstring for the cell of a table."""
    return _escape(to_markdown(summarise(thing)))


def _section(section: Section) -> Iterator[str]:
    key, folder = section.key, PAGES.get(section.base)
    if section.types is not None:
        places = {
            name: f"{folder}/{name}.md" if folder else f"#{anchor(f'{key}: {name}')}"
            for name in section.types
        }
        yield f"The types of `{key}`.\n"
        yield _table(tabulate_types(section.types, lambda name: f"[`{name}`]({places[name]})"))
        for name, cls in section.types.items() if folder is None else ():
            yield f"### `{key}: {name}`\n"
            yield class_text(cls)
    elif section.base is not None:
        yield f"The keys of {'a file' if section.base is Experiment else f'`{key}`'}.\n"
        yield class_text(section.base)
    yield from map(_markdown, section.parts)


def _markdown(part: Part) -> str:
    return to_markdown(part) + "\n" if isinstance(part, str) else _table(part)


def _table(table: KeyTable) -> str:
    lines = [f"| {' | '.join(map(_escape, row))} |\n" for row in (table.heads, *table.rows)]
    return "".join([lines[0], "|---" * len(table.heads), "|\n", *lines[1:]])


def _escape(text: str) -> str:
    """Return text for the cell of a table."""
    return text.replace("|", "\\|")
