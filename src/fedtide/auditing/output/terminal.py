"""The summary of an audit on the terminal."""

from __future__ import annotations

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from fedtide.auditing.api import Audit
from fedtide.auditing.output import text


def show(audit: Audit, console: Console) -> None:
    """Print a summary of at most about 40 lines."""
    verdict = text.describe_objective(audit)
    console.print(Panel(verdict, title="whose model", title_align="left"))
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column()
    for name, value in _list_facts(audit):
        facts.add_row(name, escape(value))
    console.print(Group(facts, Text(), _list_extremes(audit), Text(), _list_advice(audit)))
    for line in [*audit.limits, text.compare_replays(audit)]:
        if line:
            console.print(f"[yellow]•[/yellow] {escape(line)}")


def _list_facts(audit: Audit) -> list[tuple[str, str]]:
    facts = [
        ("coverage", "; ".join(text.describe_coverage(audit))),
        ("rates", text.describe_rates(audit)),
        ("pattern", text.describe_pattern(audit)),
        ("windows", text.describe_window(audit)),
    ]
    if audit.objectives.given:
        facts.insert(2, ("weights", text.describe_given_weights(audit)))
    facts += [("groups", "; ".join(text.describe_groups(group))) for group in audit.groups[:2]]
    for method, numbers in audit.learning_rates.items():
        rates = ", ".join(f"{name} {value:.3g}" for name, value in numbers.items())
        facts.append((f"steps, {method}", rates))
    return facts


def _list_extremes(audit: Audit, most: int = 4) -> RenderableType:
    """Return the clients with the most and the least influence for their share."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("over-represented", "times its share", "under-represented", "times its share"):
        table.add_column(name, justify="right" if name.startswith("times") else "left")
    ratios = audit.objectives.ratios
    seen = np.flatnonzero(audit.log.counts > 0)
    order = seen[np.argsort(ratios[seen], kind="stable")]
    for high, low in list(zip(order[::-1], order, strict=True))[: min(most, len(order) // 2)]:
        names = [escape(str(audit.log.names[int(n)])) for n in (high, low)]
        table.add_row(names[0], f"{ratios[high]:.2f}", names[1], f"{ratios[low]:.2f}")
    return table


def _list_advice(audit: Audit, most: int = 3) -> RenderableType:
    """Return the first methods, each with its costs and its first reason."""
    table = Table.grid(padding=(0, 1))
    for rank, advice in enumerate(audit.advice[:most], start=1):
        costs = [f"remaining L1 skew {advice.remaining:.2f}"]
        if advice.simulated:
            costs.append(f"replay {advice.simulated[0]:.1%}")
        costs.append(f"{text.format_count(advice.memory_floats)} numbers stored")
        title = Text(text.format_method(advice), style="bold")
        title.append(f"  {' · '.join(costs)}", style="not bold dim")
        table.add_row(f"{rank}.", title)
        table.add_row("", Text(advice.reasons[0]))
    return table
