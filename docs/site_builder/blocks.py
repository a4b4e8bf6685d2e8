"""Execution of the Python blocks of a page, and of the cells of a notebook."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from fedtide.plotting.style import STYLE
from site_builder.figures import inline_svg

_BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_IMAGE = re.compile(r"^!\[(.+?)\]\((\S+)\.svg\)$", re.MULTILINE)


_STYLE = {**STYLE, "figure.figsize": (9, 2.9), "figure.constrained_layout.use": True}


@dataclass
class Session:
    """One namespace in one folder, like a notebook; `figures` are those that blocks saved."""

    folder: Path
    names: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, Figure] = field(default_factory=dict)

    def execute(self, code: str, place: str) -> tuple[str, Any]:
        """Return what a block prints, and the value of its last line if that is an expression."""
        tree = ast.parse(code)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        with self._environment() as printed:
            exec(compile(tree, place, "exec"), self.names)
            value = last and eval(compile(ast.Expression(last.value), place, "eval"), self.names)
        return printed.getvalue(), value

    @contextlib.contextmanager
    def _environment(self) -> Iterator[io.StringIO]:
        """Work in the folder, with the style of the site, and keep figures that are saved."""
        printed, save = io.StringIO(), Figure.savefig

        def keep(figure: Figure, path: Any, *arguments: Any, **options: Any) -> None:
            if str(path).endswith(".svg"):
                self.figures[Path(path).stem] = figure
            else:
                save(figure, path, *arguments, **options)

        with (
            contextlib.chdir(self.folder),
            contextlib.redirect_stdout(printed),
            mpl.rc_context(_STYLE),
        ):
            Figure.savefig = keep  # type: ignore[method-assign, assignment]
            try:
                yield printed
            finally:
                Figure.savefig = save  # type: ignore[method-assign]
                plt.close("all")


def execute_page(text: str, place: str, folder: Path) -> str:
    """Execute the Python blocks of a page in order and return it with the figures that they saved.

    A block `text` after a block of Python holds what that one prints.

    Raises:
        AssertionError: a block prints something else, or an image of the page is not saved.
    """
    session, printed = Session(folder), ""
    for block in _BLOCK.finditer(text):
        language, body = block.groups()
        if language == "python":
            printed, _ = session.execute(body, place)
        elif printed.rstrip() != body.rstrip():
            raise AssertionError(f"{place} says\n{body}\nbut its block prints\n{printed}")

    def drawn(image: re.Match[str]) -> str:
        title, name = image.groups()
        if name not in session.figures:
            raise AssertionError(f"{place}: no block saves {name}.svg")
        return inline_svg(session.figures[name], title, name)

    return _IMAGE.sub(drawn, text)


def execute_notebook(notebook: Path, folder: Path) -> str:
    """Execute a notebook and return it, with the results of its cells, as Markdown."""
    session, parts = Session(folder), []
    for number, cell in enumerate(json.loads(notebook.read_text(encoding="utf-8"))["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        printed, value = session.execute(source, f"{notebook.name}, cell {number}")
        parts.append(f"```python\n{source}\n```")
        parts += [f"```text\n{printed.rstrip()}\n```"] * bool(printed)
        if isinstance(value, Figure):
            parts.append(inline_svg(value, "The result of the cell above", f"cell-{number}"))
        elif value is not None:
            parts.append(f"```text\n{value!r}\n```")
    return "\n\n".join(parts) + "\n"
