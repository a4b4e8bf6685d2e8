"""The log that a Flower server prints: how many clients took part in a round, but not which."""

from __future__ import annotations

import re
from pathlib import Path

from fedtide.errors import InvalidInputError
from fedtide.text_files import open_text

_COUNTS = re.compile(r"received \d+ results and \d+ failures", re.IGNORECASE)


def reject_flower_log(path: Path) -> None:
    """Raise InvalidInputError if the file is the log of a Flower server.

    Flower prints "Sampled 3 nodes (out of 5)" and "Received 2 results and 1 failures": numbers,
    from which no one can tell who took part.
    """
    with open_text(path) as file:
        counts = any(_COUNTS.search(line) for line in file)
    if counts:
        raise InvalidInputError(
            f"log: {str(path)!r} is the log of a Flower server, which says how many clients took "
            "part, not which, so it cannot be audited; record the clients with "
            "fedtide.flower.ParticipationObserver"
        )
