"""The app of the recipe: who takes part in it, and who holds it up."""

import importlib
import sys
from functools import cache, partial
from types import ModuleType

import pytest
from flwr.app import Context, RecordDict

from fedtide.algorithms import Clipped, FedAU
from fedtide.flower import FedTide
from fedtide.flower.demo import example_app
from fedtide.flower.ledger.ledger import read_ledger, read_rounds

from .fake_grid import FakeGrid, Node


@pytest.fixture
def modules(monkeypatch) -> dict[str, ModuleType]:
    monkeypatch.syspath_prepend(str(example_app()))
    found = {name: importlib.import_module(name) for name in ("task", "client_app", "server_app")}
    for name in found:  # other tests import other modules by these names
        del sys.modules[name]
    monkeypatch.setattr(found["task"], "digits", cache(found["task"].digits))
    return found


def test_neither_a_site_that_is_away_nor_forgotten_nodes_hold_up_the_others(
    modules, monkeypatch, url
):
    """Rounds waited for all N, and the first N nodes that came were the clients for good."""
    app, shards = modules["client_app"].app, {"num-partitions": 3}
    nodes = {n: Node(app, {"name": f"former-{n}", "partition-id": 0} | shards) for n in (2, 3)}
    for number, site in enumerate(("site-a", "site-b", "site-c")):
        nodes[10 + number] = Node(app, {"partition-id": number} | shards, name=site)
    nodes[12].online = lambda now: False
    grid = FakeGrid(nodes)
    monkeypatch.setattr(modules["server_app"], "FedTide", partial(FedTide, clock=grid.clock))
    config = {"clients": "site-a site-b site-c", "num-server-rounds": 3, "rounds-file": ""}
    config |= {
        "method": "",
        "cutoff": 50,
        "timeout": 120,
        "state": "",
        "ledger": url,
        "federation": "digits",
    }
    began = grid.now
    context = Context(
        run_id=grid.run_id, node_id=1, node_config={}, state=RecordDict(), run_config=config
    )
    modules["server_app"].app(grid, context)
    log = read_ledger(f"{url}#digits")
    assert set(log["client"]) == {"site-a", "site-b"}
    assert set(log["stage"]) == {"used"}
    assert len(read_rounds(f"{url}#digits")) == 3
    assert grid.now - began < 60


def test_the_apps_method_bounds_a_site_and_its_rounds_may_stay_on_the_server(modules, tmp_path):
    app, method = modules["server_app"], FedAU(cutoff=50, average=0.5)
    assert app.bounded(method) == Clipped(bound=1.0, quantile=0.5, inner=method)
    (tmp_path / "rounds").write_text("950\n")
    assert int(app.rounds_from(str(tmp_path / "rounds"))) == 950
    assert not app.rounds_from("")
