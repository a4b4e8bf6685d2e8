"""The metrics: each against plain loops over the rows of the ledger."""

import math
from collections import defaultdict

import numpy as np
import polars as pl
import pytest
from prometheus_client.parser import text_string_to_metric_families

import fedtide as ft
from fedtide.auditing.log.client_table import ClientTable
from fedtide.flower.ledger.ledger import Entry, Ledger
from fedtide.flower.ledger.ledger_maintenance import quarantine
from fedtide.monitoring.monitor import Monitor, MonitorSettings
from fedtide.participation import STAGES
from fedtide.participation.log.schema import REASONS

from .ledgers import (
    SECONDS,
    count_reasons,
    draw_rounds,
    end_of,
    find_gone,
    influences,
    read_rows,
    used,
    write,
)

CLIENTS, ROUNDS, WINDOW = 8, 60, 40
NAMES = [f"site-{n}" for n in range(CLIENTS)]


class Metrics:
    """The samples of a text for Prometheus, by name and labels."""

    def __init__(self, text: bytes) -> None:
        self.values: dict[tuple[str, frozenset], float] = {}
        for family in text_string_to_metric_families(text.decode()):
            for sample in family.samples:
                self.values[sample.name, frozenset(sample.labels.items())] = sample.value

    def value(self, name: str, **labels: str) -> float:
        labels = {"federation": "north"} | labels
        return self.values[f"fedtide_{name}", frozenset(labels.items())]

    def names(self) -> set[str]:
        return {name for name, _ in self.values}

    def by(self, name: str, label: str) -> dict[str, float]:
        """Return the values of a metric by one of its labels."""
        found = {k: v for k, v in self.values.items() if k[0] == f"fedtide_{name}"}
        return {dict(labels)[label]: value for (_, labels), value in found.items()}


def read_metrics(url: str, **settings) -> Metrics:
    monitor = Monitor(url, MonitorSettings(**settings))
    monitor.refresh()
    return Metrics(monitor.metrics)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    """Return the URL of a ledger that no test writes."""
    url = f"sqlite:///{tmp_path_factory.mktemp('ledger') / 'ledger.db'}"
    write(url, draw_rounds(CLIENTS, ROUNDS))
    return url


@pytest.fixture(scope="module")
def rows(ledger):
    return read_rows(ledger)


def test_counts_of_rounds_stages_and_reasons(ledger, rows):
    metrics = read_metrics(ledger, window=WINDOW)
    assert metrics.value("rounds_total") == ROUNDS
    assert metrics.value("window_rounds") == WINDOW
    assert metrics.value("round_seconds") == SECONDS
    assert metrics.value("last_round_timestamp_seconds") == end_of(ROUNDS - 1)
    last_used = max(row.round for row in rows if row.stage == "used")
    assert metrics.value("last_update_timestamp_seconds") == end_of(last_used)
    for level, stage in enumerate(STAGES):
        reached = [row for row in rows if STAGES.index(row.stage) >= level]
        assert metrics.value("client_rounds_total", stage=stage) == len(reached)
        of_last = [row for row in reached if row.round == ROUNDS - 1]
        assert metrics.value("round_clients", stage=stage) == len(of_last)
    expected = dict.fromkeys(REASONS, 0) | count_reasons(rows)
    assert metrics.by("unused_updates_total", "reason") == expected
    assert sum(expected.values()) > 20


def test_lateness_is_the_number_of_rounds_since_the_request(ledger, rows):
    metrics = read_metrics(ledger, window=WINDOW)
    late = [
        row.round - (row.round if row.asked is None else row.asked)
        for row in rows
        if row.stage in ("reported", "used")
    ]
    assert 3 in late
    assert metrics.value("lateness_rounds_count") == len(late)
    assert metrics.value("lateness_rounds_sum") == sum(late)
    for bound, count in metrics.by("lateness_rounds_bucket", "le").items():
        assert count == sum(one <= float(bound) for one in late)


def test_influence_and_rates_are_those_of_the_last_rounds(ledger, rows):
    metrics = read_metrics(ledger, window=WINDOW)
    recent = [row for row in rows if row.round >= ROUNDS - WINDOW]
    weights = influences(recent, NAMES)
    ratios = metrics.by("client_influence_ratio", "client")
    np.testing.assert_allclose([ratios[name] for name in NAMES], weights * CLIENTS, rtol=1e-6)
    taken = [sum(row.client == name and row.stage == "used" for row in recent) for name in NAMES]
    rates = metrics.by("client_rate", "client")
    np.testing.assert_allclose([rates[name] for name in NAMES], np.array(taken) / WINDOW)
    assert metrics.value("expected_updates") == pytest.approx(sum(taken) / WINDOW)


def test_skew_rates_and_their_intervals_are_those_of_the_audit(ledger):
    metrics = read_metrics(ledger, window=ROUNDS)
    whole = ft.audit(ledger)
    monitor = Monitor(ledger, MonitorSettings(window=ROUNDS))
    monitor.refresh()
    rates = monitor.status.rates
    order = [whole.log.names.to_list().index(name) for name in monitor.status.names]
    np.testing.assert_allclose(rates.estimate, whole.rates.estimate[order])
    np.testing.assert_allclose(rates.low, whole.rates.low[order])
    np.testing.assert_allclose(rates.high, whole.rates.high[order])
    audited = whole.objectives.given
    assert metrics.value("skew") == pytest.approx(audited.skew.corrected, rel=1e-6)
    interval = [metrics.value("skew_low"), metrics.value("skew_high")]
    np.testing.assert_allclose(interval, audited.interval, rtol=1e-6)


