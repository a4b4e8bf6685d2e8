"""The observer of a Flower strategy: what it writes, around Flower's own strategies."""

from collections.abc import Container, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import polars as pl
import pytest
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, Krum

import fedtide as ft
from fedtide.errors import InvalidInputError
from fedtide.flower import FedTide, ParticipationObserver

from .fake_grid import FakeGrid, Node

Asked = set[tuple[int, int]]

SAMPLES = {11: 10, 12: 20, 13: 30, 14: 40}


def client(node_id: int, fails: Container[int] = (), asked: Asked | None = None) -> ClientApp:
    """Return an app that adds its number of samples to the model, and fails in some rounds.

    Args:
        node_id: of its node.
        fails: Flower's numbers of the rounds in which it fails.
        asked: gets (server round, node id) of every request.
    """
    app = ClientApp()

    @app.train()
    def train(message: Message, context: object) -> Message:
        server_round = message.content["config"]["server-round"]
        if asked is not None:
            asked.add((server_round, node_id))
        if server_round in fails:
            raise RuntimeError("no data today")
        arrays = [a.numpy() + SAMPLES[node_id] for a in message.content["arrays"].values()]
        metrics = MetricRecord({"num-examples": SAMPLES[node_id]})
        content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics})
        return Message(content, reply_to=message)

    return app


def federation(
    fails: Mapping[int, Container[int]] = MappingProxyType({}), asked: Asked | None = None
) -> FakeGrid:
    apps = {node_id: client(node_id, fails.get(node_id, ()), asked) for node_id in SAMPLES}
    names = {11: "ann", 12: "bob"}
    return FakeGrid({n: Node(app, {}, name=names.get(n, "")) for n, app in apps.items()})


def rows_of(path: Path) -> dict[tuple[int, str], tuple[str, int | None]]:
    frame = pl.read_csv(path, schema_overrides={"client": pl.String})
    return {(t, client): (stage, samples) for t, client, stage, samples in frame.rows()}


def train(strategy: object, grid: FakeGrid, rounds: int = 3) -> np.ndarray:
    result = strategy.start(grid, ArrayRecord([np.zeros(2)]), num_rounds=rounds)
    return next(iter(result.arrays.values())).numpy()


def fedavg(**options: object) -> FedAvg:
    return FedAvg(fraction_evaluate=0.0, **options)


def test_every_stage_and_sample_count_is_written(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    train(ParticipationObserver(fedavg(), path), federation({12: {2}, 14: {1, 2, 3}}))
    used = {"ann": 10, "bob": 20, "13": 30}
    for t in range(3):
        for name, samples in used.items():
            failed = (t, name) == (1, "bob")
            expected = ("selected", None) if failed else ("used", samples)
            assert rows_of(path)[t, name] == expected
        assert rows_of(path)[t, "14"] == ("selected", None)
    result = ft.audit(path)
    assert result.log.samples is not None
    assert result.log.size == 4
    assert result.log.weights is not None
    assert result.log.weights[:3].tolist() == pytest.approx([1 / 6, 1 / 3, 1 / 2])


def test_a_second_start_of_the_same_observer_continues(tmp_path: Path) -> None:
    observer = ParticipationObserver(fedavg(), tmp_path / "log.csv")
    for _ in range(2):
        train(observer, federation(), rounds=2)
    assert {t for t, _ in rows_of(tmp_path / "log.csv")} == {0, 1, 2, 3}
    assert pl.read_csv(tmp_path / "log.csv").height == 4 * len(SAMPLES)
    ParticipationObserver(fedavg(), tmp_path / "log.csv")  # it can be read


def test_what_cannot_be_observed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"^log: .*\.csv"):
        ParticipationObserver(fedavg(), tmp_path / "log.parquet")
    with pytest.raises(InvalidInputError, match=r"^strategy: FedTide .*ledger="):
        ParticipationObserver(FedTide(ft.algorithms.FedAvg(), clients=2), tmp_path / "log.csv")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InvalidInputError, match=r"^log: the columns of .*; choose"):
        ParticipationObserver(fedavg(), tmp_path / "other.csv")
    missing = ParticipationObserver(fedavg(), tmp_path / "no" / "log.csv")
    with pytest.raises(InvalidInputError, match=r"^log: .* cannot be written"):
        train(missing, federation())


@pytest.mark.parametrize("samples", [float("nan"), -5, 10**12 + 1])
def test_an_absurd_number_of_samples_is_not_written(samples: float, tmp_path: Path) -> None:
    path, grid = tmp_path / "log.csv", federation()

    def exaggerate(reply: Message) -> Message:
        reply.content["metrics"]["num-examples"] = samples
        return reply

    grid.nodes[14].tamper = exaggerate
    train(ParticipationObserver(Krum(fraction_evaluate=0.0), path), grid, rounds=2)
    assert rows_of(path)[1, "14"] == ("used", None)
    assert rows_of(path)[1, "13"] == ("used", 30)
    assert ft.audit(path).log.size == 4


def test_nodes_of_one_name_have_one_row(tmp_path: Path) -> None:
    path, grid = tmp_path / "log.csv", federation({12: {1, 2}})
    for node_id in (12, 13):
        grid.nodes[node_id].name = "site"
    train(ParticipationObserver(fedavg(), path), grid, rounds=2)
    assert pl.read_csv(path)["client"].to_list() == ["ann", "site", "14"] * 2
    assert rows_of(path)[1, "site"] == ("used", 30)
    assert ft.audit(path).log.size == 3
    train(ParticipationObserver(fedavg(), path), grid, rounds=1)
    assert rows_of(path)[2, "site"][0] == "used"


def test_what_a_reply_says_of_its_sender_is_not_believed(tmp_path: Path) -> None:
    """A client could write that another one took part, or one that was never online."""
    path, grid = tmp_path / "log.csv", federation(fails={13: {1}})

    def claim_another_sender(reply: Message) -> Message:
        reply.metadata.__dict__["_src_node_id"] = 13 if reply.has_content() else 12
        return reply

    grid.nodes[12].tamper = claim_another_sender
    train(ParticipationObserver(fedavg(), path), grid, rounds=1)
    assert rows_of(path)[0, "bob"] == ("used", 20)
    assert rows_of(path)[0, "13"][0] == "selected"


TORN = ["2,bob,us", '2,"a', "2,bob,used,20"]


@pytest.mark.parametrize("end", TORN)
def test_a_line_that_a_crash_has_cut_is_dropped(
    end: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "log.csv"
    train(ParticipationObserver(fedavg(), path), federation(), rounds=2)
    whole = rows_of(path)
    with path.open("a", newline="", encoding="utf-8") as file:
        file.write(end)
    train(ParticipationObserver(fedavg(), path), federation(), rounds=1)
    assert {t for t, _ in rows_of(path)} == {0, 1, 2}
    assert {key: row for key, row in rows_of(path).items() if key[0] < 2} == whole
    assert "is cut off" in caplog.text
    assert ft.audit(path).log.size == 4
