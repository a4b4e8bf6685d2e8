"""The Grafana dashboard and the alert rules name what the exporter gives, and the rules alert."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from fedtide.monitoring.monitor import Monitor
from fedtide.monitoring.status import CLIENT_STATES
from fedtide.participation import STAGES
from fedtide.participation.log.schema import REASONS

from .ledgers import draw_rounds, write

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "fedtide.rules.yml"
DASHBOARD = DEPLOY / "grafana" / "fedtide.json"
PAGE = Path(__file__).parents[2] / "docs" / "monitoring.md"

SCRAPED = {"instance", "job"}  # labels that Prometheus adds to every series
VALUES = {"stage": set(STAGES), "state": set(CLIENT_STATES), "reason": set(REASONS)}


def list_rules() -> list[dict]:
    return [r for group in yaml.safe_load(RULES.read_text())["groups"] for r in group["rules"]]


def list_targets() -> list[dict]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target for panel in panels for target in panel["targets"]]


def list_expressions() -> list[str]:
    variables = json.loads(DASHBOARD.read_text())["templating"]["list"]
    queries = [one["query"]["query"] for one in variables if one["type"] == "query"]
    rules, targets = list_rules(), list_targets()
    return [*(r["expr"] for r in rules), *(t["expr"] for t in targets), *queries]


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> dict[str, set[str]]:
    """Return the labels of each series of a real federation, by name."""
    url = f"sqlite:///{tmp_path_factory.mktemp('ledger') / 'ledger.db'}"
    write(url, draw_rounds(6, 20))
    monitor = Monitor(url)
    monitor.refresh()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(monitor.metrics.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def test_every_metric_in_the_expressions_is_exported(exported):
    used = {name for text in list_expressions() for name in re.findall(r"fedtide_\w+", text)}
    assert len(used) > 10
    assert used <= exported.keys()


def test_every_label_in_the_expressions_is_exported(exported):
    selectors = r"(fedtide_\w+)\{([^}]*)\}"
    for text in list_expressions():
        for name, matchers in re.findall(selectors, text):
            for label, value in re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"', matchers):
                assert label in exported[name], text
                if label in VALUES:
                    assert set(value.split("|")) <= VALUES[label], text
        names = re.findall(r"fedtide_\w+", text)
        known = SCRAPED.union(*(exported[name] for name in names))
        for grouped in re.findall(r"\b(?:by|on|ignoring|without)\s*\(([^)]*)\)", text):
            assert {label.strip() for label in grouped.split(",")} <= known, text
        assert "{{" not in text


def test_every_label_in_legends_and_annotations_is_exported(exported):
    for target in list_targets():
        labels = exported[re.findall(r"fedtide_\w+", target["expr"])[0]]
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels
    for rule in list_rules():
        labels = SCRAPED.union(*(exported[n] for n in re.findall(r"fedtide_\w+", rule["expr"])))
        for text in rule["annotations"].values():
            assert set(re.findall(r"\$labels\.(\w+)", text)) <= labels


def test_every_metric_is_documented_and_nothing_else_is(exported):
    documented = set(re.findall(r"^\| `(fedtide_\w+)`", PAGE.read_text(), re.MULTILINE))
    ends = r"_(bucket|count|sum)$"
    names = {re.sub(ends, "", name) if "lateness" in name else name for name in exported}
    assert documented == names


def test_the_dashboard_has_panels_that_do_not_overlap():
    board = json.loads(DASHBOARD.read_text())
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    cells = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in own) < 24
        assert not own & cells
        cells |= own
        assert {target["refId"] for target in panel["targets"]} == set(
            "ABCDEFGH"[: len(panel["targets"])]
        )


CASES = {
    "rule_files": [str(RULES)],
    "evaluation_interval": "1m",
    "tests": [
        {  # one client of two goes; rounds end at every minute, and then no more
            "interval": "1m",
            "input_series": [
                {"series": 'fedtide_ledger_up{instance="i"}', "values": "1x200"},
                {
                    "series": 'fedtide_client_gone{instance="i", federation="f", client="ann"}',
                    "values": "0x9 1x20 0x170",
                },
                {
                    "series": 'fedtide_client_gone{instance="i", federation="f", client="bob"}',
                    "values": "0x200",
                },
                {
                    "series": 'fedtide_clients{instance="i", federation="f", state="gone"}',
                    "values": "0x9 1x20 0x170",
                },
                {
                    "series": 'fedtide_clients{instance="i", federation="big", state="gone"}',
                    "values": "0x19 3x20 0x160",
                },
                {
                    "series": 'fedtide_skew_low{instance="i", federation="f"}',
                    "values": "0.6x20 0.4x20 0.7x160",
                },
                {
                    "series": 'fedtide_last_update_timestamp_seconds{instance="i", federation="f"}',
                    "values": "0+60x100 6000x100",
                },
                {
                    "series": 'fedtide_round_seconds{instance="i", federation="f"}',
                    "values": "60x200",
                },
                *(
                    {
                        "series": "fedtide_unused_updates_total"
                        f'{{instance="i", federation="f", reason="{reason}"}}',
                        "values": values,
                    }
                    for reason, values in [
                        ("late", "0+1x200"),
                        ("malformed", "0x49 2x150"),
                        ("invalid", "2x199 1x1"),
                    ]
                ),
            ],
            "alert_rule_test": [
                {"eval_time": f"{minute}m", "alertname": name, "exp_alerts": alerts}
                for minute, name, alerts in [
                    (5, "FedTideClientGone", []),
                    (15, "FedTideClientGone", ["ann"]),
                    (25, "FedTideClientGone", ["ann", 3]),
                    (60, "FedTideClientGone", []),
                    (30, "FedTideSkew", []),
                    (100, "FedTideSkew", ["0.70"]),
                    (30, "FedTideRefusals", ["invalid"]),
                    (61, "FedTideRefusals", ["malformed"]),
                    (130, "FedTideRefusals", []),
                    (200, "FedTideRefusals", []),
                    (99, "FedTideStalled", []),
                    (105, "FedTideStalled", []),
                    (115, "FedTideStalled", ["15m 0s"]),
                    (100, "FedTideLedgerUnreadable", []),
                    (100, "FedTideNotWatched", []),
                ]
            ],
        },
        {
            "interval": "1m",
            "input_series": [{"series": 'fedtide_ledger_up{instance="i"}', "values": "0x10 _x20"}],
            "alert_rule_test": [
                {"eval_time": "3m", "alertname": "FedTideLedgerUnreadable", "exp_alerts": []},
                {"eval_time": "8m", "alertname": "FedTideLedgerUnreadable", "exp_alerts": ["i"]},
                {"eval_time": "29m", "alertname": "FedTideNotWatched", "exp_alerts": [""]},
            ],
        },
    ],
}
"""Cases for promtool; an alert is written as what identifies it, see `describe`."""

SUMMARIES = {
    "FedTideClientGone": lambda who: (
        {"federation": "f", "client": who}
        if who == "ann"
        else {"federation": "big", "state": "gone"},
        f"Client {who} of f is gone" if who == "ann" else f"{who} clients of big are gone",
        "Silent for longer than its habits explain.",
    ),
    "FedTideSkew": lambda level: (
        {"federation": "f"},
        f"The participation in f is skewed by at least {level} of 2",
        None,
    ),
    "FedTideRefusals": lambda reason: (
        {"federation": "f", "reason": reason},
        f"2 updates of clients of f were refused: {reason}",
        "The page of fedtide watch says whose.",
    ),
    "FedTideStalled": lambda age: ({"federation": "f"}, f"f has used no update for {age}", None),
    "FedTideLedgerUnreadable": lambda where: ({}, f"The ledger cannot be read at {where}", None),
    "FedTideNotWatched": lambda none: ({}, "No exporter of fedtide answers", None),
}


def describe(name: str, key: object) -> dict:
    """Return an alert as promtool expects it."""
    labels, summary, description = SUMMARIES[name](key)
    rule = next(rule for rule in list_rules() if rule["alert"] == name)
    where = {} if name == "FedTideNotWatched" else {"instance": "i"}
    texts = {"summary": summary} | ({"description": description} if description else {})
    return {"exp_labels": rule["labels"] | where | labels, "exp_annotations": texts}


@pytest.mark.process
def test_promtool_finds_the_alerts_where_they_should_be(tmp_path):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed; it comes with Prometheus")
    for test in CASES["tests"]:
        for case in test["alert_rule_test"]:
            case["exp_alerts"] = [describe(case["alertname"], key) for key in case["exp_alerts"]]
    file = tmp_path / "cases.yml"
    file.write_text(yaml.safe_dump(CASES))
    for command in (["check", "rules", str(RULES)], ["test", "rules", str(file)]):
        done = subprocess.run([promtool, *command], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