def test_absences_states_and_unused_updates_of_each_client(url):
    write(url, draw_rounds(CLIENTS, 30))
    write(url, [used(t, *NAMES[:-1]) for t in range(30, 60)])
    rows = read_rows(url)
    metrics, now = read_metrics(url, window=100), 59
    seen = defaultdict(list)
    for row in rows:
        seen[row.client].append(row.round)
    absences = {name: now - rounds[-1] for name, rounds in seen.items()}
    assert metrics.by("client_absence_rounds", "client") == absences
    gone = find_gone(seen, now)
    assert metrics.by("client_gone", "client") == gone
    assert gone["site-7"]
    assert metrics.by("clients", "state") == {
        "present": CLIENTS - 1,
        "away": 0,
        "gone": 1,
        "absent": 0,
        "never": 0,
        "quarantined": 0,
    }
    unused = {name: sum(r.client == name and r.reason is not None for r in rows) for name in seen}
    assert metrics.by("client_unused_updates_total", "client") == unused
    assert metrics.by("client_rate", "client")["site-7"] == 0


def test_clients_out_of_the_window_are_absent_and_unknown_ones_never_came(url):
    write(url, [used(0, "ann", "bob"), *(used(t, "bob") for t in range(1, 12))])
    assert read_metrics(url, window=5, clients=4).by("clients", "state") == {
        "present": 1,
        "away": 0,
        "gone": 0,
        "absent": 1,
        "never": 2,
        "quarantined": 0,
    }
    metrics = read_metrics(url, window=5, clients=["bob", "eve", "ann"])
    assert metrics.by("clients", "state")["never"] == 1
    assert metrics.by("client_influence_ratio", "client") == {"ann": 0, "bob": 3, "eve": 0}
    assert metrics.by("client_absence_rounds", "client") == {"ann": 11, "bob": 0}


def test_updates_and_measurements_are_those_of_the_window(url):
    """The quarantine is seen without a further round."""
    norms = [9.0, 1.0, 4.0, 2.0]
    write(url, [used(t, "ann", "bob", step_weight=t / 8, norm=one) for t, one in enumerate(norms)])
    ledger = Ledger(url, "north")
    for t, loss in enumerate([0.1, 0.5, math.nan, 0.2]):
        ledger.record(t, "server", {"loss": loss, "accuracy": 0.5})
    ledger.record(3, "server", {"loss": 0.25})
    monitor = Monitor(url, MonitorSettings(window=3))
    monitor.refresh()
    metrics = Metrics(monitor.metrics)
    assert metrics.by("client_update_norm", "client") == {"ann": 2.0, "bob": 2.0}
    assert metrics.by("client_step_weight", "client") == {"ann": 0.25, "bob": 0.25}
    assert metrics.by("measured", "name") == {"loss": 0.25, "accuracy": 0.5}
    assert [(one.round, one.low, one.high) for one in monitor.status.newest] == [
        (2, 0.5, 0.5),
        (3, 0.25, 0.5),
    ]
    quarantine(url, "bob", begins=True)
    monitor.refresh()
    metrics = Metrics(monitor.metrics)
    assert metrics.value("clients", state="quarantined") == 1
    assert metrics.by("client_rate", "client")["bob"] == 0


def test_fair_shares_come_from_the_roster(url):
    write(url, [used(t, "ann", "bob") for t in range(6)])
    roster = ClientTable.from_frame(
        pl.DataFrame({"client": ["ann", "bob", "eve"], "weight": [2.0, 1.0, 1.0]})
    )
    monitor = Monitor(url, MonitorSettings(roster=roster))
    monitor.refresh()
    ratios = Metrics(monitor.metrics).by("client_influence_ratio", "client")
    assert ratios == pytest.approx({"ann": 1.0, "bob": 2.0, "eve": 0.0})
    assert monitor.status.objective.skew.observed == pytest.approx(0.25 + 0.25)


def test_a_client_whose_name_is_claimed_by_another_node_is_not_there(url):
    claimed = Entry("ann", "available", None, end_of(1), None, "unregistered")
    write(url, [used(0, "ann", "bob"), [*used(1, "bob"), claimed]])
    metrics = read_metrics(url)
    assert metrics.by("client_absence_rounds", "client") == {"ann": 1, "bob": 0}
    assert metrics.value("round_clients", stage="available") == 1
    assert metrics.value("unused_updates_total", reason="unregistered") == 1


def test_series_of_single_clients_end_where_there_are_too_many(ledger):
    few, many = read_metrics(ledger), read_metrics(ledger, client_series=CLIENTS - 1)
    left_out = few.names() - many.names()
    assert left_out == {name for name in few.names() if name.startswith("fedtide_client_")} - {
        "fedtide_client_rounds_total"
    }
    assert many.names() < few.names()
