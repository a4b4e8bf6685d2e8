"""The summary of an audit on the terminal."""

from __future__ import annotations

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from fedtide.auditing.api import Audit
from fedtide.auditing.output import formatting, text

_ROWS = 3
"""The most rows of a table."""


def show(audit: Audit, console: Console) -> None:
    """Print a summary of at most about 40 lines."""
    verdict, *others = map(formatting.to_sentence, text.describe_objective(audit))
    lines = "\n".join([f"[bold]{escape(verdict)}[/bold]", *map(escape, others)])
    console.print(Panel(lines, title="whose model", title_align="left"))
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column()
    for name, value in _list_facts(audit):
        facts.add_row(name, escape(value))
    console.print(Group(facts, Text(), _list_extremes(audit), Text(), _list_advice(audit)))
    for line in audit.log.notes:
        console.print(f"[dim]read: {escape(line)}[/dim]")
    for line in [*audit.limits, *text.describe_advice(audit)]:
        console.print(f"[yellow]•[/yellow] {escape(line)}")


def _list_facts(audit: Audit) -> list[tuple[str, str]]:
    churn = text.describe_churn(audit) if len(audit.churn.gone) or len(audit.churn.late) else []
    facts = [
        ("clients", "; ".join(text.describe_clients(audit))),
        ("rounds", "; ".join(text.describe_rounds(audit))),
        ("rates", text.describe_rates(audit)),
        ("churn", "; ".join(churn)),
        ("weights", text.describe_plain_average(audit)),
        ("availability", "; ".join(text.describe_availability(audit))),
        ("selection", "; ".join(text.describe_selection(audit))),
        ("refusals", "; ".join(text.describe_refusals(audit))),
        ("pattern", text.describe_pattern(audit)),
        ("windows", text.describe_window(audit)),
    ]
    facts += [("groups", "; ".join(text.describe_groups(group))) for group in audit.groups[:2]]
    for method, numbers in audit.learning_rates.items():
        rates = ", ".join(f"{name} {value:.3g}" for name, value in numbers.items())
        facts.append(("step sizes", f"by the theorem for {method}: {rates}"))
    return [(name, value) for name, value in facts if value]


def _list_extremes(audit: Audit) -> RenderableType:
    """Return the clients with the most and the least influence relative to their share."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("most influence", "times its share", "least influence", "times its share"):
        table.add_column(name, justify="right" if name.startswith("times") else "left")
    ratios = audit.objectives.ratios
    seen = np.flatnonzero((audit.log.counts > 0) & (audit.objectives.wanted > 0))
    if not len(seen):
        return Text("No client that took part has a wanted weight.")
    order = seen[np.argsort(ratios[seen], kind="stable")]
    if np.ptp(ratios[seen]) < 1e-9:
        return Text("Every client that took part has the same influence relative to its share.")
    for pair in list(zip(order[::-1], order, strict=True))[: min(_ROWS, len(order) // 2)]:
        cells = [
            cell
            for n in pair
            for cell in (escape(audit.log.show_name(n)), text.format_influence(audit, int(n)))
        ]
        table.add_row(*cells)
    return table


def _list_advice(audit: Audit) -> RenderableType:
    """Return the first methods, each with its costs and its first reason.

    If all of them store an update of every client, the last one shown is the first that does not.
    """
    table = Table.grid(padding=(0, 1))
    ranked = list(enumerate(audit.advice, start=1))
    shown = ranked[:_ROWS]
    light = next((one for one in ranked if one[1].memory == "light"), shown[-1])
    if light not in shown:
        shown[-1] = light
    for rank, advice in shown:
        numbers = "number" if advice.memory_floats == 1 else "numbers"
        costs = [
            f"remaining L1 skew {advice.remaining:.2f}",
            f"replay {advice.simulated[0]:.1%}",
            f"{formatting.format_count(advice.memory_floats)} {numbers} stored",
        ]
        title = Text(formatting.format_method(advice), style="bold")
        title.append(f"  {' · '.join(costs)}", style="not bold dim")
        table.add_row(f"{rank}.", title)
        first = advice.reasons[0] if rank <= _ROWS else "the first without a memory of all clients"
        table.add_row("", Text(first))
    return table
