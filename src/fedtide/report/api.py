"""Reports from Python."""

from __future__ import annotations

from pathlib import Path

from fedtide.errors import InvalidInputError
from fedtide.report.page import check_page, read_report, write_page
from fedtide.simulation import Result, Results
from fedtide.validation import expand_home


def write_report(
    page: str | Path,
    *runs: str | Path | Result | Results,
    target: str | None = None,
    smooth: float = 0.0,
) -> Path:
    """Write an HTML report on runs, as `fedtide report` does, and return its path.

    Args:
        page: the file, such as "report.html"; ~ is the home folder, also in `runs`.
        runs: folders with runs, or results of runs with a folder.
        target: METRIC=LEVEL, such as "test_accuracy=0.9", to report what it takes to reach it.
        smooth: the share of the evaluations over which curves are averaged.

    Raises:
        InvalidInputError: there is no run, a result has no folder, a folder cannot be read, or the
            page cannot be written.
    """
    page = expand_home(page)
    check_page(page)
    folders = [folder for run in runs for folder in _folders(run)]
    write_page(page, read_report(folders, target, smooth))
    return page


def _folders(run: str | Path | Result | Results) -> list[Path]:
    if isinstance(run, Results):
        return [folder for result in run for folder in _folders(result)]
    if not isinstance(run, Result):
        return [Path(run)]
    if run.out is None:
        raise InvalidInputError("runs: a result in memory has no log to report; give the run out=")
    return [run.out]
