"""The command `fedtide papers`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedtide.atomic_io import make_folder, write_yaml
from fedtide.cli.options import Workers, split_names
from fedtide.errors import InvalidInputError
from fedtide.papers.judging import judge_claims
from fedtide.papers.paper_figure import draw_figure
from fedtide.papers.paper_runner import run_paper
from fedtide.papers.paper_spec import PaperExperiment, Scale, load
from fedtide.papers.plan import export_sweep, plan
from fedtide.papers.record import load_records
from fedtide.papers.results_page import write_results
from fedtide.papers.rows import compare
from fedtide.papers.terminal_tables import claims_table, comparison_table, experiments_table
from fedtide.plotting.console import new_console
from fedtide.plotting.saving import save_figure
from fedtide.simulation.progress import ProgressBars
from fedtide.sweep.records import record_text
from fedtide.training.devices import require_device
from fedtide.validation import require_choice, require_suffix


def papers_command(
    name: Annotated[
        str | None,
        typer.Argument(help="A published experiment, such as 002/synthetic.", show_default=False),
    ] = None,
    scale: Annotated[
        str, typer.Option(help="paper: the published size. laptop: a smaller version.")
    ] = "laptop",
    seeds: Annotated[
        str | None, typer.Option(help="Only these seeds: 1,2,3.", show_default=False)
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Only these methods: fedavg,scaffold.", show_default=False)
    ] = None,
    cases: Annotated[
        str | None,
        typer.Option(
            help="Only these cases of the experiment: consistent,noisy.", show_default=False
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the runs and figures.")] = Path(
        "runs/papers"
    ),
    records: Annotated[
        Path, typer.Option(help="Folder of the run records, a Parquet file for each paper.")
    ] = Path("results"),
    workers: Workers = None,
    device: Annotated[
        str | None,
        typer.Option(help="Where the models train, such as cuda or cuda:1.", show_default="cpu"),
    ] = None,
    show: Annotated[
        bool,
        typer.Option(
            "--show", help="Show all recorded runs and draw their figure below --out; run nothing."
        ),
    ] = False,
    record: Annotated[
        str | None,
        typer.Option(
            metavar="CASE/METHOD/SEED", help="Print one record as JSON text; run nothing."
        ),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(help="Write one case as a sweep file for `fedtide run`; run nothing."),
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option(
            help="Write the results of all records as Markdown, with a page per paper; run nothing."
        ),
    ] = None,
) -> None:
    """List the papers' experiments, or run one and compare it with the published numbers.

    Recorded runs are not repeated; the same command resumes an interrupted experiment.

    Example: fedtide papers 002/synthetic
    """
    if records.exists() and not records.is_dir():
        raise InvalidInputError(f"records: {records} is a file; give the folder of the records")
    if write is not None:
        require_suffix("write", write, [".md"])
        write_results(write, records)
        print(f"results: {write}")
        return
    if name is None:
        if show or any((seeds, methods, cases, device, record, export)):
            raise InvalidInputError("name: missing; say which experiment these options are about")
        new_console().print(experiments_table(load_records(records)))
        return
    require_choice("scale", scale, Scale)
    paper = load(name)
    size: Scale = "paper" if scale == "paper" or paper.laptop is None else "laptop"
    part = _parse_seeds(seeds), split_names(methods), split_names(cases)
    if device is not None:
        require_device(device)
        if paper.compute is not None:
            raise InvalidInputError(f"device: {name} trains no models; leave it out")
    if record is not None:
        print(_find_record(paper, size, record, records), end="")
        return
    if export is not None:
        write_yaml(export, export_sweep(paper, size, *part), "export", "choose another file")
        print(f"export: {export}; start it with: fedtide run {export}")
        return
    if not show:
        runs = plan(paper, size, *part, device=device or "cpu")
        with ProgressBars(paper.name) as view:
            run_paper(paper, runs, out, records, workers, view)
    _show(paper, size, records, out)


def _find_record(paper: PaperExperiment, scale: Scale, wanted: str, records: Path) -> str:
    """Return the record of a run as text.

    Raises:
        InvalidInputError: there is none.
    """
    known = {
        f"{one.case}/{one.method}/{one.seed}": one
        for one in load_records(records, paper.name)
        if one.scale == scale
    }
    if not known:
        raise InvalidInputError(f"record: {paper.name} has none at {scale} scale; choose another")
    require_choice("record", wanted, known)
    return record_text(known[wanted])


def _show(paper: PaperExperiment, scale: Scale, records: Path, out: Path) -> None:
    console = new_console()
    rows = compare(paper, load_records(records, paper.name), scale)
    if scale == "laptop" and paper.laptop is not None:
        console.print(f"Laptop scale: {paper.laptop.description}.")
    console.print(comparison_table(paper, rows))
    console.print(claims_table(paper, judge_claims(paper, rows, scale)))
    folder = out / paper.name
    make_folder(folder)
    figure = draw_figure(paper, rows)
    for suffix in ("png", "pdf"):
        save_figure(figure, folder / f"{scale}.{suffix}")
    print(f"figure: {folder / f'{scale}.png'}")


def _parse_seeds(text: str | None) -> list[int] | None:
    """Return the seeds of a comma-separated list.

    Raises:
        InvalidInputError: an entry is not a number.
    """
    try:
        return None if text is None else [int(word) for word in split_names(text) or ()]
    except ValueError:
        raise InvalidInputError(f"seeds: {text!r} is not a list of numbers; write 1,2,3") from None
