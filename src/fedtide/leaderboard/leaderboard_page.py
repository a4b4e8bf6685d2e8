"""Generates docs/leaderboard.md and its heat map from the records."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, get_args

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from fedtide.atomic_io import write_text
from fedtide.errors import quantify
from fedtide.html_page import markdown_table, render_markdown
from fedtide.leaderboard.cells import coarse_pairs, estimate_seconds, refined_pairs
from fedtide.leaderboard.spec import FULL, REFERENCE, Memory
from fedtide.leaderboard.standings import Outcome, Standings
from fedtide.plotting.saving import save_figure
from fedtide.plotting.style import new_figure

MEMORY_NAMES: dict[Memory, str] = {
    "d": "models only",
    "N": "also numbers per client",
    "Nd": "also a model per client",
}
"""What the server keeps, by memory class."""

_NEEDS = {
    "": "",
    "rates": "needs known rates",
    "period": "needs a period",
    "complete": "needs a period in which everybody takes part",
}

_RANGE = (0.3, 60.0)  # of the regrets that the colours tell apart, in %
_LIGHT = 5.0  # above this regret, cells are so dark that white text is easier to read


def write_page(file: Path, standings: Standings) -> None:
    """Write the page and, beside it, its heat map.

    Raises:
        InvalidInputError: a file that cannot be written.
    """
    image = f"images/{file.stem}.png"
    write_text(file, render_page(standings, image), field="write", hint="choose another file")
    save_figure(draw_heat_map(standings), file.parent / image, dpi=110, field="write")


def render_page(standings: Standings, image: str = "images/leaderboard.png") -> str:
    """Return the page in Markdown, with the address of its heat map."""
    board = standings.board
    problem, method = next(iter(board.problems.values())), board.methods[REFERENCE]
    coarse = len(coarse_pairs(len(problem.lr), len(method.tuned[1])))
    return render_markdown(
        "fedtide.leaderboard",
        "leaderboard.md.jinja",
        board=board,
        image=image,
        methods=quantify(len(board.methods), "method"),
        patterns=quantify(len(board.patterns), "pattern"),
        problems=quantify(len(board.problems), "problem"),
        coarse=coarse,
        trials=coarse + len(refined_pairs((1, 1))),
        progress=_progress(standings),
        against=_against_fedavg(standings),
        best=_best(standings),
    )


def _progress(standings: Standings) -> list[str]:
    """Return how much of each problem was run, and what its regrets are measured from."""
    board, missing, lines = standings.board, standings.missing(), []
    for problem, task in board.problems.items():
        planned = [cell for cell in board.cells() if cell.problem == problem]
        left = [cell for cell in missing if cell.problem == problem]
        run = [one for one in standings.results.values() if one.problem == problem]
        line = f"**{task.title}** ({task.measure}): {len(planned) - len(left)} of {len(planned)} "
        line += "cells were run"
        if run:
            line += f", in {format_hours(sum(one.seconds for one in run))} of one core"
        if left:
            hours = format_hours(estimate_seconds(left, standings.results))
            line += f"; the others would take {hours}"
        if (full := standings.results.get((problem, FULL, REFERENCE))) is not None:
            shown = ", ".join(map(value_text, full.figures))
            line += f". FedAvg under full participation has the values {shown}"
        ends = sum(one.best[0] in (task.lr[0], task.lr[-1]) for one in run)
        lines.append(f"{line}. The chosen γ is at an end of its grid in {ends} cells.")
    return lines


def format_hours(seconds: float) -> str:
    """Return a duration in a readable unit.

    >>> format_hours(20), format_hours(600), format_hours(9000)
    ('20 s', '10 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _against_fedavg(standings: Standings) -> dict[str, Any]:
    """Return the table of the methods compared with FedAvg, and how many comparisons there are."""
    board = standings.board
    cells = [(problem, pattern) for problem in standings.begun for pattern in board.patterns]
    best = [standings.best(*cell, board.methods) for cell in cells]
    kinds = get_args(Outcome)
    rows, total = [], Counter[Outcome | None]()
    for name, method in board.methods.items():
        others = cells if name != REFERENCE else []
        count = Counter(standings.against_fedavg(*cell, name) for cell in others)
        total += count
        counts = [count[kind] if others else "" for kind in kinds]
        field = method.tuned[0]
        rows.append(
            [
                name,
                MEMORY_NAMES[method.memory],
                " / ".join(map(str, method.messages)),
                "" if field == "lr" else f"`{field}`",
                best.count(name),
                *counts,
                "; ".join(filter(None, [_NEEDS[method.needs], method.note])),
            ]
        )
    head = [
        "method",
        "server keeps",
        "sent / received",
        "tuned besides γ",
        "best in",
        *kinds,
        "remarks",
    ]
    return {
        "table": markdown_table(head, rows),
        "compared": sum(total[kind] for kind in kinds),
        "better": total["better"],
        "worse": total["worse"],
    }


def _best(standings: Standings) -> str:
    """Return the regrets of FedAvg and of the best methods under each pattern."""
    board = standings.board
    small = [name for name, one in board.methods.items() if one.memory != "Nd"]
    large = [name for name, one in board.methods.items() if one.memory == "Nd"]

    def best(problem: str, pattern: str, names: list[str]) -> str:
        name = standings.best(problem, pattern, names)
        return "–" if name is None else f"{name} {regret_text(standings, problem, pattern, name)}"

    head, rows = ["pattern"], {}
    for pattern, one in board.patterns.items():
        rows[pattern] = [f"**{pattern}**: {one.title} ({one.source})"]
    for problem in standings.begun:
        head += [f"{problem}: fedavg", "no model per client", "a model per client"]
        for pattern, row in rows.items():
            row.append(regret_text(standings, problem, pattern, REFERENCE))
            row += [best(problem, pattern, names) for names in (small, large)]
    return markdown_table(head, list(rows.values()))


def regret_text(standings: Standings, problem: str, pattern: str, method: str) -> str:
    """Return the regret of a cell as tables show it, or why there is none."""
    if standings.board.lacks(pattern, method):
        return "–"
    regret = standings.regret(problem, pattern, method)
    return "not run" if regret is None else regret.text


def value_text(value: float | None) -> str:
    """Return the value of a run as tables show it.

    >>> value_text(0.12345), value_text(None)
    ('0.123', 'diverges')
    """
    return "diverges" if value is None else f"{value:.3g}"


def draw_heat_map(standings: Standings) -> Figure:
    """Return the figure: a panel for each problem of which cells were run."""
    board = standings.board
    problems = standings.begun
    height = 0.9 + (0.22 * len(board.methods) + 1.3) * max(1, len(problems))
    figure, panels = new_figure(height, 1, 9.5, [1.0], max(1, len(problems)))
    for panel, problem in zip(panels, problems, strict=False):
        _draw_panel(panel, standings, problem)
    return figure


def _draw_panel(panel: Axes, standings: Standings, problem: str) -> None:
    board = standings.board
    methods, patterns = list(board.methods), list(board.patterns)
    shades = np.full((len(methods), len(patterns)), np.nan)
    for i, method in enumerate(methods):
        for j, pattern in enumerate(patterns):
            regret = standings.regret(problem, pattern, method)
            if board.lacks(pattern, method):
                text, dark = "–", False
            elif regret is None:
                text, dark = "", False
            elif regret.diverged:
                shades[i, j], text, dark = _RANGE[1], "×", True
            else:
                shades[i, j] = np.clip(regret.mean, *_RANGE)
                text, dark = _short(regret.mean), regret.mean > _LIGHT
            panel.text(
                j, i, text, ha="center", va="center", fontsize=7, color="white" if dark else "black"
            )
    panel.imshow(shades, cmap="cividis_r", norm=LogNorm(*_RANGE), aspect="auto")
    panel.set_xticks(range(len(patterns)), patterns, rotation=40, ha="right", fontsize=8)
    panel.set_yticks(range(len(methods)), methods, fontsize=8)
    task = board.problems[problem]
    panel.set_title(f"{task.title}: regret ({task.measure})", fontsize="medium")
    panel.tick_params(length=0)


def _short(value: float) -> str:
    """Return a number in at most four characters where it is below 1000.

    >>> _short(0.123), _short(-0.04), _short(12.3), _short(2345)
    ('0.1', '0', '12', '2345')
    """
    return (
        f"{value:.0f}"
        if abs(value) >= 9.95
        else f"{value:.1f}".replace("-0.0", "0").replace("0.0", "0")
    )
