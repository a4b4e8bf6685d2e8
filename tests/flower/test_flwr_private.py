"""When an undocumented part of Flower changes, one warning is logged and a fallback is used."""

import sys
from threading import Thread
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import Array, ConfigRecord, Error, RecordDict
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from flwr.superlink.grid import http_grid

import fedtide as ft
from fedtide.flower import _flwr_messages, _flwr_private
from fedtide.flower._flwr_messages import pull_replies
from fedtide.flower._flwr_private import (
    OnlineNode,
    copy_with,
    get_run_id,
    is_app_error,
    list_nodes,
)
from fedtide.flower.ledger.ledger import read_ledger

from .driver import N, deploy, federation
from .fake_grid import WireGrid

FAILURES = [AttributeError("renamed"), TypeError("arguments"), ImportError("moved"), KeyError("x")]


@pytest.fixture(autouse=True)
def _no_warnings_yet(monkeypatch):
    monkeypatch.setattr(_flwr_private, "_warned", set())


@pytest.fixture
def warnings(monkeypatch):
    """Return the list to which warnings are added."""
    logged = []
    monkeypatch.setattr(
        _flwr_private.log, "warning", lambda text, *args: logged.append(text % args)
    )
    return logged


class BrokenGrid:
    """A grid of which everything but the ids of nodes fails."""

    def __init__(self, failure, ids=(7, 3)):
        self.failure, self.ids = failure, ids

    def get_nodes(self):
        raise self.failure

    @property
    def run(self):
        raise self.failure

    def get_node_ids(self):
        return self.ids


class BrokenInfo:
    """A node of which everything but the id fails."""

    def __init__(self, failure):
        self.node_id, self._failure = 5, failure

    @property
    def name(self):
        raise self._failure

    last_activated_at = name


def test_this_version_of_flower_is_read_without_warnings(warnings):
    moment = "2026-01-02T03:04:05+00:00"
    grid = SimpleNamespace(
        run=SimpleNamespace(run_id=2**63),
        get_nodes=lambda: [
            NodeInfo(node_id=9),
            NodeInfo(node_id=4, name="site-a", last_activated_at=moment),
        ],
    )
    assert list_nodes(grid) == [OnlineNode(4, "site-a", 1767323045.0), OnlineNode(9)]
    assert get_run_id(grid) == 2**63
    assert is_app_error(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION))
    assert not is_app_error(Error(ErrorCode.NODE_UNAVAILABLE))
    assert warnings == []


@pytest.mark.parametrize("failure", FAILURES, ids=repr)
def test_nodes_without_get_nodes_are_anonymous(failure, warnings):
    for _ in range(3):
        assert list_nodes(BrokenGrid(failure)) == [OnlineNode(3), OnlineNode(7)]
    [warning] = warnings
    assert "Grid.get_nodes" in warning
    assert type(failure).__name__ in warning


@pytest.mark.parametrize("failure", FAILURES, ids=repr)
def test_a_node_whose_fields_cannot_be_read_is_anonymous(failure, warnings):
    grid = SimpleNamespace(get_nodes=lambda: [BrokenInfo(failure), BrokenInfo(failure)])
    assert list_nodes(grid) == [OnlineNode(5)]
    assert [warning.split()[0] for warning in warnings] == [
        "NodeInfo.name",
        "NodeInfo.last_activated_at",
    ]


@pytest.mark.parametrize(("name", "moment"), [(None, 1.5), (b"site", "yesterday"), (3, b"")])
def test_a_node_whose_fields_change_their_type_is_anonymous(name, moment, warnings):
    info = SimpleNamespace(node_id=5, name=name, last_activated_at=moment)
    assert list_nodes(SimpleNamespace(get_nodes=lambda: [info])) == [OnlineNode(5)]
    assert len(warnings) == (1 if moment == b"" else 2)


def test_a_copy_of_a_record_with_further_values_equals_one_that_was_made_with_them(warnings):
    config = ConfigRecord({"a": 1, "b": "x"})
    copy = copy_with(config, {"b": "y", "c": 2.5})
    assert copy.deflate() == ConfigRecord({"a": 1, "b": "y", "c": 2.5}).deflate()
    assert config == {"a": 1, "b": "x"}
    content = RecordDict({"config": config})
    assert copy_with(content, {"config": copy}) == RecordDict({"config": copy})
    assert content["config"] is config
    assert warnings == []


@pytest.mark.parametrize("inner", [{}, {"_data": {}}], ids=["renamed", "kept elsewhere"])
def test_a_record_that_keeps_its_values_elsewhere_gets_them_one_by_one(inner, warnings):
    class Record(dict):
        def copy(self):
            record = Record(self)
            vars(record).update(inner)
            return record

    for _ in range(3):
        assert copy_with(Record(a=1), {"b": 2}) == {"a": 1, "b": 2}
    [warning] = warnings
    assert "TypedDict._data" in warning


