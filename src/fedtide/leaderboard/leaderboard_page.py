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
    "rates": "known rates",
    "period": "a period",
    "complete": "a period in which everybody takes part",
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
        tables=[_problem(standings, name) for name in standings.begun],
        pattern_table=markdown_table(
            ["pattern", "who takes part", "from", "period", "everybody in each period"],
            [
                [name, one.title, one.source, one.period or "", "yes" if one.complete else ""]
                for name, one in board.patterns.items()
            ],
        ),
        method_table=_methods(standings),
    )


def _progress(standings: Standings) -> list[str]:
    """Return how many cells of each problem were run, and how long the others would take."""
    board, missing, lines = standings.board, standings.missing(), []
    for problem, task in board.problems.items():
        planned = [cell for cell in board.cells() if cell.problem == problem]
        left = [cell for cell in missing if cell.problem == problem]
        done = len(planned) - len(left)
        spent = sum(r.seconds for r in standings.results.values() if r.problem == problem)
        line = f"{task.title}: {done} of {len(planned)} cells were run"
        line += f", in {format_hours(spent)} of one core" if done else ""
        if left:
            hours = format_hours(estimate_seconds(left, standings.results))
            line += f"; the others would take {hours}"
        lines.append(f"{line}.")
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
    """Return the table of the comparisons with FedAvg, and how many there are."""
    board = standings.board
    cells = [(problem, pattern) for problem in standings.begun for pattern in board.patterns]
    best = [standings.best(*cell, board.methods) for cell in cells]
    kinds = get_args(Outcome)
    rows, total = [], Counter[Outcome | None]()
    for name, method in board.methods.items():
        others = cells if name != REFERENCE else []
        found = {cell: standings.against_fedavg(*cell, name) for cell in others}
        count = Counter(found.values())
        total += count
        keeps, messages = MEMORY_NAMES[method.memory], " / ".join(map(str, method.messages))
        worse = ", ".join(f"{cell[1]} ({cell[0]})" for cell in others if found[cell] == "worse")
        counts = [count[kind] if others else "" for kind in kinds]
        rows.append([name, keeps, messages, best.count(name), *counts, worse])
    head = ["method", "server keeps", "models sent / received", "best in", *kinds, "worse in"]
    return {
        "table": markdown_table(head, rows),
        "compared": sum(total[kind] for kind in kinds),
        "better": total["better"],
        "worse": total["worse"],
    }


def _best(standings: Standings) -> str:
    """Return the best methods of each memory class under each pattern, one for each problem."""
    board = standings.board
    of = {
        memory: [name for name, one in board.methods.items() if one.memory == memory]
        for memory in MEMORY_NAMES
    }
    rows = [
        [
            pattern,
            *(
                ", ".join(standings.best(one, pattern, names) or "–" for one in standings.begun)
                for names in of.values()
            ),
        ]
        for pattern in board.patterns
    ]
    return markdown_table(["pattern", *MEMORY_NAMES.values()], rows)


def regret_text(standings: Standings, problem: str, pattern: str, method: str) -> str:
    """Return the regret of a cell as tables show it, or why there is none."""
    if standings.board.lacks(pattern, method):
        return "–"
    regret = standings.regret(problem, pattern, method)
    return "not run" if regret is None else regret.text


def _problem(standings: Standings, problem: str) -> dict[str, Any]:
    """Return the regrets on a problem, and what they are measured from."""
    board, rows = standings.board, []
    best = {pattern: standings.best(problem, pattern, board.methods) for pattern in board.patterns}
    for method in board.methods:
        cells = [regret_text(standings, problem, pattern, method) for pattern in board.patterns]
        bold = [
            f"**{cell}**" if best[pattern] == method else cell
            for pattern, cell in zip(board.patterns, cells, strict=True)
        ]
        rows.append([method, *bold])
    reference = "FedAvg under full participation was not run, so no regret is known."
    if (found := standings.results.get((problem, FULL, REFERENCE))) is not None:
        shown = ", ".join(map(value_text, found.figures))
        reference = (
            f"Under full participation, FedAvg was tuned to γ = {found.best[0]:g} and a server "
            f"learning rate of {found.best[1]:g}, and has the values {shown} with the judged seeds."
        )
    rates = board.problems[problem].lr
    chosen = [r.best[0] for r in standings.results.values() if r.problem == problem]
    ends = chosen.count(rates[0]), chosen.count(rates[-1])
    reference += (
        f" The chosen γ is the least of its grid in {ends[0]} of {len(chosen)} cells, and the "
        f"largest in {ends[1]}."
    )
    table = markdown_table(["method", *board.patterns], rows)
    return {"task": board.problems[problem], "reference": reference, "table": table}


def value_text(value: float | None) -> str:
    """Return the value of a run as tables show it.

    >>> value_text(0.12345), value_text(None)
    ('0.123', 'diverges')
    """
    return "diverges" if value is None else f"{value:.3g}"


def _methods(standings: Standings) -> str:
    """Return what of each method is tuned, what it needs, and where it cannot be used."""
    board, rows = standings.board, []
    for name, method in board.methods.items():
        field, values = method.tuned
        tuned = "γ times" if field == "lr" else f"`{field}`"
        without = [pattern for pattern in board.patterns if board.lacks(pattern, name)]
        rows.append(
            [
                name,
                f"{tuned} {', '.join(f'{value:g}' for value in values)}",
                _NEEDS[method.needs],
                ", ".join(without),
                method.note,
            ]
        )
    return markdown_table(["method", "tuned besides γ", "needs", "so not under", "remarks"], rows)


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
