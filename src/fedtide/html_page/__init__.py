"""Pages: self-contained HTML with one style, readable on a phone and on paper, and Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

STYLE = files(__name__).joinpath("page.css").read_text(encoding="utf-8")
"""The style of all pages."""


def render_template(package: str, name: str, title: str, style: str = "", **content: Any) -> str:
    """Return a page from the template of a package.

    The template extends `page.html.jinja`, whose blocks are `head`, `main` and `end`, and may
    import `table` and `tile_row` from `parts.html.jinja`:

        {% extends "page.html.jinja" %}
        {% from "parts.html.jinja" import table, tile_row %}
        {% block main %}{{ table(["client", ("rounds", "n")], rows) }}{% endblock %}

    Everything is escaped, except for `Markup`. Its own name is another one.

    Args:
        package: the package with the template, such as "fedtide.report".
        name: of its file.
        title: of the page, in the browser's tab.
        style: CSS of this page, after the style of all pages.
        content: what the template shows.
    """
    return (
        _environment(package)
        .get_template(name)
        .render(title=title, style=Markup(STYLE + style), **content)
    )


def render_markdown(package: str, name: str, **content: Any) -> str:
    """Return the Markdown that a template of a package makes; it ends with one line break."""
    return _environment(package).get_template(name).render(**content).strip() + "\n"


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table in Markdown.

    >>> print(markdown_table(["method", "loss"], [["fedavg", 0.1]]))
    | method | loss |
    |---|---|
    | fedavg | 0.1 |
    """
    head = f"| {' | '.join(heads)} |".replace("|  |", "| |")
    lines = [f"| {' | '.join(map(str, row))} |" for row in rows]
    return "\n".join([head, "|" + "---|" * len(heads), *lines])


@cache
def _environment(package: str) -> jinja2.Environment:
    def read(name: str) -> str:
        own = files(package).joinpath(name)
        file = own if own.is_file() else files(__name__).joinpath(name)
        return file.read_text(encoding="utf-8")

    return jinja2.Environment(
        loader=jinja2.FunctionLoader(read),
        autoescape=jinja2.select_autoescape(enabled_extensions=("html.jinja",)),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
