"""Numbers, intervals, methods and lists as text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedtide.auditing.recommend.advice import Advice
from fedtide.auditing.statistics.skew import SkewEstimate
from fedtide.yaml_text import dump

_MAX_BLOCK, _BEGINNING = 100_000, 2000
"""Characters of an experiment or strategy on the page: the longest whole one, and what is shown of
longer ones. With 100,000 clients, each of some twenty texts lists all names or rates."""


def format_skew(skew: SkewEstimate) -> str:
    """Return the skew to expect with its interval; without one, that of the log.

    >>> format_skew(SkewEstimate(0.19, 0.021, (0.0, 0.06)))
    'L1 skew 0.02 (95%: 0.00 to 0.06)'
    """
    low, high = skew.interval
    if not np.isfinite([low, high]).all():
        return f"L1 skew {skew.observed:.2f} in this log (no interval)"
    return f"L1 skew {skew.corrected:.2f} (95%: {low:.2f} to {high:.2f})"


def format_range(low: float, high: float, form: str = ".2f") -> str:
    """Return an interval, or that there is none.

    >>> format_range(0.123, 0.2, ".1%"), format_range(float("nan"), float("nan"))
    ('12.3%–20.0%', 'none')
    """
    return f"{low:{form}}–{high:{form}}" if np.isfinite([low, high]).all() else "none"


def format_method(advice: Advice) -> str:
    """Return a method with its parameters, named as in an experiment file.

    >>> format_method(Advice("fedau", {"cutoff": 50}, [], "light", 0, 0))
    'fedau(cutoff=50)'
    """
    shown = [
        "rates=those of this audit" if name == "rates" else f"{name}={value}"
        for name, value in advice.parameters.items()
    ]
    return advice.algorithm + (f"({', '.join(shown)})" if shown else "")


def format_short(advice: Advice) -> str:
    """Return a method without its rates."""
    return advice.algorithm if "rates" in advice.parameters else format_method(advice)


def format_experiment(advice: Advice) -> str:
    """Return the lines of an experiment file for a method."""
    return dump(advice.experiment, default_flow_style=None).strip()


def format_ratio(ratio: float) -> str:
    """Return a ratio with two significant digits.

    >>> format_ratio(3.14), format_ratio(0.254), format_ratio(12.3)
    ('3.1', '0.25', '12')
    """
    return f"{ratio:,.{0 if ratio >= 10 else 1 if ratio >= 2 else 2}f}"


def format_p_value(p_value: float | None) -> str:
    """Return a p-value; None stands for a test that the log does not allow.

    >>> format_p_value(0.0234), format_p_value(3e-9), format_p_value(None)
    ('p = 0.023', 'p < 0.001', 'not testable')
    """
    if p_value is None:
        return "not testable"
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.2g}"


def format_count(count: float) -> str:
    """Return a count, abbreviated if large.

    >>> format_count(51_000_000), format_count(250)
    ('51 M', '250')
    """
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= 10 * size or (count >= size and unit != "k"):
            return f"{count / size:.3g} {unit}"
    return f"{count:,.0f}"


def to_sentence(text: str) -> str:
    """Return the text with a capital letter and a full stop."""
    return text[:1].upper() + text[1:] + "."


def cut_block(text: str) -> str:
    """Return a text, or, above 100,000 characters, its beginning and where to find the rest."""
    if len(text) <= _MAX_BLOCK:
        return text
    return (
        f"{text[:_BEGINNING]} ...\n\n... and {len(text) - _BEGINNING:,} more characters: --json "
        "writes the experiment and the strategy of every method, --experiment and --strategy those "
        "of the first"
    )


def list_some(names: Sequence[str], most: int, total: int | None = None) -> str:
    """Return the first names, and how many others there are."""
    others = (len(names) if total is None else total) - most
    return ", ".join(names[:most]) + (f", and {others:,} more" if others > 0 else "")
