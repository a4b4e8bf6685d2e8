"""The table that `fedtide sweep` prints."""

import io

import polars as pl
import pytest
from rich.console import Console

from fedtide.cli.sweep import _print_results

FIELDS = [
    *("method", "local.lr", "local.steps", "local.momentum", "local.batch_size"),
    *("algorithm.cutoff", "problem.clients", "problem.partition.alpha"),
    *(f"participation.rates.{name}" for name in ("alpha", "mean", "floor", "period")),
]


def printed(fields, width, rows=3):
    """Return the table of a sweep over these fields with two seeds."""
    found = [
        {"run": f"{row}/seed-{seed}"}
        | {field: f"value-{i}-{row}" for i, field in enumerate(fields)}
        | {"seed": seed, "status": "done", "error": None, "loss": row + 0.25}
        for row in range(rows)
        for seed in (1, 2)
    ]
    file = io.StringIO()
    _print_results(pl.DataFrame(found), Console(file=file, width=width))
    return file.getvalue()


@pytest.mark.parametrize("number", [1, 5, 12])
def test_every_field_can_be_read_and_no_line_is_too_long(number):
    text = printed(FIELDS[:number], 80)
    assert all(len(line) <= 80 for line in text.splitlines())
    for i, field in enumerate(FIELDS[:number]):
        assert field in text
        assert all(f"value-{i}-{row}" in text for row in range(3))
    assert all(f"{row}.25" in text for row in range(3))