def test_a_superlink_that_is_away_is_not_taken_for_an_upgrade(warnings):
    class Away(BrokenGrid):
        def get_node_ids(self):
            raise self.failure

    with pytest.raises(ConnectionError):
        list_nodes(Away(ConnectionError("refused")))
    assert warnings == []


@pytest.mark.parametrize("failure", FAILURES, ids=repr)
def test_a_run_without_an_id_counts_as_a_new_one(failure, warnings):
    grid = BrokenGrid(failure)
    assert get_run_id(grid) != get_run_id(grid)
    assert len(warnings) == 1


def test_a_moved_error_code_is_assumed_unchanged(monkeypatch, warnings):
    monkeypatch.setitem(sys.modules, "flwr.common.constant", None)  # importing it now fails
    assert is_app_error(Error(2))
    monkeypatch.setitem(sys.modules, "flwr.common.constant", SimpleNamespace())
    assert not is_app_error(Error(5))
    assert len(warnings) == 1


def test_a_federation_trains_without_any_private_part(monkeypatch, warnings, url):
    grid = federation()
    failure, ids = AttributeError("removed"), sorted(grid.nodes)
    monkeypatch.setitem(sys.modules, "flwr.common.constant", None)
    broken = BrokenGrid(failure)
    monkeypatch.setattr(type(grid), "get_nodes", lambda self: broken.get_nodes())
    monkeypatch.setattr(type(grid), "get_node_ids", lambda self: ids)
    deploy(grid, ft.algorithms.FedAvg(), rounds=3, ledger=url)
    assert len(read_ledger(url).filter(stage="used")) == 3 * N
    assert len(warnings) == 1


@pytest.mark.parametrize("failure", FAILURES, ids=repr)
def test_replies_are_pulled_as_flower_does_if_its_decoding_changes(failure, monkeypatch, warnings):
    def fail(name):
        raise failure

    monkeypatch.setattr(_flwr_messages, "import_module", fail)
    grid = SimpleNamespace(pull_messages=lambda ids: [f"reply to {one}" for one in ids])
    assert pull_replies(grid, ["a", "b"]).messages == ["reply to a", "reply to b"]
    assert pull_replies(grid, ["c"]).messages == ["reply to c"]
    assert len(warnings) == 1


@pytest.mark.parametrize("name", _flwr_messages._USED)
def test_replies_are_pulled_as_flower_does_if_a_part_is_missing(name, monkeypatch, warnings):
    """Also a part that only a later step of the pull needs."""
    monkeypatch.delattr(http_grid, name)
    grid = WireGrid({}, lambda message, objects: None)
    monkeypatch.setattr(grid, "pull_messages", lambda ids: [f"reply to {one}" for one in ids])
    assert pull_replies(grid, ["a", "b"]).messages == ["reply to a", "reply to b"]
    assert len(warnings) == 1


def test_arrays_are_joined_by_threads_that_interrupt_each_other():
    """Where Flower joins chunks, a name is replaced for a moment, for all threads."""
    array = Array(np.arange(50_000.0))
    body, found = array.deflate(), []

    def join():
        for _ in range(300):
            with _flwr_messages._chunks_joined_once():
                found.append(Array.inflate(body, array.children).data == array.data)

    _flwr_messages._can_join_once()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [Thread(target=join) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert len(found) == 1200
    assert all(found)


@pytest.mark.parametrize("use", ["extend", "copy", "other bytes"])
def test_arrays_are_joined_as_flower_does_if_it_joins_them_in_another_way(
    use, monkeypatch, warnings
):
    module = sys.modules["flwr.app.message.array"]
    inflate = Array.inflate

    def changed(content, children=None):
        found = inflate(content, children)
        buffer = getattr(module, "bytearray", bytearray)()
        if use == "extend":
            buffer.extend(found.data)
        elif use == "copy":
            buffer = getattr(module, "bytearray", bytearray)(found.data)
        elif hasattr(module, "bytearray"):
            found.data += b"0"
        return found

    monkeypatch.setattr(Array, "inflate", changed)
    _flwr_messages._can_join_once.cache_clear()
    array = Array(np.arange(5))
    try:
        for _ in range(2):
            with _flwr_messages._chunks_joined_once():
                assert Array.inflate(array.deflate(), array.children) == array
    finally:
        _flwr_messages._can_join_once.cache_clear()
    [warning] = warnings
    assert "Array.inflate" in warning


@pytest.mark.parametrize("content", [b"Array", b"Array  2\x00{}", b"Tensor  1\x001"], ids=repr)
def test_replies_are_read_if_the_form_of_an_array_changes(content, monkeypatch, warnings):
    """Only their size once decoded stays unknown."""
    monkeypatch.setattr(Array, "deflate", lambda array: content)
    _flwr_messages._can_measure.cache_clear()
    try:
        assert [_flwr_messages._can_measure() for _ in range(2)] == [False, False]
    finally:
        _flwr_messages._can_measure.cache_clear()
    [warning] = warnings
    assert "Array.deflate" in warning
