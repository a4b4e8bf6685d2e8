"""Generates docs/results.md: the published numbers and claims next to the recorded runs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, get_args

from fedtide.atomic_io import write_text
from fedtide.html_page import markdown_table, render_markdown
from fedtide.papers.claims import Claim
from fedtide.papers.judging import DECIDED, JudgedExperiment, Ruling, judge_experiment
from fedtide.papers.paper_spec import SCALES, PaperExperiment, Scale, load, names
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
    """Write the page from all records in a folder.

    Raises:
        InvalidInputError: an unreadable record, or a file that cannot be written.
    """
    text = render_results(load_records(records))
    write_text(file, text, field="write", hint="choose another file")


def render_results(records: Iterable[Record]) -> str:
    """Return the page in Markdown."""
    by_paper: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_paper[record.paper].append(record)
    judged = [judge_experiment(load(name), by_paper[name]) for name in names()]
    rulings = [ruling for one in judged for ruling in one.counted]
    checks = [r for one in judged for r in one.rulings if r.claim.check is not None]
    untested = {
        _link(one.paper.name): [_statement(r.claim) for r in one.counted if not _is_tested(r)]
        for one in judged
    }
    return render_markdown(
        "fedtide.papers",
        "results.md.jinja",
        **_count_records(judged),
        papers=[_paper(number, judged) for number in _PAPERS],
        counts=_count_claims(judged),
        tested=_ruling_table(filter(_is_tested, rulings)),
        untested=[(link, statements) for link, statements in untested.items() if statements],
        waiting=[(_link(one.paper.name), _missing_data(one)) for one in judged if one.waiting],
        check_counts=_count_outcomes(checks),
        checks=_ruling_table(checks),
        open=_open_table(judged),
        sections=[_section(one) for one in judged],
    )


def _is_tested(ruling: Ruling) -> bool:
    return ruling.decisive.outcome != "not tested"


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


def _paper(number: str, judged: Sequence[JudgedExperiment]) -> dict[str, Any]:
    """Return what the runs of a paper have shown and how much they leave open."""
    own = [one for one in judged if one.paper.name.startswith(number)]
    findings = [
        f"{label}: {_finding(ruling)}"
        for outcome, label in DECIDED.items()
        for one in own
        for ruling in one.counted
        if ruling.decisive.outcome == outcome
    ]
    counts = _count_claims(own)
    return {"number": number, "title": _PAPERS[number], "counts": counts, "findings": findings}


def _finding(ruling: Ruling) -> str:
    """Return a decided claim with its numbers, and why it does not hold."""
    claim, verdict = ruling.claim, ruling.decisive
    scale = "full scale" if verdict is ruling.full else "laptop scale"
    why = f" Why: {claim.why or 'not known'}." if verdict.outcome == "not reproduced" else ""
    where = f"({_link(ruling.paper)}, {scale})"
    return f"{_statement(claim)}: {verdict.summary}{ruling.since} {where}.{why}"


def _ruling_table(rulings: Iterable[Ruling]) -> str:
    rows = [
        (
            _link(r.paper),
            _statement(r.claim) + (f" [check: {r.claim.check}]" if r.claim.check else ""),
            _verdict(r.full),
            "" if r.laptop is None else _verdict(r.laptop),
        )
        for r in rulings
    ]
    return markdown_table(["experiment", "claim", "full scale", "laptop"], rows)


def _open_table(judged: Iterable[JudgedExperiment]) -> str:
    """Return the table of the runs without which claims stay open, and their estimated time."""
    rows = []
    for one in judged:
        still = [r for r in one.counted if r.decisive.outcome not in DECIDED]
        cells = [_missing_runs(one, scale) if scale in one.rows else "" for scale in SCALES]
        rows += [[one.paper.name, len(still), *cells]] if still else []
    return markdown_table(["experiment", "open claims", "full scale", "laptop"], rows)


def _missing_runs(one: JudgedExperiment, scale: Scale) -> str:
    """Return how many planned runs have no record, and how long they would take."""
    planned = sum(row.planned for row in one.rows[scale])
    missing = planned - sum(len(row.records) for row in one.rows[scale])
    minutes = one.paper.minutes[scale] * missing / planned
    return f"{missing} runs, {format_minutes(minutes)}" if missing else "all run"


def _missing_data(one: JudgedExperiment) -> str:
    """Return which data set is missing, and how many claims wait for it."""
    wait = "1 claim waits" if one.waiting == 1 else f"{one.waiting} claims wait"
    return f"No data here: {one.paper.no_data}. {wait} for it."


def _link(name: str) -> str:
    return f"[{name}](#{name.replace('/', '')})"


def _statement(claim: Claim) -> str:
    return claim.statement + (f" ({claim.reference})" if claim.reference else "")


def _verdict(verdict: Verdict) -> str:
    outcome = verdict.outcome if verdict.outcome == "not tested" else f"**{verdict.outcome}**"
    return f"{outcome}: {verdict.summary}" if verdict.summary else outcome


def _section(one: JudgedExperiment) -> dict[str, Any]:
    """Return the section of one experiment: its numbers, comparisons and remarks."""
    paper = one.paper
    if not any(row.records for rows in one.rows.values() for row in rows):
        missing = _missing_data(one) if one.waiting else "Not run with the planned settings."
        return {"paper": paper, "missing": missing}
    return {
        "paper": paper,
        "missing": "",
        "numbers": _numbers(paper, one.rows.get("paper", ()), one.rows.get("laptop")),
        "comparisons": _comparisons(one.rulings),
        "remarks": {
            "Unknown, and the substitute": paper.unknown,
            "Where paper and program differ": paper.choices,
            "Notes": paper.notes,
            "Stopped early": [
                f"{row.label} ({'full scale' if scale == 'paper' else scale}): {row.stopped}"
                for scale, rows in one.rows.items()
                for row in rows
                if row.stopped is not None
            ],
            "Run on": _machines(one.records),
        },
    }


def _numbers(paper: PaperExperiment, full: Sequence[Row], laptop: Sequence[Row] | None) -> str:
    """Return the table of published and measured numbers; a dash where a scale has no such row."""
    small = {(row.case, row.method): row for row in laptop or ()}
    heads, columns = ["method"], []
    for name, title in titles(paper).items():
        for table, source in ((paper.published, "published"), (paper.program, "authors' program")):
            if has_number(table, name):
                heads.append(f"{title}, {source}")
                columns.append([format_number(paper, table, row, name) for row in full])
        heads.append(f"{title}, measured")
        columns.append([format_measured(paper, row, name) for row in full])
        if laptop is not None:
            heads.append(f"{title}, laptop")
            rows = [small.get((row.case, row.method)) for row in full]
            columns.append(["–" if r is None else format_measured(paper, r, name) for r in rows])
    counts = []
    for row in full:
        both = [row] if laptop is None else [row, small.get((row.case, row.method))]
        counts.append(" / ".join("–" if r is None else _run_count(r) for r in both))
    labels = [row.label for row in full]
    return markdown_table([*heads, "seeds run"], zip(labels, *columns, counts, strict=True))


def _run_count(row: Row) -> str:
    return f"{len(row.records)} of {row.planned}"


def _comparisons(rulings: Sequence[Ruling]) -> str:
    """Return the table of all comparisons that were run."""
    rows = [
        (ruling.claim.statement, scale, one.text, one.state)
        for ruling in rulings
        for scale, verdict in (("full", ruling.full), ("laptop", ruling.laptop))
        if verdict is not None
        for one in verdict.comparisons
        if one.state != "not run"
    ]
    return markdown_table(["claim", "scale", "comparison", ""], rows)


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
