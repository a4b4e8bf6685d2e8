"""Output of other programs that is no table: documents and logs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from fedtide.auditing.log.adapters.nvflare import is_job_statistics, read_job_statistics
from fedtide.errors import InvalidInputError
from fedtide.text_files import open_text

TEXT_LOGS = (".log", ".txt", ".log.gz", ".txt.gz")
"""Files of text that a program prints for people."""
_FLOWER_COUNTS = re.compile(r"received \d+ results and \d+ failures", re.IGNORECASE)
"""What a Flower server prints for a round: counts, which do not tell who took part."""


def is_document(value: object) -> bool:
    """Return whether a JSON object is a whole document rather than a row of a table."""
    return is_job_statistics(value) or _is_cohort_table(value)


def read_document(document: dict[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the rows of a log in a JSON document, and facts about how it was read.

    A document is NVFlare's summary of a job, or {"0": ["ann", "bob"], "1": [], ...}: the clients
    of every round.

    Raises:
        InvalidInputError: another document.
    """
    if is_job_statistics(document):
        return read_job_statistics(document)
    if _is_cohort_table(document):
        for t, clients in document.items():
            if not isinstance(clients, list):
                raise InvalidInputError(
                    f"log: round {t} has {clients!r:.60} instead of a list of clients; "
                    'write {"0": ["ann", "bob"], "1": []}'
                )
        return [{"round": int(t), "client": clients} for t, clients in document.items()], []
    raise InvalidInputError(
        f"log: an object with {', '.join(map(repr, list(document)[:4]))} is not a known log; "
        "write an array of rows, one row per line, or the list of clients of each round"
    )


def reject_text_log(path: Path) -> None:
    """Raise InvalidInputError: text that a program prints for people has no list of clients."""
    with open_text(path) as file:
        if any(_FLOWER_COUNTS.search(line) for line in file):
            raise InvalidInputError(
                f"log: {str(path)!r} is the log of a Flower server, which says how many clients "
                "took part, not which, so it cannot be audited; record the clients with "
                "fedtide.flower.ParticipationObserver"
            )
    raise InvalidInputError(
        f"log: {str(path)!r} is text without columns; give a table of rounds and clients "
        "(if it is one, rename it to .csv)"
    )


def _is_cohort_table(value: object) -> bool:
    return isinstance(value, dict) and bool(value) and all(name.isdecimal() for name in value)
