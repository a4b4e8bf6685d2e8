"""`fedtide papers`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedtide.atomic_io import make_folder, write_yaml
from fedtide.cli.progress_bars import View
from fedtide.errors import InvalidInputError
from fedtide.papers.console import judged, listing, side_by_side
from fedtide.papers.export import study_of
from fedtide.papers.paper_figure import draw
from fedtide.papers.paper_registry import load
from fedtide.papers.paper_runner import run_all
from fedtide.papers.paper_spec import PaperExperiment, Scale
from fedtide.papers.plan import plan
from fedtide.papers.published_comparison import compare, verdicts
from fedtide.papers.record import Record, load_records
from fedtide.papers.results_page import write_document
from fedtide.validation import one_of


def papers_command(
    name: Annotated[
        str | None,
        typer.Argument(help="A published experiment, such as 002/synthetic.", show_default=False),
    ] = None,
    scale: Annotated[
        str, typer.Option(help="paper: the original. laptop: a smaller version.")
    ] = "laptop",
    seeds: Annotated[
        str | None, typer.Option(help="Some seeds only: 1,2,3.", show_default=False)
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Some methods only: fedavg,scaffold.", show_default=False)
    ] = None,
    cases: Annotated[str | None, typer.Option(help="Some cases only.", show_default=False)] = None,
    out: Annotated[Path, typer.Option(help="Where runs and figures lie.")] = Path("runs/papers"),
    records: Annotated[Path, typer.Option(help="Where the small records of runs lie.")] = Path(
        "results"
    ),
    workers: Annotated[
        int | None, typer.Option(min=1, help="How many runs at a time.", show_default="one a core")
    ] = None,
    show: Annotated[
        bool, typer.Option("--show", help="Show what is recorded; run nothing.")
    ] = False,
    study: Annotated[
        Path | None,
        typer.Option(
            help="Write a study file of one case for `fedtide run` to start from; run nothing."
        ),
    ] = None,
    write: Annotated[
        Path | None, typer.Option(help="Write the results document there; run nothing.")
    ] = None,
) -> None:
    """List the papers' experiments, or run one: published against measured, claim by claim.

    What is recorded already is not run again, and what is interrupted goes on with the same
    command.

    Example: fedtide papers 002/synthetic
    """
    if write is not None:
        write_document(write, records)
        print(f"results: {write}")
        return
    if name is None:
        Console().print(listing(load_records(records)))
        return
    one_of("scale", scale, Scale)
    paper, size = load(name), _scale(scale)
    some = _numbers(seeds), _words(methods), _words(cases)
    if study is not None:
        write_yaml(study, study_of(paper, size, *some))
        print(f"study: {study}; start it with: fedtide run {study}")
        return
    asked = plan(paper, size if paper.laptop is not None else "paper", *some)  # they are the same
    if not show:
        with View(paper.name) as view:
            run_all(paper, asked, out, records, workers, view)
    _show(paper, asked[0].scale, load_records(records, paper.name), out)


def _scale(text: str) -> Scale:
    return "paper" if text == "paper" else "laptop"


def _show(paper: PaperExperiment, scale: Scale, found: list[Record], out: Path) -> None:
    console = Console()
    rows = compare(paper, found, scale)
    if scale == "laptop" and paper.laptop is not None:
        console.print(f"Laptop scale: {paper.laptop.says}.")
    console.print(side_by_side(paper, rows))
    console.print(judged(verdicts(paper, rows)))
    folder = out / paper.name
    make_folder(folder)
    for suffix in ("png", "pdf"):
        draw(paper, [r for r in found if r.scale == scale], folder / f"{scale}.{suffix}")
    print(f"figure: {folder / f'{scale}.png'}")


def _words(text: str | None) -> list[str] | None:
    return None if text is None else [word.strip() for word in text.split(",") if word.strip()]


def _numbers(text: str | None) -> list[int] | None:
    """Return the seeds of a list.

    Raises:
        InvalidInputError: something in it is no number.
    """
    try:
        return None if text is None else [int(word) for word in _words(text) or ()]
    except ValueError:
        raise InvalidInputError(f"seeds: {text!r} is not a list of numbers; write 1,2,3") from None
