"""The comparison table as a file: CSV with all digits, Markdown or LaTeX without the speed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fedtide.atomic_io import write_text
from fedtide.report.comparison import COLUMNS, compare_conditions, comparison_cells
from fedtide.report.grouping import Conditions
from fedtide.validation import require_suffix

TABLE_SUFFIXES = (".csv", ".md", ".tex")
"""The formats in which a table can be saved."""

_SPEED = next(column.title for column in COLUMNS if column.key == "rounds_per_second")
"""The title of the column that depends on the machine, not the method; only CSV contains it."""

Rows = list[list[str]]


def write_table(conditions: Conditions, path: Path) -> None:
    """Write the comparison of runs as CSV, Markdown or LaTeX, chosen by the suffix of `path`.

    CSV has separate columns for means and standard deviations. If there are several conditions, the
    first column is the `condition`.

    Raises:
        InvalidInputError: another suffix, or the file cannot be written.
    """
    require_suffix("table", path, TABLE_SUFFIXES)
    suffix = path.suffix.lower()
    if suffix == ".csv":
        text = compare_conditions(conditions).write_csv()
    else:
        rows = _read_rows(conditions)
        text = _to_latex(rows) if suffix == ".tex" else _to_markdown(rows)
    write_text(path, text, field="table", hint="choose another place")


def _read_rows(conditions: Conditions) -> Rows:
    """Return the titles, followed by a row per method, as text."""
    rows = [
        ({"condition": name} if len(conditions) > 1 else {}) | cells
        for name, groups in conditions.items()
        for cells in comparison_cells(groups)
    ]
    titles = [title for title in dict.fromkeys(t for row in rows for t in row) if title != _SPEED]
    heads = [title.replace("\n", " ").strip() for title in titles]
    return [heads, *([row.get(title, "") for title in titles] for row in rows)]


def _to_markdown(rows: Rows) -> str:
    r"""Return a table in Markdown.

    >>> print(_to_markdown([["method", "loss"], ["a|b", "0.1"]]))
    | method | loss |
    |---|---:|
    | a\|b | 0.1 |
    <BLANKLINE>
    """
    lines = [f"| {' | '.join(_escape(row, _MARKDOWN))} |" for row in rows]
    rule = "|".join("---" if title in _TEXTS else "---:" for title in rows[0])
    return "\n".join([lines[0], f"|{rule}|", *lines[1:], ""])


def _to_latex(rows: Rows) -> str:
    r"""Return a table in LaTeX, with the rules of booktabs.

    >>> print(_to_latex([["method", "accuracy %"], ["a_1", "96.1 ± 0.5"]]))
    % needs \usepackage{booktabs}
    \begin{tabular}{lr}
    \toprule
    method & accuracy \% \\
    \midrule
    a\_1 & 96.1 $\pm$ 0.5 \\
    \bottomrule
    \end{tabular}
    <BLANKLINE>
    """
    heads, *lines = [rf"{' & '.join(_escape(row, _LATEX))} \\" for row in rows]
    columns = "".join("l" if title in _TEXTS else "r" for title in rows[0])
    begin = ["% needs \\usepackage{booktabs}", rf"\begin{{tabular}}{{{columns}}}", r"\toprule"]
    end = [r"\bottomrule", r"\end{tabular}", ""]
    return "\n".join([*begin, heads, r"\midrule", *lines, *end])


_TEXTS = ("condition", "method")  # all other columns are aligned on the right

_MARKDOWN = {ord(mark): rf"\{mark}" for mark in r"\`*<|"}
_LATEX = {ord(mark): rf"\{mark}" for mark in "&%$#_{}"} | {
    ord("\\"): r"\textbackslash{}",
    ord("~"): r"\textasciitilde{}",
    ord("^"): r"\textasciicircum{}",
    ord("<"): r"\textless{}",
    ord(">"): r"\textgreater{}",
    ord("|"): r"\textbar{}",
    ord("±"): r"$\pm$",
    ord("…"): r"\dots{}",
}


def _escape(cells: Iterable[str], marks: dict[int, str]) -> list[str]:
    return [cell.translate(marks) for cell in cells]
