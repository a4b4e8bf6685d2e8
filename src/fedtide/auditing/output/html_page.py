"""The audit as one HTML page that needs nothing else."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from fedtide.atomic_io import write_text
from fedtide.auditing.api import Audit
from fedtide.auditing.output import audit_figures as figures
from fedtide.auditing.output import text as words

_ROWS = 12


def write_page(audit: Audit, path: str | Path) -> None:
    """Write the page; a file of that name is replaced at once or not at all.

    Raises:
        InvalidInputError: a place that cannot be written.
    """
    write_text(Path(path), render(audit), field="html", hint="choose another place")


def render(audit: Audit) -> str:
    """Return the page's text."""
    template = (
        files("fedtide.auditing.output").joinpath("audit.html.jinja").read_text(encoding="utf-8")
    )
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.from_string(template).render(**_content(audit))


def _content(audit: Audit) -> dict[str, Any]:
    plain = audit.objectives.plain
    never = [str(audit.log.names[int(n)]) for n in audit.coverage.never[:_ROWS]]
    return {
        "audit": audit,
        "words": words,
        "verdict": words.verdict(audit),
        "tiles": _tiles(audit),
        "coverage": words.coverage(audit),
        "never": never,
        "raster": figures.raster(audit),
        "rates_figure": figures.rates(audit),
        "shares_figure": figures.shares(audit),
        "pattern_figure": figures.pattern(audit),
        "window_figure": figures.window(audit),
        "rates": words.sentence(words.rates(audit).removeprefix("rates: ")),
        "pattern": words.sentence(words.pattern(audit)),
        "window": words.sentence(words.window(audit)),
        "most": _ranked(audit, most=True),
        "least": _ranked(audit, most=False),
        "objectives": [one for one in (plain, audit.objectives.given) if one]
        + audit.objectives.others,
        "group_words": [(g, words.groups(g)) for g in audit.groups],
        "comparison": words.sentence(words.comparison(audit)),
    }


def _tiles(audit: Audit) -> list[tuple[str, str]]:
    plain = audit.objectives.plain
    return [
        (f"{plain.l1_skew:.2f}", "L1 skew, 0 fair to 2"),
        (f"{plain.total_variation:.0%}", "of the influence misplaced"),
        (f"{len(audit.coverage.never):,}", f"of {audit.log.size:,} clients never came"),
        (audit.pattern.family, f"pattern, {words.sure(audit.pattern.confidence)}"),
        (words.name(audit.advice[0]), "advised"),
    ]


def _ranked(audit: Audit, most: bool) -> list[dict[str, Any]]:
    """Return the clients that came and count most, or least, against their share."""
    plain, wanted = audit.objectives.plain.weights, np.maximum(audit.objectives.wanted, 1e-300)
    ratios = plain / wanted
    apart = ratios > 1 if most else ratios < 1
    seen = np.flatnonzero((audit.log.counts > 0) & apart)
    order = seen[np.argsort(-ratios[seen] if most else ratios[seen], kind="stable")][:_ROWS]
    return [
        {
            "name": str(audit.log.names[int(n)]),
            "ratio": ratios[n],
            "low": audit.objectives.low[n] / wanted[n],
            "high": audit.objectives.high[n] / wanted[n],
            "rate": audit.rates.estimate[n],
            "pattern": audit.pattern.clients[n],
        }
        for n in order
    ]
