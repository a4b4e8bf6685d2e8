"""The status of a federation as metrics for Prometheus; docs/monitoring.md explains each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from fedtide.errors import MissingExtraError
from fedtide.monitoring.ledger_window import LATENESS_BOUNDS
from fedtide.monitoring.status import GONE, Status
from fedtide.monitoring.surroundings import Surroundings
from fedtide.participation.log.schema import REASONS, STAGES

try:
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, core, generate_latest
    from prometheus_client.registry import Collector
except ImportError:
    raise MissingExtraError("watch", "watch") from None

CONTENT_TYPE = CONTENT_TYPE_LATEST
"""Of the text that `render_metrics` returns."""

Metric = core.Metric
Gauge = core.GaugeMetricFamily
Counter = core.CounterMetricFamily


def render_metrics(
    status: Status | None, up: bool, client_series: int, around: Surroundings
) -> bytes:
    """Return the metrics in Prometheus's text format.

    Args:
        status: of the federation; None: no round has ended.
        up: whether the ledger could be read at the last attempt.
        client_series: metrics of single clients are left out if there are more clients than this.
        around: what is known besides.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_StatusCollector(status, up, client_series, around))
    return generate_latest(registry)


class _StatusCollector(Collector):
    """Gives one status to `prometheus_client`."""

    def __init__(
        self, status: Status | None, up: bool, client_series: int, around: Surroundings
    ) -> None:
        self._status, self._up, self._client_series = status, up, client_series
        self._around = around

    def collect(self) -> Iterable[Metric]:
        text = "1 if the ledger could be read at the last attempt, else 0."
        yield Gauge("fedtide_ledger_up", text, self._up)
        if not math.isnan(self._around.free):
            text = "Bytes that are free on the disk of the ledger."
            yield Gauge("fedtide_disk_free_bytes", text, self._around.free)
        if not math.isnan(self._around.expires):
            text = "When the certificate of the SuperLink expires."
            yield Gauge("fedtide_certificate_expiry_timestamp_seconds", text, self._around.expires)
        if self._status is None:
            return
        yield from _list_federation_metrics(self._status)
        if len(self._status.names) <= self._client_series:
            yield from _list_client_metrics(self._status)


def _list_federation_metrics(status: Status) -> Iterator[Metric]:
    """Return the metrics of the whole federation, whose number of series is fixed."""
    who, last, counts = status.federation, status.last, status.counts
    yield _metric(Counter, "rounds", "Rounds that have ended.", who, [counts.ended])
    yield _metric(Gauge, "last_round_timestamp_seconds", "End of the last round.", who, [last.time])
    text = "End of the last round in which an update was used."
    yield _metric(Gauge, "last_update_timestamp_seconds", text, who, [counts.updated_at])
    text = "Median time from the end of a round to that of the next one, in the window."
    yield _metric(Gauge, "round_seconds", text, who, [status.round_seconds])

    text = "Clients that reached the stage in the last round."
    yield _metric(Gauge, "round_clients", text, who, last.count_stages(), "stage", STAGES)
    text = "Pairs of a round and a client that reached the stage."
    yield _metric(Counter, "client_rounds", text, who, counts.stages, "stage", STAGES)
    text = "Clients by state: present, away, gone, absent or never."
    states = status.count_states()
    yield _metric(Gauge, "clients", text, who, states.values(), "state", states)
    text = "Updates that were not used, by reason."
    reasons = dict.fromkeys(REASONS, 0) | counts.reasons
    yield _metric(Counter, "unused_updates", text, who, reasons.values(), "reason", reasons)
    yield _lateness(status)

    yield _metric(Gauge, "window_rounds", "Rounds in the window.", who, [len(status.rounds)])
    if status.objective is not None:
        skew = status.objective.skew
        text = "L1 skew of the window, without the part due to chance: 0 to 2; missing as below."
        yield _metric(Gauge, "skew", text, who, [skew.corrected])
        text = "{} end of the 95% interval of the L1 skew; missing if the window allows none."
        yield _metric(Gauge, "skew_low", text.format("Lower"), who, [skew.interval[0]])
        yield _metric(Gauge, "skew_high", text.format("Upper"), who, [skew.interval[1]])
    text = "Updates to expect in a round if clients go on as in the window."
    yield _metric(Gauge, "expected_updates", text, who, [status.expected.sum()])
    text = "What clients and server measured last; NaN: it was not finite."
    metric = Gauge("fedtide_measured", text, labels=["federation", "source", "name"])
    for one in status.newest:
        metric.add_metric([who, one.source, one.name], one.value)
    yield metric


def _list_client_metrics(status: Status) -> Iterator[Metric]:
    """Return the metrics of single clients."""
    who, label = status.federation, ("client", status.names)
    text = "Influence of the client in the window over its fair share."
    yield _metric(Gauge, "client_influence_ratio", text, who, status.ratios, *label)
    text = "Rounds since the client was seen; 0: in the last round."
    absences = np.where(status.totals.last < 0, np.nan, status.absences)
    yield _metric(Gauge, "client_absence_rounds", text, who, absences, *label)
    text = "Mean factor with which updates of the client entered the steps of the window."
    yield _metric(Gauge, "client_step_weight", text, who, status.step_weights, *label)
    text = "Median norm of the updates of the client in the window."
    yield _metric(Gauge, "client_update_norm", text, who, status.norms, *label)
    text = "1 if the client has been silent for longer than its habits explain, else 0."
    yield _metric(Gauge, "client_gone", text, who, status.states == GONE, *label)
    text = "Probability that an update of the client is used in a round."
    yield _metric(Gauge, "client_rate", text, who, status.expected, *label)
    text = "Updates of the client that were not used, for whatever reason."
    yield _metric(Counter, "client_unused_updates", text, who, status.totals.unused, *label)


def _lateness(status: Status) -> Metric:
    counts = np.cumsum(status.counts.lateness).tolist()
    bounds = [*(f"{bound:.1f}" for bound in LATENESS_BOUNDS), "+Inf"]
    text = "Replies by how many rounds after their round they came."
    metric = core.HistogramMetricFamily("fedtide_lateness_rounds", text, labels=["federation"])
    buckets = list(zip(bounds, counts, strict=True))
    metric.add_metric([status.federation], buckets, status.counts.rounds_late)
    return metric


def _metric(
    family: type[Gauge] | type[Counter],
    name: str,
    text: str,
    federation: str,
    values: Iterable[float],
    label: str | None = None,
    keys: Iterable[str] = (),
) -> Metric:
    """Return a metric with one series, or with one for each value of a label.

    Series without a number, or of clients without a name, are left out.
    """
    names = ["federation"] if label is None else ["federation", label]
    metric = family(f"fedtide_{name}", text, labels=names)
    for key, value in zip(keys if label else [None], values, strict=True):
        if key != "" and not math.isnan(value):
            metric.add_metric([federation] if key is None else [federation, key], value)
    return metric
