"""The walk over objects: the annotation says what a part is, whatever its value looks like."""

import dataclasses
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from torch import nn

import fedtide as ft
from fedtide.spec import Kind, hash_files, is_changeable, key, session, visit

RATES = np.full(1_000_000, 0.5)


def kinds(thing):
    return {path: kind for path, kind, _ in visit(thing)}


def supervised(**fields):
    defaults = {"train": "rows.parquet", "clients": "user", "model": "logistic"}
    return ft.problems.Supervised(**defaults | fields)


def mae(outputs, target):
    return (outputs - target).abs()


@pytest.mark.parametrize(
    ("thing", "path", "kind"),
    [
        (ft.algorithms.FedVARP(memory_folder="."), "memory_folder", Kind.PLAIN),
        (ft.participation.Trace("t.csv", 60.0), "file", Kind.FILE),
        (ft.participation.Trace(Path("t.csv"), 60.0), "file", Kind.FILE),
        (ft.participation.Bernoulli(RATES), "rates", Kind.PLAIN),
        (ft.participation.Bernoulli({"os:path": 0.5, "b": 1.0}), "rates.os:path", Kind.PLAIN),
        (ft.participation.Replay(pl.DataFrame({"round": [0], "client": [0]})), "log", Kind.DATA),
        (ft.algorithms.Amplified(5, 2.0), "inner", Kind.SPEC),
        (ft.algorithms.Amplified(5, 2.0), "inner.server_lr", Kind.PLAIN),
        (supervised(), "train", Kind.FILE),
        (supervised(train="rows:load"), "train", Kind.CODE),
        (supervised(train={"x": np.zeros(2), "user": [0, 1]}), "train", Kind.DATA),
        (supervised(clients="os:path"), "clients", Kind.PLAIN),
        (supervised(loss=mae), "loss", Kind.CODE),
        (supervised(metrics={"mae": mae}), "metrics.mae", Kind.CODE),
        (supervised(model=nn.Linear(1, 1)), "model", Kind.CODE),
        (supervised(model={"type": "torch.nn:Linear"}), "model.type", Kind.CODE),
    ],
)
def test_the_kind_of_a_part_is_that_of_its_annotation(thing, path, kind):
    assert kinds(thing)[path] is kind


def test_a_folder_of_the_name_of_some_text_is_not_part_of_a_key(tmp_path):
    method = ft.algorithms.FedVARP(memory_folder=str(tmp_path))
    before = key(method)
    (tmp_path / "rows").write_text("changed")
    assert key(method) == before
    assert not hash_files({"algorithm": method})


def test_a_file_is_part_of_a_key_in_its_version(tmp_path):
    log = tmp_path / "log.csv"
    log.write_text("round,client\n0,0\n")
    process = ft.participation.Replay(log)
    before, (name,) = key(process), hash_files({"participation": process})
    assert name == "participation.log"
    log.write_text("round,client\n0,0\n1,1\n")
    assert key(process) != before


@dataclasses.dataclass(frozen=True)
class Mine:
    thing: object = None


def test_only_what_cannot_change_unseen_outlives_a_session():
    assert not is_changeable(ft.problems.Quadratic([[[1.0]]], [[0.0]]))
    assert not is_changeable(supervised())
    for thing in (Mine(), supervised(loss=mae), supervised(model=nn.Linear(1, 1))):
        assert is_changeable(thing)


def test_a_session_computes_once_and_continues_in_inner_ones():
    computed = []
    with session() as outer:
        for _ in range(2):
            with session() as inner:
                assert inner is outer
                inner.once("a", lambda: computed.append(1))
    with session() as later:
        later.once("a", lambda: computed.append(2))
    assert computed == [1, 2]
