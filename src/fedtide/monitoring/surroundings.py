"""What a monitor sees besides the ledger: the disk, the run, and the server's certificate."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sql

from fedtide.flower.ledger.ledger_tables import find_file

AskSuperLink = Callable[[], tuple[str, float]]
"""Returns `run` and `expires` of `Surroundings`."""


@dataclass(frozen=True)
class Surroundings:
    """What a monitor sees besides the ledger.

    Args:
        free: bytes that are free on the disk of the ledger; NaN: it is not a file.
        share: of the disk that is free.
        run: Flower's status of the newest run, such as "running"; "": not known.
        expires: when the certificate of the SuperLink expires, in seconds since 1970; NaN: unknown.
    """

    free: float = math.nan
    share: float = math.nan
    run: str = ""
    expires: float = math.nan


def look_around(url: str, ask: AskSuperLink | None) -> Surroundings:
    """Look at the disk of a ledger, and ask a SuperLink."""
    free, file = (math.nan, math.nan), find_file(sql.make_url(url.partition("#")[0]))
    if file:
        disk = shutil.disk_usage(Path(file).resolve().parent)
        free = disk.free, disk.free / disk.total
    return Surroundings(*free) if ask is None else Surroundings(*free, *ask())
