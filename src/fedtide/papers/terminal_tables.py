"""The tables of published experiments in the terminal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from rich import box
from rich.table import Table

from fedtide.papers.paper_spec import SCALES, PaperExperiment, load, names
from fedtide.papers.record import Record
from fedtide.papers.rows import Row, compare, format_measured, format_number, has_number, titles
from fedtide.papers.verdicts import Verdict
from fedtide.plotting.wide_table import WideTable


def experiments_table(records: Iterable[Record]) -> Table:
    """Return a table of all published experiments with their data, cost and records.

    Records with other settings than the planned ones are not counted.
    """
    by_paper: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_paper[record.paper].append(record)
    table = _table("experiment", "data", "paper scale", "laptop scale")
    for column in table.columns[1:]:
        column.no_wrap = True
    for name in names():
        paper = load(name)
        cells = [f"[bold]{name}[/bold]\n{paper.title}", paper.dataset or "none"]
        for scale in SCALES:
            if scale == "laptop" and paper.laptop is None:
                cells.append("as paper")
                continue
            rows = compare(paper, by_paper[name], scale)
            done, runs = sum(len(row.records) for row in rows), sum(row.planned for row in rows)
            cells.append(f"{format_minutes(paper.minutes[scale])}\n{done} of {runs} runs")
        table.add_row(*cells)
    return table


def format_minutes(minutes: float) -> str:
    """Return a duration in a readable unit.

    >>> format_minutes(40), format_minutes(150), format_minutes(300), format_minutes(9000)
    ('40 min', '2.5 h', '5 h', '6 days')
    """
    if minutes < 120:
        return f"{minutes:.0f} min"
    return f"{minutes / 60:.2g} h" if minutes < 72 * 60 else f"{minutes / 60 / 24:.0f} days"


def comparison_table(paper: PaperExperiment, rows: Sequence[Row]) -> Table:
    """Return a table of published and measured numbers, in several blocks if it is wide."""
    table = WideTable(title=f"{paper.name}: {paper.title}")
    printed = [name for name in paper.measures if has_number(paper.published, name)]
    table.add_column("method", overflow="fold")
    for name, title in titles(paper).items():
        for kind in ("published", "measured") if name in printed else ("measured",):
            table.add_column(f"{title}\n{kind}", overflow="fold")
    table.add_column("seeds", overflow="fold")
    for row in rows:
        cells = [row.label]
        for name in paper.measures:
            if name in printed:
                cells.append(format_number(paper, paper.published, row, name))
            cells.append(format_measured(paper, row, name))
        table.add_row(*cells, f"{len(row.records)}/{row.planned}")
    return table


def claims_table(paper: PaperExperiment, verdicts: Iterable[Verdict]) -> Table:
    """Return a table of the claims and their verdicts."""
    table = _table("claim", "outcome", "numbers")
    for claim, verdict in zip(paper.claims, verdicts, strict=True):
        statement = claim.statement if claim.check is None else f"Check: {claim.statement}"
        table.add_row(statement, verdict.outcome, verdict.summary)
    return table


def _table(*heads: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", show_edge=False)
    for head in heads:
        table.add_column(head, overflow="fold")
    return table
