"""Reading logs and rosters: what is accepted, and one-sentence errors for the rest."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

import fedtide as ft
from fedtide.auditing import ClientTable
from fedtide.auditing.log.reader import read_participation_log
from fedtide.errors import InvalidInputError
from fedtide.flower.ledger.ledger import Entry, Ledger

GOOD = pl.DataFrame({"round": [0, 0, 1, 3], "client": [0, 1, 0, 2]})
ROSTER = pl.DataFrame({"client": [0, 1, 2], "region": ["a", "b", "b"]})


def error_of(log: object, **options: object) -> str:
    with pytest.raises(InvalidInputError) as caught:
        ft.audit(log, **options)  # type: ignore[arg-type]
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


def check_error(sentence: str, field: str, *words: str) -> None:
    """The error names the field first, contains the words and gives a hint."""
    assert sentence.startswith(f"{field}: "), sentence
    assert "; " in sentence
    assert all(word in sentence for word in words), sentence


def test_client_outside_the_federation_is_refused() -> None:
    check_error(error_of(GOOD, clients=2), "client", "clients 0 to 1", "roster= or --roster")
    names = GOOD.with_columns(pl.col("client").cast(pl.String))
    check_error(error_of(names, clients=2), "clients", "3")
    check_error(error_of(GOOD, roster=ROSTER.head(2)), "client", "of the roster")
    five = pl.DataFrame({"round": [0] * 5, "client": ["ann", "v", "w", "x", "y"]})
    roster = pl.DataFrame({"client": ["ann", "bob"]})
    check_error(error_of(five, roster=roster), "client", "'v', 'w', 'x' and 1 more", "2 clients")


@pytest.mark.parametrize(("name", "separator"), [("client", ","), (" Client ", ";")])
def test_ids_of_a_roster_keep_their_zeros_whatever_their_column_is_called(
    tmp_path: Path, name: str, separator: str
) -> None:
    (tmp_path / "roster.csv").write_text(f"{name}{separator}g\n007{separator}a\n1e5{separator}b\n")
    (tmp_path / "log.csv").write_text("round,client\n0,007\n1,1e5\n")
    roster = ClientTable.from_file(tmp_path / "roster.csv")
    log = read_participation_log(tmp_path / "log.csv", roster=roster)
    assert log.names.to_list() == ["007", "1e5"]


def test_invalid_rosters_are_refused() -> None:
    twice = pl.DataFrame({"client": [0, 0]})
    check_error(error_of(GOOD, roster=twice), "roster", "twice")
    check_error(error_of(GOOD, roster=twice.head(0)), "roster", "empty")
    check_error(error_of(GOOD, roster=pl.DataFrame({"id": [0]})), "roster", "'client'")
    check_error(error_of(GOOD, roster=ROSTER, groups="regoin"), "groups", "'region'")
    for weights, found in (([1, -1, 1], "-1"), ([1, None, 1], "none"), (["1", "a", "1"], "'a'")):
        roster = ROSTER.with_columns(weight=pl.Series(weights))
        who = repr(ROSTER["client"][1])
        check_error(error_of(GOOD, roster=roster), "roster", f"of client {who} is {found}")
    nobody = ROSTER.with_columns(weight=pl.Series([0, 0, 0]))
    check_error(error_of(GOOD, roster=nobody), "roster", "all weights are 0")
    check_error(error_of(GOOD, groups="region"), "groups", "--roster")
    check_error(error_of(GOOD, roster=ROSTER, clients=3), "clients", "roster")


def test_ledger_of_a_deployment_is_read(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    assert "ledger.db" in error_of(url)
    ledger = Ledger(url)
    ledger.commit(0, [], time=0.0)
    ledger.commit(1, [Entry("ann", "used", 0.75), Entry("bob", "selected")], time=1.0)
    ledger.commit(2, [Entry("ann", "used", 1.0), Entry("cid", "used", 0.25)], time=2.0)
    ledger.close()
    result = ft.audit(url)
    assert (result.log.first_round, result.log.length, len(result.coverage.never)) == (0, 3, 1)
    assert result.objectives.given is not None
    assert result.objectives.given.weights.tolist() == [0.875, 0.0, 0.125]
    assert "'x'" in error_of(f"{url}#x")


def test_the_name_of_a_client_in_a_ledger_is_never_a_list(tmp_path: Path) -> None:
    ledger = Ledger(url := f"sqlite:///{tmp_path / 'ledger.db'}")
    for t, name in enumerate(["ann;bob", "cid", "[1, 2]"]):
        ledger.commit(t, [Entry(name, "used", 1.0)], time=0.0)
    assert sorted(ft.audit(url).log.names.to_list()) == ["[1, 2]", "ann;bob", "cid"]


def test_run_folder_gives_clients_and_empty_rounds(tmp_path: Path) -> None:
    ft.simulate(
        problem=ft.problems.Quadratic(np.ones((6, 1, 1)), np.zeros((6, 1))),
        participation=ft.participation.Bernoulli([0.0, 0.1, 0.1, 0.1, 0.1, 0.1]),
        algorithm=ft.algorithms.FedAvg(),
        local=ft.LocalTraining(steps=1, lr=0.1),
        rounds=30,
        out=tmp_path / "run",
        trainer="reference",
    )
    result = ft.audit(tmp_path / "run")
    assert (result.log.size, result.log.length) == (6, 30)
    assert 0 in result.coverage.never
    check_error(error_of(tmp_path), "log", "participation.parquet")


COUNTED = pl.DataFrame(
    {"round": [0, 0, 1, 1], "client": ["ann", "bob"] * 2, "samples": [10, 30, 10, 30]}
)
SHARES = pl.DataFrame({"client": ["ann", "bob", "cid"], "num_examples": [99, 30, 60]})


def test_sample_counts_of_a_roster_are_those_of_clients_without_one_in_the_log() -> None:
    """The influence is (1/4, 3/4, 0); wanted is (1, 3, 6) / 10, so the L1 skew is 1.2."""
    result = ft.audit(COUNTED, roster=SHARES)
    assert result.log.samples is not None
    assert result.log.samples.tolist() == [10, 30, 60]
    assert result.objectives.wanted.tolist() == pytest.approx([0.1, 0.3, 0.6])
    assert result.objectives.in_force.l1_skew == pytest.approx(1.2)
    assert result.groups == []
    assert result.log.notes == (
        "the roster gives the sample count of 1 client without one in the log",
    )
    some = ft.audit(COUNTED, roster=SHARES.with_columns(num_examples=pl.Series([1, 2, None])))
    assert some.log.samples is not None
    np.testing.assert_array_equal(some.log.samples, [10, 30, np.nan])
    assert some.log.notes == (
        "the sample counts of the roster are not used: the log has those of its clients",
        "1 client has no sample count: where clients weigh by samples, the mean of the others, "
        "20.0, stands in for it",
    )
    assert some.objectives.wanted.tolist() == pytest.approx([1 / 6, 1 / 2, 1 / 3])


@pytest.mark.parametrize("stages", [False, True])
def test_earlier_rounds_are_left_out_but_not_their_clients(stages: bool) -> None:
    present = np.random.default_rng(2).random((40, 9)) < np.linspace(0.1, 0.8, 9)
    present[15:, 8] = False  # comes only before
    present[:15, 0] = False
    rounds, clients = np.nonzero(present)
    frame = pl.DataFrame({"round": rounds, "client": clients})
    if stages:
        frame = frame.with_columns(stage=pl.Series(["used", "selected"] * 500)[: len(frame)])
    later = ft.audit(frame, clients=9, from_round=15).to_dict()
    alone = ft.audit(frame.filter(pl.col("round") >= 15), clients=9).to_dict()
    assert later.pop("notes") == ["the rounds before round 15 are left out", *alone.pop("notes")]
    assert later.pop("summary")["READ"].startswith("the rounds before round 15 are left out")
    del alone["summary"]
    assert later == alone
    assert ft.audit(frame, from_round=15).log.size == 9
    with pytest.raises(InvalidInputError, match=r"^from_round: no row is of round 40 or later; "):
        read_participation_log(frame, from_round=40)
    with pytest.raises(InvalidInputError, match=r"^from_round: -1 "):
        read_participation_log(frame, from_round=-1)


def test_an_audit_of_a_run_says_whose_method_it_does_not_judge(tmp_path: Path) -> None:
    problem = ft.problems.Quadratic(matrices=[[[1.0]]] * 3, centers=[[0.0], [1.0], [2.0]])
    fields = {"participation": "full", "local": {"steps": 1}, "rounds": 9}
    for method in ("fedavg", "fedau"):
        ft.simulate(problem=problem, algorithm=method, out=tmp_path / method, **fields)  # type: ignore[call-overload]
    said = "the run's method is fedau; the audit judges averaging"
    assert said in ft.audit(tmp_path / "fedau").log.notes
    assert not any("method" in note for note in ft.audit(tmp_path / "fedavg").log.notes)
    (tmp_path / "fedau" / "experiment.yaml").write_text("algorithm: [")
    assert said not in ft.audit(tmp_path / "fedau").log.notes
