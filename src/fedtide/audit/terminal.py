"""The audit on one screen."""

from __future__ import annotations

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from fedtide.audit import words
from fedtide.audit.report import Audit


def show(audit: Audit, console: Console) -> None:
    """Print the summary: at most about 40 lines."""
    console.print(Panel(words.verdict(audit), title="whose model", title_align="left"))
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column()
    for name, text in _facts(audit):
        facts.add_row(name, escape(text))
    console.print(Group(facts, Text(), _extremes(audit), Text(), _advice(audit)))
    for line in [*audit.limits, words.comparison(audit)]:
        if line:
            console.print(f"[yellow]•[/yellow] {escape(line)}")


def _facts(audit: Audit) -> list[tuple[str, str]]:
    facts = [
        ("coverage", "; ".join(words.coverage(audit))),
        ("rates", words.rates(audit).removeprefix("rates: ")),
        ("pattern", words.pattern(audit)),
        ("windows", words.window(audit)),
    ]
    facts += [("groups", "; ".join(words.groups(shares))) for shares in audit.groups[:2]]
    for method, numbers in audit.learning_rates.items():
        rates = ", ".join(f"{name} {value:.3g}" for name, value in numbers.items())
        facts.append((f"steps, {method}", rates))
    return facts


def _extremes(audit: Audit, most: int = 4) -> RenderableType:
    """Return who counts most and least."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("counts too much", "times its share", "counts too little", "times its share"):
        table.add_column(name, justify="right" if name.startswith("times") else "left")
    wanted = np.maximum(audit.objectives.wanted, 1e-300)
    ratios = audit.objectives.plain.weights / wanted
    seen = np.flatnonzero(audit.log.counts > 0)
    order = seen[np.argsort(ratios[seen], kind="stable")]
    for high, low in list(zip(order[::-1], order, strict=True))[: min(most, len(order) // 2)]:
        names = [escape(str(audit.log.names[int(n)])) for n in (high, low)]
        table.add_row(names[0], f"{ratios[high]:.2f}", names[1], f"{ratios[low]:.2f}")
    return table


def _advice(audit: Audit, most: int = 4) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("advice", style="bold", no_wrap=True)
    table.add_column("skew left", justify="right")
    if audit.simulated:
        table.add_column("replayed", justify="right")
    table.add_column("memory", justify="right", no_wrap=True)
    table.add_column("because")
    for place, one in enumerate(audit.advice[:most], start=1):
        row = [f"{place}. {escape(words.method(one))}", f"{one.remaining:.2f}"]
        if one.simulated:
            row.append(f"{one.simulated[0]:.2f} ± {1.96 * one.simulated[1]:.2f}")
        row += [words.amount(one.memory_floats), escape(one.reasons[0])]
        table.add_row(*row)
    return table
