"""The section of an experiment on the results page: its numbers, comparisons and earlier runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedtide.papers.claim_judging import (
    DECIDED,
    JudgedExperiment,
    Rows,
    Ruling,
    judge_claims,
)
from fedtide.papers.measures import Measure
from fedtide.papers.paper_spec import PaperExperiment, Scale
from fedtide.papers.published_comparison import (
    Cell,
    Row,
    format_measured,
    format_program,
    format_published,
    has_number,
    make_row,
)
from fedtide.papers.record import Record
from fedtide.papers.superseded import superseded


def render_section(one: JudgedExperiment) -> str:
    """Return the section of one experiment; a few lines where nothing was run."""
    paper = one.paper
    lines = [f"## {paper.name}", "", f"{paper.title} ({paper.reference}).", ""]
    if not one.records:
        return "\n".join([*lines, _not_run(one)]) + "\n\n"
    if paper.laptop is not None:
        lines += [f"Laptop: {paper.laptop.description}.", ""]
    if any(row.seeds for rows in one.rows.values() for row in rows):
        lines += _table(paper, one.rows)
        lines += _comparisons(one.rulings)
    else:
        lines += [_not_run(one) + " Earlier runs are at the end of this section."]
    for label, remarks in (
        ("Unknown, and the substitute", paper.unknown),
        ("Where paper and program differ", paper.choices),
        ("Notes", paper.notes),
        ("Stopped early", _stopped(one.rows)),
        ("Run on", _machines(one.records)),
    ):
        if remarks:
            lines += ["", f"{label}:", "", *(f"- {remark}" for remark in remarks)]
    lines += _earlier_runs(paper, one.records)
    return "\n".join(lines) + "\n\n"


def _not_run(one: JudgedExperiment) -> str:
    """Return a line for an experiment without records of its planned runs."""
    reason = describe_missing_data(one) if one.waiting else "Not run with the planned settings."
    file = f"`src/fedtide/papers/{one.paper.name}.yaml`"
    return f"{reason} {file} has the settings and what the paper prints."


def describe_missing_data(one: JudgedExperiment) -> str:
    """Return which data set is missing, and how many claims wait for it."""
    wait = "1 claim waits" if one.waiting == 1 else f"{one.waiting} claims wait"
    return f"No data here: {one.paper.no_data}. {wait} for it."


def _comparisons(rulings: Sequence[Ruling]) -> list[str]:
    """Return the lines of the table of all comparisons that were run."""
    rows = [
        f"| {ruling.claim.statement} | {scale} | {one.text} | {one.state} |"
        for ruling in rulings
        for scale, verdict in (("full", ruling.full), ("laptop", ruling.laptop))
        if verdict is not None
        for one in verdict.comparisons
        if one.state != "not run"
    ]
    head = ["| claim | scale | comparison | |", "|---|---|---|---|"]
    return ["", "Comparisons:", "", *head, *rows] if rows else []


def _earlier_runs(paper: PaperExperiment, records: Sequence[Record]) -> list[str]:
    """Return the lines on records with other settings than the planned ones."""
    lines = []
    titles = [measure.title or measure.metric for measure in paper.measures.values()]
    for (scale, difference), group in superseded(paper, records).items():
        name = "full scale" if scale == "paper" else "laptop scale"
        lines += ["", f"Earlier runs at {name}, not counted above; {difference}:", ""]
        lines += [f"| method | {' | '.join(titles)} | seeds |"]
        lines += ["|" + "---|" * (len(titles) + 2)]
        places: dict[tuple[str, str], list[Record]] = defaultdict(list)
        for record in group:
            places[record.case, record.method].append(record)
        rows = [make_row(paper, *place, found) for place, found in places.items()]
        for row in rows:
            cells = [format_measured(row.cells[m], paper.measures[m]) for m in paper.measures]
            lines.append(f"| {row.label} | {' | '.join(cells)} | {row.seeds} |")
        decided = [
            f"- {claim.statement}: {verdict.outcome}: {verdict.summary}"
            for claim, verdict in judge_claims(paper, rows, scale)
            if verdict.outcome in DECIDED
        ]
        lines += ["", "By these runs alone:", "", *decided] if decided else []
    return lines


@dataclass(frozen=True)
class _Column:
    """A column of a section's table: a measure at a scale."""

    title: str
    measure: str
    scale: Scale
    format: Callable[[Cell, Measure], str]


def _columns(paper: PaperExperiment) -> list[_Column]:
    columns = []
    for name, measure in paper.measures.items():
        title = measure.title or measure.metric
        if has_number(paper.published, name):
            columns.append(_Column(f"{title}, published", name, "paper", format_published))
        if has_number(paper.program, name):
            columns.append(_Column(f"{title}, authors' program", name, "paper", format_program))
        columns.append(_Column(f"{title}, measured", name, "paper", format_measured))
        if paper.laptop is not None:
            columns.append(_Column(f"{title}, laptop", name, "laptop", format_measured))
    return columns


def _table(paper: PaperExperiment, rows: Rows) -> list[str]:
    """Return the lines of the table of published and measured numbers at both scales."""
    columns = _columns(paper)
    head = ["method", *(column.title for column in columns), "seeds run"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    at = {scale: {(row.case, row.method): row for row in of} for scale, of in rows.items()}
    for where, row in at["paper"].items():
        cells = [_cell(at[c.scale].get(where), c, paper) for c in columns]
        counts = [_run_count(of.get(where)) for of in at.values()]
        lines.append(f"| {row.label} | {' | '.join(cells)} | {' / '.join(counts)} |")
    return lines


def _cell(row: Row | None, column: _Column, paper: PaperExperiment) -> str:
    """Return the text of a cell; a dash where the scale leaves the row out."""
    if row is None:
        return "–"
    return column.format(row.cells[column.measure], paper.measures[column.measure])


def _run_count(row: Row | None) -> str:
    return "–" if row is None else f"{row.seeds} of {row.planned}"


def _stopped(rows: Rows) -> list[str]:
    """Return the reasons of runs that ended early."""
    return [
        f"{row.label} ({'full scale' if scale == 'paper' else scale}): {row.stopped}"
        for scale, of in rows.items()
        for row in of
        if row.stopped is not None
    ]


def _machines(records: Sequence[Record]) -> list[str]:
    """Return the machines and versions of the runs, with the total time on each."""
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    for record in records:
        if record.shared_from is None:
            seconds[record.computed_on, record.version] += record.seconds
    return [
        f"{machine}; {version}; {total / 60:.0f} minutes in total"
        for (machine, version), total in sorted(seconds.items())
    ]
