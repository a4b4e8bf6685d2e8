"""The summary of an audit on the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from fedtide.auditing.output.formatting import to_sentence
from fedtide.auditing.output.sentences import list_lines
from fedtide.auditing.recommend.findings import Findings

_WIDTH = 11
_BOX = 3
"""The first lines, which everyone understands, stand in a box."""


def show(audit: Findings, console: Console) -> None:
    """Print the summary: whose model, how sure, what to do; then the findings behind it."""
    lines = list(list_lines(audit).items())
    console.print(Panel(_list(lines[:_BOX])))
    console.print(_list(lines[_BOX:]))


def _list(lines: list[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True, min_width=_WIDTH)
    table.add_column()
    for label, text in lines:
        table.add_row(label, escape(to_sentence(text)))
    return table
