"""Generates docs/results.md and a page per paper: what is published next to the recorded runs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from fedtide.atomic_io import write_text
from fedtide.html_page import markdown_table, render_markdown
from fedtide.papers.judging import DECIDED, JudgedExperiment, Ruling, judge_experiment
from fedtide.papers.paper_spec import MAIN, SCALES, PaperExperiment, Scale, load, names
from fedtide.papers.record import Record, load_records
from fedtide.papers.rows import Row, format_measured, format_number, has_number, titles
from fedtide.papers.terminal_tables import format_minutes
from fedtide.papers.verdicts import Outcome, Verdict

_PAPERS = {
    "000": "generalized FedAvg with amplified updates, NeurIPS 2022",
    "001": "FedAU, ICLR 2024",
    "002": "Amplified SCAFFOLD, NeurIPS 2024",
    "003": "FedLaAvg",
    "004": "agnostic federated averaging, 2025",
}


def write_results(file: Path, records: Path) -> None:
    """Write the page from all records in a folder, and beside it a page per paper (NAME-000.md).

    Raises:
        InvalidInputError: an unreadable record, or a file that cannot be written.
    """
    for paper, text in render_results(load_records(records), file.stem).items():
        page = file.with_stem(f"{file.stem}-{paper}") if paper else file
        write_text(page, text, field="write", hint="choose another file")


def render_results(records: Iterable[Record], stem: str = "results") -> dict[str, str]:
    """Return the pages in Markdown by the number of their paper; that of all papers is ""."""
    by_paper: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_paper[record.paper].append(record)
    judged = [judge_experiment(load(name), by_paper[name]) for name in names()]
    checks = [r for one in judged for r in one.rulings if r.claim.check is not None]
    pages = {
        "": render_markdown(
            "fedtide.papers",
            "results.md.jinja",
            **_count_records(judged),
            headlines=_headline_table(judged, stem),
            papers=_paper_table(judged, stem),
            counts=_count_claims(judged),
            check_counts=_count_outcomes(checks),
            open=_open_table(judged, stem),
        )
    }
    for number, title in _PAPERS.items():
        own = [one for one in judged if one.paper.name.startswith(number)]
        said: dict[str, str] = {}
        pages[number] = render_markdown(
            "fedtide.papers",
            "paper_results.md.jinja",
            stem=stem,
            number=number,
            title=title,
            counts=_count_claims(own),
            sections=[_section(one, said) for one in own if not one.waiting],
            waiting=[one for one in own if one.waiting],
        )
    return pages


def _count_records(judged: Sequence[JudgedExperiment]) -> dict[str, int]:
    """Return how many records there are, and how many of each kind."""
    records = [record for one in judged for record in one.records]
    trained = [r for one in judged if one.paper.compute is None for r in one.records]
    rows = [row for one in judged for of in one.rows.values() for row in of]
    return {
        "matching": sum(len(row.records) for row in rows),
        "records": len(records),
        "shared": sum(record.shared_from is not None for record in records),
        "trained": len(trained),
        "on_gpu": sum("device" in record.execution for record in trained),
    }


def _count_claims(judged: Sequence[JudgedExperiment]) -> str:
    """Return how many claims have each outcome, and how many wait for data."""
    waiting = sum(one.waiting for one in judged)
    text = _count_outcomes([r for one in judged for r in one.counted])
    return f"{text}, {waiting} without data" if waiting else text


def _count_outcomes(rulings: Sequence[Ruling]) -> str:
    """Return how many claims have each outcome, and how many of the decided ones at full scale."""
    count = Counter(ruling.decisive.outcome for ruling in rulings)
    full = Counter(r.decisive.outcome for r in rulings if r.decisive is r.full)
    return ", ".join(
        f"{count[outcome]} {outcome}"
        + (f" ({full[outcome]} at full scale)" if outcome in DECIDED and count[outcome] else "")
        for outcome in get_args(Outcome)
    )


def _headline_table(judged: Iterable[JudgedExperiment], stem: str) -> str:
    """Return the first claim that is decided of each experiment, and how many more there are."""
    rows = []
    for one in judged:
        decided = [ruling for ruling in one.counted if ruling.decisive.outcome in DECIDED]
        if decided:
            first, *others = decided
            more = Counter[str](ruling.decisive.outcome for ruling in others)
            more["open"] = len(one.counted) - len(decided)
            scale = "full" if first.decisive is first.full else "laptop"
            counts = ", ".join(f"{n} {outcome}" for outcome, n in more.items() if n)
            link = _link(one.paper.name, stem)
            rows.append(
                (
                    link,
                    _statement(first, one.paper.reference),
                    scale,
                    _verdict(first.decisive),
                    counts,
                )
            )
    return markdown_table(["experiment", "claim", "scale", "verdict", "its other claims"], rows)


def _paper_table(judged: Sequence[JudgedExperiment], stem: str) -> str:
    """Return how many claims of each paper have each outcome."""
    outcomes = get_args(Outcome)
    rows = []
    for number, title in _PAPERS.items():
        own = [one for one in judged if one.paper.name.startswith(number)]
        count = Counter(r.decisive.outcome for one in own for r in one.counted)
        waiting = sum(one.waiting for one in own)
        link = f"[{number}]({stem}-{number}.md), {title}"
        rows.append([link, *(count[outcome] for outcome in outcomes), waiting])
    return markdown_table(["paper", *outcomes, "without data"], rows)


def _open_table(judged: Iterable[JudgedExperiment], stem: str) -> str:
    """Return the table of the runs without which claims stay open, and their estimated time."""
    rows = []
    for one in judged:
        still = [r for r in one.counted if r.decisive.outcome not in DECIDED]
        missing = [_missing_runs(one, scale) if scale in one.rows else "" for scale in SCALES]
        rows += [[_link(one.paper.name, stem), len(still), *missing]] if any(missing) else []
    return markdown_table(["experiment", "open claims", "full scale", "laptop"], rows)


def _missing_runs(one: JudgedExperiment, scale: Scale) -> str:
    """Return how many planned runs have no record, and how long they would take."""
    planned = sum(row.planned for row in one.rows[scale])
    missing = planned - sum(len(row.records) for row in one.rows[scale])
    minutes = one.paper.minutes[scale] * missing / planned
    return f"{missing} runs, {format_minutes(minutes)}" if missing and one.counted else ""


def _link(name: str, stem: str) -> str:
    return f"[{name}]({stem}-{name[:3]}.md#{name.replace('/', '')})"


def _statement(ruling: Ruling, experiment: str) -> str:
    """Return what a claim says and, unless it is that of the whole experiment, its reference."""
    claim = ruling.claim
    known = not claim.reference or claim.reference in experiment
    return claim.statement + ("" if known else f" ({claim.reference})")


def _verdict(verdict: Verdict) -> str:
    outcome = verdict.outcome if verdict.outcome == "not tested" else f"**{verdict.outcome}**"
    return f"{outcome}: {verdict.summary}" if verdict.summary else outcome


def _section(one: JudgedExperiment, said: dict[str, str]) -> dict[str, Any]:
    """Return the section of one experiment: its numbers, verdicts and remarks.

    Args:
        one: the experiment.
        said: the first experiment on the page with these remarks; those of this one are added.
    """
    paper = one.paper
    if not any(row.records for rows in one.rows.values() for row in rows):
        return {"paper": paper, "missing": True}
    stopped = [
        f"{row.label} ({'full scale' if scale == 'paper' else scale}): {row.stopped}"
        for scale, rows in one.rows.items()
        for row in rows
        if row.stopped is not None
    ]
    return {
        "paper": paper,
        "missing": False,
        "seeds": {_SCALE_NAMES[scale]: _seeds(rows) for scale, rows in one.rows.items()},
        "numbers": _number_table(paper, one.rows),
        "verdicts": _ruling_table([r for r in one.rulings if not _untested(r)], paper.reference),
        "remarks": {
            "Not tested": "; ".join(
                _statement(r, paper.reference) for r in one.rulings if _untested(r)
            ),
            "Unknown, and the substitute": _once(paper.unknown, paper.name, said),
            "Where paper and program differ": _once(paper.choices, paper.name, said),
            "Notes": _once(paper.notes, paper.name, said),
            "Stopped early": "; ".join(stopped),
        },
    }


def _once(remarks: Sequence[str], name: str, said: dict[str, str]) -> str:
    """Return the remarks as text, or the earlier experiment that has the same."""
    text = " ".join(remarks)
    first = said.setdefault(text, name)
    return text if first == name or not text else f"As in {first}."


_SCALE_NAMES = {"paper": "full scale", "laptop": "laptop"}


def _seeds(rows: Sequence[Row]) -> str:
    """Return how many seeds the rows with records have: the least and the most."""
    run = {len(row.records) for row in rows} - {0}
    return " to ".join(map(str, sorted({min(run), max(run)}))) if run else "none"


def _number_table(paper: PaperExperiment, rows: Mapping[Scale, Sequence[Row]]) -> str:
    """Return what is published and measured, by case and method or, if shorter, by measure.

    Only measures and cases of which something is published are shown.
    """
    cells: dict[tuple[str, ...], dict[tuple[str, ...], str]] = {}
    by_measure: dict[tuple[str, ...], dict[tuple[str, ...], str]] = {}
    for name, title in titles(paper).items():
        if not (has_number(paper.published, name) or has_number(paper.program, name)):
            continue
        for row, source, text in _texts(paper, rows, name):
            case = () if row.case == MAIN else (row.case,)
            cells.setdefault((*case, row.method), {})[title, source] = text
            by_measure.setdefault((title, *case, source), {})[row.method,] = text
    return _table(min(by_measure, cells, key=len)) if cells else ""


def _table(cells: Mapping[tuple[str, ...], Mapping[tuple[str, ...], str]]) -> str:
    heads = list(dict.fromkeys(head for row in cells.values() for head in row))
    lines = [
        [": ".join(name), *(row.get(head, "") for head in heads)] for name, row in cells.items()
    ]
    return markdown_table(["", *(", ".join(head) for head in heads)], lines)


def _texts(
    paper: PaperExperiment, rows: Mapping[Scale, Sequence[Row]], name: str
) -> Iterable[tuple[Row, str, str]]:
    """Yield all numbers of a measure with their rows and where they are from."""
    small = {(row.case, row.method): row for row in rows.get("laptop", ())}
    tables = ((paper.published, "published"), (paper.program, "authors' program"))
    known = {
        row.case for row in rows["paper"] for t, _ in tables if format_number(paper, t, row, name)
    }
    for row in (row for row in rows["paper"] if row.case in known):
        for table, source in tables:
            if text := format_number(paper, table, row, name):
                yield row, source, text
        for scale, of in (("paper", row), ("laptop", small.get((row.case, row.method)))):
            if of is not None and of.records:
                yield row, _SCALE_NAMES[scale], format_measured(paper, of, name)


def _untested(ruling: Ruling) -> bool:
    return {one.outcome for one in (ruling.full, ruling.laptop) if one} == {"not tested"}


def _ruling_table(rulings: Sequence[Ruling], experiment: str) -> str:
    """Return each claim with its verdicts and, where it is decided, since when and why."""
    rows = []
    for ruling in rulings:
        claim, both = ruling.claim, [ruling.full, ruling.laptop]
        cells = [
            "" if one is None else _verdict(one) + (ruling.since if one is ruling.decisive else "")
            for one in both
        ]
        text = _statement(ruling, experiment) + (f" [check: {claim.check}]" if claim.check else "")
        if ruling.decisive.outcome == "not reproduced":
            text += f". Why not: {claim.why or 'not known'}"
        rows.append((text, *cells))
    if all(ruling.laptop is None for ruling in rulings):
        return markdown_table(["claim", "verdict"], [row[:2] for row in rows])
    return markdown_table(["claim", "full scale", "laptop"], rows)
