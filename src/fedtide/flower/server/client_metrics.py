"""Combines the metrics of several clients into one record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from logging import getLogger

from flwr.app import MetricRecord, RecordDict

from fedtide.errors import printable

log = getLogger("flwr")

Metrics = dict[str, float | list[float]]
"""A client's metrics by name, validated."""

MetricsAggregator = Callable[[list[RecordDict], str], MetricRecord]
"""Flower's: combines several clients' records into one, given the name of the weight in them."""

SAMPLES = "num-examples"
"""The metric with the number of samples, as Flower calls it."""

_LONGEST_TEXT = 200
MAX_METRICS = 100
"""How many metrics a client may send, and how many are averaged."""


def aggregate_metrics(
    parts: list[tuple[int, Metrics]], function: MetricsAggregator | None
) -> MetricRecord | None:
    """Return the clients' metrics, combined by the user's function, or else their means.

    The function gets one RecordDict for each client, whose only record, "metrics", has the metrics
    and "num-examples". What clients sent may make it raise: that is logged, and the round has no
    metrics.

    Args:
        parts: the number of samples and the metrics of each client; if empty, the result is None.
        function: the user's; None: means weighted by samples.
    """
    if not parts:
        return None
    if function is None:
        return _average(parts)
    records = [
        RecordDict({"metrics": MetricRecord({**metrics, SAMPLES: samples})})
        for samples, metrics in parts
    ]
    try:
        found = function(records, SAMPLES)
        if not isinstance(found, MetricRecord):
            raise TypeError(f"it returned a {type(found).__name__} instead of a MetricRecord")
    except Exception as error:  # one client's odd metrics must not end the training
        reason = printable(f"{type(error).__name__}: {error}", _LONGEST_TEXT)
        name = getattr(function, "__name__", type(function).__name__)
        log.warning("no metrics: %s failed: %s", name, reason)
        return None
    return found


def _average(parts: list[tuple[int, Metrics]]) -> MetricRecord:
    """Return the mean of each metric, weighted by samples, over the clients that give it.

    Lists are left out, and so are all but the most frequent names if there are very many. The
    metric "clients" is the number of clients, whatever they send under this name.
    """
    totals: dict[str, float] = {}
    weights: dict[str, int] = {}
    counts = Counter(name for _, metrics in parts for name in metrics)
    kept = {name for name, _ in counts.most_common(MAX_METRICS)}
    for samples, metrics in parts:
        for name, value in metrics.items():
            if not isinstance(value, list) and name in kept:
                totals[name] = totals.get(name, 0.0) + samples * value
                weights[name] = weights.get(name, 0) + samples
    fewer = [f"{name} ({n})" for name, n in counts.items() if n < len(parts) and name in kept]
    if fewer:
        text = printable(", ".join(fewer), _LONGEST_TEXT)
        log.info("Metrics that not all of the %d clients gave: %s", len(parts), text)
    means = MetricRecord({name: total / weights[name] for name, total in totals.items()})
    means["clients"] = len(parts)
    return means
