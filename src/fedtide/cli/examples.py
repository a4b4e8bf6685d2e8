"""The command `fedtide examples`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from fedtide.examples import copy_example, list_examples
from fedtide.plotting.console import new_console
from fedtide.validation import expand_home


def examples_command(
    name: Annotated[
        str | None, typer.Argument(help="The example to copy.", show_default="list all")
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder that receives the copy.")] = Path(),
) -> None:
    """List the examples that come with fedtide, or copy one to start from.

    An experiment also runs by its name, without a copy: fedtide run digits. Existing files with
    different content are never replaced.

    Example: fedtide examples digits-sweep --out my-experiments
    """
    if name is None:
        _print_list()
        return
    out = expand_home(out)
    copies = copy_example(name, out)
    print(f"copied: {', '.join(map(str, copies))}")
    if name == "log":
        print(f"next: fedtide audit {copies[0]} --clients 40")
    elif copies[0].is_dir():
        print("The documentation on deployment explains how to run the app.")
    else:
        command = "sweep" if name.endswith(("-search", "-sweep")) else "run"
        enter = "" if out == Path() else f"cd {out} && "  # modules are found in this folder
        print(f"next: {enter}fedtide {command} {copies[0].name}")


def _print_list() -> None:
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", show_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("what it shows")
    for name, description in list_examples().items():
        table.add_row(name, description)
    new_console().print(table)
    print("copy one: fedtide examples NAME; run one: fedtide run digits")
