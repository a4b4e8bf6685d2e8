"""The Grafana dashboard and the alert rules name what the exporter gives, and the rules alert."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from fedtide.flower.demo import free_port
from fedtide.flower.deployment.resubmission import export_status
from fedtide.flower.ledger.ledger import Ledger
from fedtide.monitoring.exporter import render_metrics
from fedtide.monitoring.monitor import Monitor
from fedtide.monitoring.status import CLIENT_STATES
from fedtide.monitoring.surroundings import Surroundings
from fedtide.participation import STAGES
from fedtide.participation.log.schema import REASONS

from .ledgers import draw_rounds, used, write

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
    """Return the labels of each series of a real federation and of a run, by name."""
    url = f"sqlite:///{tmp_path_factory.mktemp('ledger') / 'ledger.db'}"
    write(url, draw_rounds(6, 20))
    write(url, [used(20, "site-1", step_weight=0.1, norm=2.0)])
    Ledger(url, "north").record(20, "server", {"loss": 0.3})
    monitor = Monitor(url)
    monitor.refresh()
    text = render_metrics(monitor.status, True, 100, Surroundings(1e9, 0.5, "running", 2e9))
    found: dict[str, set[str]] = {}
    export_status("127.0.0.1", free_port())("pending")
    text += generate_latest()
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            if sample.name.startswith("fedtide_") and not sample.name.endswith("_created"):
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


def test_every_metric_is_documented_and_nothing_else_is(exported):
    documented = set(re.findall(r"^\| `(fedtide_\w+)`", PAGE.read_text(), re.MULTILINE))
    ends = r"_(bucket|count|sum)$"
    names = {re.sub(ends, "", name) if "lateness" in name else name for name in exported}
    assert documented == names


@pytest.mark.process
def test_promtool_accepts_the_rules():
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed; it comes with Prometheus")
    command = [promtool, "check", "rules", str(RULES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
