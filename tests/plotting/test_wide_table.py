"""Tables wider than the terminal show everything, in several blocks."""

import io

import pytest
from rich.console import Console

from fedtide.plotting.wide_table import WideTable

NAME = "fedau (problem.partition.alpha=0.05, algorithm.inner.cutoff=50)"


def render(width, columns):
    table = WideTable()
    table.add_column("method")
    for i in range(columns):
        table.add_column(f"a long\nheading {i}", justify="right")
    for name in (NAME, "plain"):
        table.add_row(name, *(f"{i}.25 ± 0.75" for i in range(columns)))
    file = io.StringIO()
    Console(file=file, width=width).print(table)
    return file.getvalue()


@pytest.mark.parametrize(("width", "columns"), [(50, 0), (50, 9), (80, 4), (200, 9)])
def test_every_cell_is_shown_whole_and_no_line_is_too_long(width, columns):
    text = render(width, columns)
    assert all(len(line) <= width for line in text.splitlines())
    assert "…" not in text
    for i in range(columns):
        assert text.count(f"{i}.25 ± 0.75") == 2
        assert f"heading {i}" in text
    folded = "".join(line.strip().split("  ")[0] for line in text.splitlines())
    assert "algorithm.inner.cutoff=50)" in "".join(folded.split())
