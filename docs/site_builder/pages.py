"""The generated pages of the reference: methods, processes, the Python interface, the commands."""

from __future__ import annotations

import importlib
import inspect
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from unittest import mock

from typer import Typer
from typer.testing import CliRunner

from fedtide.algorithms import ALGORITHMS
from fedtide.cli.flower import app as flower_app
from fedtide.cli.ledger_commands import app as ledger_app
from fedtide.cli.main import COMMANDS, app
from fedtide.differential_privacy import Mechanism
from fedtide.participation import PROCESSES
from fedtide.simulation import Experiment
from fedtide.training import LocalTraining
from site_builder.figures import REMEMBERS, ROUNDS, draw_method, draw_process
from site_builder.keys import class_text
from site_builder.schema import REGISTRIES

GROUPS = {"ledger": ledger_app, "flower": flower_app}
"""The commands that have others below them."""

Pages = dict[str, str]
"""The text of each page by its path below docs."""

MODULES = {
    "fedtide": "Running, results, audit",
    "fedtide.callbacks": "Callbacks",
    "fedtide.tracking": "Tracking",
    "fedtide.report": "Reports",
    "fedtide.sweep": "Sweeps",
    "fedtide.auditing": "Audits",
    "fedtide.participation": "Participation",
    "fedtide.problems": "Problems",
    "fedtide.algorithms": "Methods of your own",
    "fedtide.privacy": "Privacy",
    "fedtide.testing": "Checks of your own classes",
    "fedtide.theory": "Bounds and step sizes",
    "fedtide.flower": "Flower",
    "fedtide.errors": "Errors",
}
"""The public modules, with the titles of their pages."""

_WITH_KEYS = {Experiment, LocalTraining}.union(
    *(types.values() for base, types in REGISTRIES.items() if base is not Mechanism)
)
"""The classes whose arguments are keys of experiment files, in the reference of these.

Mechanisms have methods that users call, so they are explained in the Python interface as well.
"""

_TYPES = re.compile(r"^\| (`[\w-]+`(?:, `[\w-]+`)*) \|", re.MULTILINE)


def method_pages(overview: str) -> Pages:
    """Return a page for every method; `overview` is docs/methods.md with its tables."""
    return {f"methods/{n}.md": _method_page(n, overview) for n in ALGORITHMS}


def process_pages(folder: Path) -> Pages:
    """Return a page for every availability process; `folder` is for files that some need."""
    pages = {}
    for name, cls in PROCESSES.items():
        figure = draw_process(name, folder)
        parts = [
            *_head("participation", name, cls),
            "## Raster\n\nThirty clients over 120 rounds; a square is an available client.\n",
            figure,
        ]
        pages[f"participation/{name}.md"] = "\n".join(parts)
    return pages


def python_pages() -> Pages:
    """Return a page for every public module, with directives for mkdocstrings."""
    return {
        f"python/{name.rpartition('.')[2]}.md": _module_page(importlib.import_module(name), title)
        for name, title in MODULES.items()
    }


def command_page() -> str:
    """Return the help of every command."""
    parts = ["# Command line\n", _help(), ""]
    for name in COMMANDS:
        parts += [f"## fedtide {name}\n", _help(name), ""]
        for part in GROUPS.get(name, Typer()).registered_commands:
            parts += [f"### fedtide {name} {part.name}\n", _help(name, str(part.name)), ""]
    return "\n".join(parts)


def link_types(text: str, folder: str) -> str:
    """Return a page with links from the first column of its tables to the pages of types."""
    known = ALGORITHMS if folder == "methods" else PROCESSES

    def linked(name: re.Match[str]) -> str:
        return f"[{name[0]}]({folder}/{name[1]}.md)" if name[1] in known else name[0]

    return _TYPES.sub(lambda row: re.sub(r"`([\w-]+)`", linked, row[0]), text)


def _head(key: str, name: str, cls: type) -> Iterator[str]:
    module = "algorithms" if key == "algorithm" else "participation"
    yield f"# {cls.__name__}\n"
    yield f"`{key}: {{type: {name}}}` in a file, `ft.{module}.{cls.__name__}` in Python.\n"
    yield class_text(cls, "../reference.md")


def _method_page(name: str, overview: str) -> str:
    facts = _facts(name, overview)
    picture = (
        f"Three clients on a line, with optima at 0, 1 and 2, take part in 90, 30 and 10 % of "
        f"{ROUNDS} rounds (two local steps with γ = 0.03). Dashed: the optimum if all count alike, "
        "1; dotted: the optimum if each counts as often as it comes."
    )
    if name not in REMEMBERS:
        picture += " Left: the share of each client in the weights of the updates so far."
    return "\n".join(
        [
            *_head("algorithm", name, ALGORITHMS[name]),
            "## Needs, memory and guarantees\n",
            "| property | of this method |\n|---|---|",
            *(f"| {t} | {_from_below(v)} |" for t, v in facts.items() if t != "update rule"),
            "\nNotation, and all methods side by side: [Methods](../methods.md).\n",
            f"## Picture\n\n{picture}\n",
            draw_method(name),
            "",
            *_example(ALGORITHMS[name]),
        ]
    )


def _facts(name: str, overview: str) -> Mapping[str, str]:
    """Return what the tables of the overview say of a method, by their headings."""
    facts: dict[str, str] = {}
    for table in re.findall(r"(?:^\|.*\n)+", overview, re.MULTILINE):
        heading, _, *rows = [_cells(line) for line in table.splitlines()]
        for row in rows:
            if f"`{name}`" in row[0].split(", ") and heading[0] == "type":
                facts |= dict(zip(heading[1:], row[1:], strict=True))
    return facts


def _from_below(text: str) -> str:
    """Return text of the overview with its links as a page in a folder below has them.

    >>> _from_below("see [Auto](auto.md) and [weights](#weights)")
    'see [Auto](../auto.md) and [weights](../methods.md#weights)'
    """
    text = re.sub(r"\]\((?=#)", "](../methods.md", text)
    return re.sub(r"\]\((?!https?:|\.\./)", "](../", text)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]


def _example(cls: type) -> Iterator[str]:
    """Yield the example of a docstring; the tests execute it."""
    text = inspect.getdoc(cls) or ""
    if ">>>" in text:
        yield f"## Example\n\n```pycon\n{text[text.index('>>>') :].rstrip()}\n```\n"


def _module_page(module: ModuleType, title: str) -> str:
    names = getattr(module, "__all__", None) or [
        name for name, thing in vars(module).items() if _is_own(thing, module)
    ]
    parts = [f"# {title}\n", f"`{module.__name__}`\n"]
    for name in names:
        thing = getattr(module, name)
        described = inspect.isclass(thing) or inspect.isfunction(thing)
        if described and thing not in _WITH_KEYS and inspect.getdoc(thing):
            parts.append(f"::: {module.__name__}.{name}\n")
    return "\n".join(parts)


def _is_own(thing: object, module: ModuleType) -> bool:
    return getattr(thing, "__module__", None) == module.__name__ and inspect.isclass(thing)


def _help(*command: str) -> str:
    with mock.patch.dict(os.environ, {"COLUMNS": "96", "NO_COLOR": "1", "TERM": "dumb"}):
        done = CliRunner().invoke(app, [*command, "--help"], prog_name="fedtide")
    return f"```text\n{done.output.strip()}\n```"
