"""The audit on one screen."""

from __future__ import annotations

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from fedtide.auditing.api import Audit
from fedtide.auditing.output import text as words


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
    if audit.objectives.given:
        facts.insert(2, ("weights", words.given(audit)))
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


def _advice(audit: Audit, most: int = 3) -> RenderableType:
    """Return the first methods, each with its costs in a line and its first reason below."""
    table = Table.grid(padding=(0, 1))
    for place, one in enumerate(audit.advice[:most], start=1):
        numbers = [f"L1 skew left {one.remaining:.2f}"]
        if one.simulated:
            numbers.append(f"replayed {one.simulated[0]:.2f} ± {1.96 * one.simulated[1]:.2f}")
        numbers.append(f"{words.amount(one.memory_floats)} numbers of memory")
        title = Text(words.method(one), style="bold")
        title.append(f"  {' · '.join(numbers)}", style="not bold dim")
        table.add_row(f"{place}.", title)
        table.add_row("", Text(one.reasons[0]))
    return table
