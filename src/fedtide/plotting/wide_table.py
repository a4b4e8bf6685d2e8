"""A table for a terminal that continues in further blocks instead of hiding columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import TextType

_NAME_SHARE = 0.45  # most of the terminal's width that the first column may take
_LAYOUT: dict[str, Any] = {
    "box": box.SIMPLE_HEAD,
    "header_style": "bold",
    "show_edge": False,
    "collapse_padding": True,
    "title_justify": "left",
}


class WideTable(Table):
    """A table that is split into blocks, each with the first column, if the terminal is narrow.

    Long entries of the first column, the names of the rows, are folded, so that no part of a name
    is hidden; the other columns are never wrapped.
    """

    def __init__(self, title: str | None = None) -> None:
        super().__init__(title=title, **_LAYOUT)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines of all blocks, with an empty line between them."""
        for number, block in enumerate(self._blocks(console, options.max_width)):
            if number:
                yield ""
            yield block

    def _blocks(self, console: Console, most: int) -> list[Table]:
        """Return the fewest blocks of columns that each fit into `most` characters."""
        own = [self._natural_width(console, i) for i in range(len(self.columns))]
        used = min(own[0], int(_NAME_SHARE * most))
        blocks: list[list[int]] = [[]]
        for i in range(1, len(self.columns)):
            if blocks[-1] and used + sum(own[j] for j in blocks[-1]) + own[i] > most:
                blocks.append([])
            blocks[-1].append(i)
        return [
            self._select([0, *block], None if number else self.title)
            for number, block in enumerate(blocks)
        ]

    def _natural_width(self, console: Console, index: int) -> int:
        single = self._select([index])
        return Measurement.get(console, console.options.update(max_width=10_000), single).maximum

    def _select(self, indices: Sequence[int], title: TextType | None = None) -> Table:
        """Return a plain table of some columns."""
        table = Table(title=title, **_LAYOUT)
        columns = [self.columns[index] for index in indices]
        for index, column in zip(indices, columns, strict=True):
            table.add_column(
                column.header, justify=column.justify, overflow="fold", no_wrap=index > 0
            )
        for cells in zip(*(column.cells for column in columns), strict=True):
            table.add_row(*cells)
        return table
