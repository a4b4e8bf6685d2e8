"""The command `fedtide audit`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from fedtide.atomic_io import is_special, write_text
from fedtide.auditing.api import audit
from fedtide.auditing.output.formatting import format_experiment
from fedtide.auditing.output.terminal import show
from fedtide.auditing.recommend.advice import Advice
from fedtide.auditing.recommend.from_theory import Training
from fedtide.errors import InvalidInputError
from fedtide.plotting.console import new_console
from fedtide.validation import PAGE_SUFFIXES, expand_home, require_not_read, require_suffix

_PAIR = re.compile(r"([^=]*=[^,]*|.+)(?:,|$)")
"""A VALUE=STAGE pair of --stages; the value may contain commas, as error messages do."""
_RUN_FILES = (
    "experiment.yaml",
    "failure.json",
    "fingerprints.json",
    "summary.json",
    "timings.json",
)


def audit_command(
    log: Annotated[
        str,
        typer.Argument(
            help="A participation log (.parquet, .csv, .tsv, .json, .jsonl; the text formats also "
            "with .gz), NVFlare's job_stats_run_summary.json, a run folder, or the URL of a ledger "
            "(sqlite:///ledger.db).",
            show_default=False,
        ),
    ],
    clients: Annotated[
        int | None, typer.Option(help="Number of clients, including those that never took part.")
    ] = None,
    roster: Annotated[
        Path | None,
        typer.Option(
            help="A table of all clients: column 'client', columns of groups, 'weight', 'samples'."
        ),
    ] = None,
    groups: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The column of the roster to group by.")
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=COLUMN",
            help="The log's own name of the column round, client (or clients, of lists), stage, "
            "weight, samples, time or reason; repeat for several. Common names are recognised.",
        ),
    ] = None,
    stages: Annotated[
        list[str] | None,
        typer.Option(
            metavar="VALUE=STAGE,...",
            help="What the values of the column stage, or else of the one that has them, mean: "
            "OK=used,TIMEOUT=selected. 'other' stands for all values that are not named.",
        ),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=VALUE",
            help="Read only the rows with this value, such as phase=fit; repeat for several.",
        ),
    ] = None,
    ignore: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN,...", help="Columns that say nothing about who took part in a round."
        ),
    ] = None,
    round_seconds: Annotated[
        float | None,
        typer.Option(
            metavar="S", help="The log has times instead of rounds; a round lasts S seconds."
        ),
    ] = None,
    time_zone: Annotated[
        str | None,
        typer.Option(
            metavar="ZONE",
            help="Of times that name none, and of midnight, where rounds of days begin: "
            "Europe/Berlin.",
        ),
    ] = None,
    round_step: Annotated[
        int | None,
        typer.Option(
            metavar="G", help="Rounds are numbered 0, G, 2G, ...; 1 takes numbers as they are."
        ),
    ] = None,
    from_round: Annotated[
        int, typer.Option(metavar="R", help="Leave out the rounds before R, but not their clients.")
    ] = 0,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write all results to this file (.json).")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with figures.")] = None,
    experiment: Annotated[
        Path | None,
        typer.Option(help="Write the method as lines of an experiment file (.yaml)."),
    ] = None,
    strategy: Annotated[
        Path | None, typer.Option(help="Write the method as a Flower strategy (.py).")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The method for --experiment and --strategy, such as auto, Default: the first.",
        ),
    ] = None,
    privacy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also compute the ε that each client has spent with the mechanism and the method "
            "in this file (.yaml), and advise only methods that the mechanism accepts.",
        ),
    ] = None,
    wanted: Annotated[
        str | None,
        typer.Option(
            metavar="equal",
            help="Give all clients equal weights in the objective. Default: the weights of the "
            "roster, else in proportion to the samples of log and roster, else equal.",
        ),
    ] = None,
    dimension: Annotated[
        int, typer.Option(help="Number of model parameters, for the memory of the methods.")
    ] = 1_000_000,
    smoothness: Annotated[
        float | None,
        typer.Option(
            "-L",
            "--smoothness",
            help="Smoothness L of the loss; prints the papers' learning rates.",
        ),
    ] = None,
    noise: Annotated[float, typer.Option("--sigma", help="σ: gradient noise, for -L.")] = 1.0,
    divergence: Annotated[
        float, typer.Option("--delta", help="δ: gradient divergence of the clients, for -L.")
    ] = 1.0,
    steps: Annotated[int, typer.Option(help="I: local steps per round, for -L.")] = 1,
) -> None:
    """Report which objective a participation log trains on, and which method corrects it.

    Needs neither data nor a model: one row for each round and client that took part is enough.
    All rounds from the first to the last of the log count; a round without rows is empty.

    A log has the columns round and client, or one row per round with a list of clients. Optional
    columns: stage (available, selected, reported or used), samples (the client's number of
    samples), weight (its participation weight), reason (why a client was not used), time (ISO, or
    Unix times) for --round-seconds.

    Examples:

    fedtide audit log.parquet --clients 250 --html audit.html

    fedtide audit log.csv --columns round=my_round --roster clients.csv --groups region

    fedtide audit server.csv --stages OK=used,TIMEOUT=selected --ignore region

    fedtide audit log.csv --method auto --strategy auto.py

    fedtide audit events.tsv.gz --round-seconds 3600

    fedtide audit runs/digits/fedau/seed-1 --json audit.json
    """
    log = log if "://" in log else str(expand_home(log))
    json_file, html, experiment, strategy, roster, privacy = (
        None if path is None else expand_home(path)
        for path in (json_file, html, experiment, strategy, roster, privacy)
    )
    read = [*_list_files(Path(log)), *(file for file in (roster, privacy) if file is not None)]
    for field, file, suffixes in (
        ("json", json_file, [".json"]),
        ("html", html, PAGE_SUFFIXES),
        ("experiment", experiment, [".yaml", ".yml"]),
        ("strategy", strategy, [".py"]),
    ):
        if file is not None and not is_special(file):
            require_suffix(field, file, suffixes)
            require_not_read(field, file, read)
    if method is not None and experiment is None and strategy is None:
        raise InvalidInputError(
            "method: it has no effect alone; give --experiment or --strategy, too"
        )
    training = None
    if smoothness is not None:
        training = Training(smoothness, noise, divergence, steps=steps)
    asked = None
    if privacy is not None:
        from fedtide.auditing.privacy import read_privacy_file, report_lines  # imports PyTorch

        if from_round:
            raise InvalidInputError(
                "privacy: a client's loss counts from its first round on; leave --from-round out"
            )
        asked = read_privacy_file(privacy)
    with _new_progress() as progress:
        task = progress.add_task("reading", total=1.0)
        result = audit(
            log,
            clients=clients,
            roster=roster,
            groups=groups,
            columns=_parse_pairs("columns", columns or [], "round=server_round"),
            stages=_parse_pairs(
                "stages",
                [pair for part in stages or [] for pair in _PAIR.findall(part) or [part]],
                "OK=used,TIMEOUT=selected",
            ),
            where=_parse_pairs("where", where or [], "phase=fit"),
            ignore=ignore.split(",") if ignore else (),
            round_seconds=round_seconds,
            time_zone=time_zone,
            round_step=round_step,
            from_round=from_round,
            training=training,
            wanted=cast("Literal['equal'] | None", wanted),
            privacy=None if asked is None else asked.mechanisms[0],
            dimension=dimension,
            watch=lambda name, share: progress.update(task, description=name, completed=share),
        )
    further, privacy_lines = dict[str, Any](), list[list[str]]()
    if asked is not None:
        found = asked.spent(result.log)
        privacy_lines = [list(report_lines(one)) for one in found]
        further = {"privacy": [one.to_dict() for one in found]}
    chosen = _choose_advice(result.advice, method)
    if json_file is not None:
        document = result.to_dict() | further
        _write(json_file, "json", json.dumps(document, indent=1, ensure_ascii=False))
    if experiment is not None:
        _write(experiment, "experiment", format_experiment(chosen))
    if strategy is not None:
        _write(strategy, "strategy", chosen.strategy.rstrip())
    if html is not None:
        from fedtide.auditing.output.html_page import write_page  # imports Matplotlib

        write_page(result, html, privacy_lines)
    console = new_console()
    show(result, console)
    for line in chain.from_iterable(privacy_lines):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _choose_advice(ranked: Sequence[Advice], method: str | None) -> Advice:
    """Return the best-ranked method, or the best-ranked one of this name."""
    chosen = next((one for one in ranked if method in (None, one.algorithm)), None)
    if chosen is None:
        names = ", ".join(dict.fromkeys(one.algorithm for one in ranked))
        raise InvalidInputError(f"method: {method!r} is not advised for this log; choose {names}")
    return chosen


def _list_files(log: Path) -> list[Path]:
    """Return the log, or for a run folder the files that outputs could overwrite."""
    return [log / name for name in _RUN_FILES] if log.is_dir() else [log]


def _write(path: Path, field: str, text: str) -> None:
    write_text(path, text + "\n", field=field, hint="choose another path")


def _new_progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    console.quiet = not console.is_terminal  # rich < 14.3 ends a disabled display with a newline
    return Progress(*columns, console=console, transient=True, disable=console.quiet)


def _parse_pairs(field: str, pairs: list[str], example: str) -> dict[str, str]:
    """Return the mapping given as NAME=COLUMN, VALUE=STAGE or COLUMN=VALUE pairs."""
    mapping = {}
    for pair in pairs:
        of_values = field == "stages"  # a value may be empty, or contain "="
        name, sign, meaning = pair.rpartition("=") if of_values else pair.partition("=")
        if not (sign and meaning and (name or of_values)):
            forms = {"stages": "VALUE=STAGE", "where": "COLUMN=VALUE"}
            form = forms.get(field, "NAME=COLUMN")
            raise InvalidInputError(f"{field}: {pair!r} is not {form}; write {example}")
        mapping[name] = meaning
    return mapping
