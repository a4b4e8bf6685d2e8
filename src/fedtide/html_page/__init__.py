"""HTML pages: self-contained files with one style, readable on a phone and on paper."""

from __future__ import annotations

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


@cache
def _environment(package: str) -> jinja2.Environment:
    def read(name: str) -> str:
        own = files(package).joinpath(name)
        file = own if own.is_file() else files(__name__).joinpath(name)
        return file.read_text(encoding="utf-8")

    return jinja2.Environment(
        loader=jinja2.FunctionLoader(read),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
