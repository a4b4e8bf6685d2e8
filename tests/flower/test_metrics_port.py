"""A strategy that serves the page and the metrics of its federation itself."""

import time
import urllib.request

import pytest

import fedtide as ft
from fedtide.flower.arrays import vector_to_arrays
from fedtide.flower.demo import free_port
from fedtide.flower.server.strategy import FedTide

from .driver import TASK, N, federation

pytest.importorskip("prometheus_client", reason="metrics need fedtide[watch]")

FedAvg = ft.algorithms.FedAvg


def read(port: int, path: str = "") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=60) as response:
        return response.read().decode()


def test_page_and_metrics_are_there_while_the_federation_runs(url, monkeypatch):
    monkeypatch.setattr("fedtide.monitoring.monitor._POLL", 0.01)
    monkeypatch.setattr("fedtide.monitoring.monitor._SHARE", 1.0)
    port, grid, seen = free_port(), federation(), []

    def evaluate(ended, arrays):
        end = time.monotonic() + 120
        wanted = f'fedtide_rounds_total{{federation="digits"}} {ended}.0'
        while ended and wanted not in read(port, "metrics"):
            assert time.monotonic() < end
            time.sleep(0.01)
        seen.append(ended)

    names = [str(n) for n in range(N)]
    options = {"clients": names, "ledger": url, "federation": "digits", "clock": grid.clock}
    strategy = FedTide(FedAvg(), metrics_port=port, **options)
    strategy.start(grid, vector_to_arrays(TASK.start, TASK.layout), 3, evaluate_fn=evaluate)
    assert seen == [0, 1, 2, 3]
    with pytest.raises(OSError):
        read(port)
