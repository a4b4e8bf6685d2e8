"""The record of the audit's accuracy, and the tables of docs/audit-methods.md made from it.

records/audit.json holds, for each table and process, the shares of logs that the benchmarks have
measured; `python benchmarks/audit.py write` puts them into the page between its marks.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

RECORD = Path(__file__).parent / "records" / "audit.json"
PAGE = Path(__file__).parents[1] / "docs" / "audit-methods.md"


@dataclass(frozen=True)
class Share:
    """A share and its standard error.

    Args:
        share: from 0 to 1.
        error: its standard error.
        logs: the number of logs that it is measured on.
    """

    share: float
    error: float
    logs: int

    @classmethod
    def count(cls, hits: Sequence[bool]) -> Share:
        """Return the share of logs that are hits; if none or all are, the error of half a log."""
        logs = len(hits)
        least = 0.5 / (1 + logs)
        assumed = float(np.clip(np.mean(hits), least, 1 - least))
        return cls(float(np.mean(hits)), float(np.sqrt(assumed * (1 - assumed) / logs)), logs)

    @classmethod
    def average(cls, shares: Sequence[float]) -> Share:
        """Return the mean of one share per log."""
        return cls(
            float(np.mean(shares)), float(np.std(shares) / np.sqrt(len(shares))), len(shares)
        )


Row = dict[str, Share | None]
"""From a table's columns to what is measured; None: it does not apply."""


@dataclass(frozen=True)
class Table:
    """A table of the page.

    Args:
        columns: keys of the shares and their headings.
        first: heading of the names.
        percent: whether shares are shown in percent.
    """

    columns: dict[str, str]
    first: str = "process"
    percent: bool = False

    def head(self) -> str:
        headings = [self.first, *self.columns.values(), "logs"]
        return f"| {' | '.join(headings)} |\n|{'---|' * len(headings)}"

    def line(self, name: str, row: Row) -> str:
        shares = [row.get(key) for key in self.columns]
        logs = max(share.logs for share in shares if share is not None)
        return f"| {' | '.join([name, *map(self._format, shares), str(logs)])} |"

    def _format(self, share: Share | None) -> str:
        if share is None:
            return "–"
        if self.percent:
            return f"{100 * share.share:.1f} ± {100 * share.error:.1f}"
        return f"{share.share:.3f} ± {share.error:.3f}"


TABLES = {
    "coverage": Table(
        {
            "rates": "rates",
            "weights": "weights",
            "skew": "L1 skew",
            "now": "L1 skew now",
            "verdict": "wrong verdict",
            "without": "logs without intervals",
        }
    ),
    "false alarms": Table(
        {"drift": "drift", "untested": "drift not testable"},  # the record has the others
        percent=True,
    ),
    "power": Table({"found": "drift", "untested": "not testable"}, first="change", percent=True),
    "selection": Table(
        {"favourites": "favourites are covered", "uniform": "0 is covered if all are taken alike"},
        first="availability",
    ),
    "churn": Table({"false": "any called gone or late", "found": "found of those that leave"}),
}


def load() -> dict[str, dict[str, Row]]:
    """Return the rows of the tables by name."""
    if not RECORD.exists():
        return {table: {} for table in TABLES}
    raw = json.loads(RECORD.read_text(encoding="utf-8"))
    return {
        table: {
            name: {key: one and Share(**one) for key, one in row.items()}
            for name, row in raw.get(table, {}).items()
        }
        for table in TABLES
    }


def store(table: str, name: str, row: Row) -> None:
    """Write one row into the record."""
    tables = load()
    tables[table][name] = row
    text = json.dumps(tables, indent=1, default=asdict)
    RECORD.write_text(text + "\n", encoding="utf-8")


def report(table: str, name: str, row: Row, record: bool) -> None:
    """Print one row, and write it into the record if asked to."""
    print(TABLES[table].line(name, row), flush=True)
    if record:
        store(table, name, row)


def render(table: str, order: Sequence[str]) -> str:
    """Return a table in Markdown, with the recorded rows in this order."""
    rows = load()[table]
    layout = TABLES[table]
    return "\n".join([layout.head(), *(layout.line(n, rows[n]) for n in order if n in rows)])


def write(orders: dict[str, Sequence[str]]) -> None:
    """Put all tables into the page.

    Args:
        orders: the names of each table's rows, in order.
    """
    page = PAGE.read_text(encoding="utf-8")
    for table, order in orders.items():
        begin, end = f"<!-- {table}: begin -->", f"<!-- {table}: end -->"
        before, rest = page.split(begin)
        page = f"{before}{begin}\n{render(table, order)}\n{end}{rest.split(end)[1]}"
    PAGE.write_text(page, encoding="utf-8")
