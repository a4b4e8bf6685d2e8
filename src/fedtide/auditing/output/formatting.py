"""Numbers, intervals, methods and lists as text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from decimal import ROUND_CEILING, Context

import numpy as np

from fedtide.auditing.recommend.advice import Advice
from fedtide.auditing.statistics.skew import SkewEstimate
from fedtide.yaml_text import dump

_MAX_BLOCK, _BEGINNING = 100_000, 2000
"""Characters of an experiment or strategy on the page: the longest whole one, and what is shown of
longer ones. With 100,000 clients, each of some twenty texts lists all names or rates."""


def format_skew(skew: SkewEstimate) -> str:
    """Return an L1 skew with its interval.

    >>> format_skew(SkewEstimate(0.19, 0.021, (0.0, 0.06)))
    'L1 skew 0.190, bias-corrected 0.021 (95%: 0.000 to 0.060)'
    """
    low, high = skew.interval
    text = f"L1 skew {skew.observed:.3f}"
    if abs(skew.observed - skew.corrected) >= 0.001:
        text += f", bias-corrected {skew.corrected:.3f}"
    if not np.isfinite([low, high]).all():
        return f"{text} (no interval)"
    return f"{text} (95%: {low:.3f} to {high:.3f})"


def format_range(low: float, high: float, form: str = ".2f") -> str:
    """Return an interval, or that there is none.

    >>> format_range(0.123, 0.2, ".1%"), format_range(float("nan"), float("nan"))
    ('12.3%–20.0%', 'none')
    """
    return f"{low:{form}}–{high:{form}}" if np.isfinite([low, high]).all() else "none"


def format_method(advice: Advice) -> str:
    """Return a method with its parameters, named as in an experiment file.

    >>> format_method(Advice("fedau", {"cutoff": 50}, [], "light", 0, 0, 0.0))
    'fedau(cutoff=50)'
    """
    return _format_call(advice.algorithm, advice.parameters)


def format_short(advice: Advice) -> str:
    """Return a method without the rates and the method within it.

    >>> format_short(Advice("known-rates", {"rates": [0.5, 0.2]}, [], "light", 0, 0, 0.0))
    'known-rates'
    """
    short = {k: v for k, v in advice.parameters.items() if not isinstance(v, list | dict)}
    return _format_call(advice.algorithm, short)


def format_averaging(method: str) -> str:
    """Return a way of averaging in words.

    >>> format_averaging("average-all"), format_averaging("fedau(50)")
    ('averaging over all clients', 'fedau(50)')
    """
    names = {
        "fedavg": "averaging over each round's clients",
        "average-all": "averaging over all clients",
        "known-rates": "known rates",
        "given": "the weights in the log",
    }
    return names.get(method, method)


def format_experiment(advice: Advice) -> str:
    """Return the lines of an experiment file for a method."""
    return dump(advice.experiment, default_flow_style=None).strip()


def format_ratio(ratio: float) -> str:
    """Return a ratio with two significant digits.

    >>> format_ratio(3.14), format_ratio(0.254), format_ratio(12.3)
    ('3.1 times', '0.25 times', '12 times')
    """
    digits = 0 if ratio >= 10 else 1 if ratio >= 2 else 2
    return f"{ratio:,.{digits}f} times"


def format_bound(bound: float) -> str:
    """Return an upper bound with two significant digits, rounded up so that it holds.

    >>> format_bound(0.000312), format_bound(0.0187), format_bound(0.02), format_bound(43.2)
    ('0.00032', '0.019', '0.02', '44')
    """
    rounded = Context(prec=2, rounding=ROUND_CEILING).create_decimal(repr(float(bound)))
    return f"{rounded:f}"


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


def to_sentences(texts: Iterable[str]) -> str:
    """Return the texts as sentences of one paragraph."""
    return " ".join(to_sentence(text) for text in texts)


def _format_call(algorithm: str, parameters: dict[str, object]) -> str:
    shown = []
    for name, value in parameters.items():
        if name == "rates":
            shown.append("rates=those of this audit")
        elif isinstance(value, dict):
            inner = {key: v for key, v in value.items() if key != "type"}
            shown.append(_format_call(value["type"], inner))
        else:
            shown.append(f"{name}={value}")
    arguments = ", ".join(shown)
    return algorithm + (f"({arguments})" if arguments else "")


def format_percent(share: float) -> str:
    """Return a share with as many digits as tell it from 1.

    >>> format_percent(0.67), format_percent(0.994), format_percent(0.99999158), format_percent(1)
    ('67%', '99.40%', '99.9992%', '100%')
    """
    if not 0.99 <= share < 1:
        return f"{share:.0%}"
    digits = max(2, -math.floor(math.log10(100 * (1 - share))))
    return f"{share:.{digits}%}"


def cut_block(text: str) -> str:
    """Return a text, or, above 100,000 characters, its beginning and where to find the rest."""
    if len(text) <= _MAX_BLOCK:
        return text
    return (
        f"{text[:_BEGINNING]} ...\n\n... and {len(text) - _BEGINNING:,} more characters: --json "
        "writes the experiment and the strategy of every method, --experiment and --strategy those "
        "of the first"
    )


def list_some(names: Sequence[str], most: int) -> str:
    """Return the first names, and how many others there are."""
    others = len(names) - most
    return ", ".join(names[:most]) + (f", and {others:,} more" if others > 0 else "")
