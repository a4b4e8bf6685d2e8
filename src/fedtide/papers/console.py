"""What the terminal shows of published experiments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.table import Table

from fedtide.papers.claims import Claim, Verdict
from fedtide.papers.paper_registry import load, names
from fedtide.papers.paper_spec import PaperExperiment
from fedtide.papers.plan import plan
from fedtide.papers.published_comparison import (
    Row,
    has_printed,
    measured_text,
    place,
    published_text,
)
from fedtide.papers.record import Record


def listing(records: Iterable[Record]) -> Table:
    """Return two lines for each published experiment: its data, cost and records, and its title."""
    count: dict[tuple[str, str], int] = {}
    for record in records:
        where = record.paper, record.scale
        count[where] = count.get(where, 0) + 1
    table = _table("experiment", "data", "paper scale", "laptop scale")
    for column in table.columns[1:]:
        column.no_wrap = True
    for name in names():
        paper = load(name)
        cells = [f"[bold]{name}[/bold]\n{paper.title}", paper.dataset or "none"]
        for scale in ("paper", "laptop"):
            if scale == "laptop" and paper.laptop is None:
                cells.append("as paper")
                continue
            runs = len(plan(paper, "paper" if scale == "paper" else "laptop"))
            done = count.get((name, scale), 0)
            cells.append(f"{duration(paper.minutes[scale])}\n{done} of {runs} runs")
        table.add_row(*cells)
    return table


def duration(minutes: float) -> str:
    """Return minutes for people.

    >>> duration(40), duration(300), duration(9000)
    ('40 min', '5 h', '6 days')
    """
    if minutes < 120:
        return f"{minutes:.0f} min"
    return f"{minutes / 60:.0f} h" if minutes < 72 * 60 else f"{minutes / 60 / 24:.0f} days"


def side_by_side(paper: PaperExperiment, rows: Sequence[Row]) -> Table:
    """Return published against measured."""
    heads, printed = (
        ["method"],
        {name: has_printed(paper.published, name) for name in paper.measures},
    )
    for name, measure in paper.measures.items():
        title = measure.title or measure.metric
        heads += [f"{title}\npublished"] * printed[name] + [f"{title}\nmeasured"]
    table = _table(*heads, "seeds", title=f"{paper.name}: {paper.title}")
    for row in rows:
        cells = [place(row)]
        for name, measure in paper.measures.items():
            cell = row.cells[name]
            cells += [published_text(cell, measure)] * printed[name]
            cells.append(measured_text(cell, measure))
        table.add_row(*cells, f"{row.seeds}/{row.planned}")
    return table


def judged(verdicts: Sequence[tuple[Claim, Verdict]]) -> Table:
    """Return the claims and whether they are borne out."""
    table = _table("claim", "found", "numbers")
    for claim, verdict in verdicts:
        table.add_row(claim.says, verdict.word, verdict.numbers)
    return table


def _table(*heads: str, title: str | None = None) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", show_edge=False, title=title)
    for head in heads:
        table.add_column(head, overflow="fold")
    return table
