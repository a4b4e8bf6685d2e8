"""Reports from Python."""

from __future__ import annotations

from pathlib import Path

from fedtide.report.loading import LoadedRun, find_runs
from fedtide.report.page import check_page, make_report, write_page
from fedtide.report.result_comparison import load_result
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
        runs: results, results of several seeds, or folders with runs.
        target: METRIC=LEVEL, such as "test_accuracy=0.9", to report what it takes to reach it.
        smooth: the share of the evaluations over which curves are averaged.

    Raises:
        InvalidInputError: there is no run, a folder cannot be read, or the page cannot be written.
    """
    page = expand_home(page)
    check_page(page)
    each = [result for one in runs for result in (one if isinstance(one, Results) else [one])]
    folders, loaded = list[str | Path](), list[LoadedRun]()
    for number, one in enumerate(each, start=1):
        if not isinstance(one, Result):
            folders.append(one)
        elif one.out is not None:
            folders.append(one.out)
        else:
            loaded.append(load_result(one, f"result {number}"))
    shown, omitted = find_runs(folders)
    write_page(page, make_report([*shown, *loaded], omitted, target, smooth))
    return page
