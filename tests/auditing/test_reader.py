"""Reading logs and rosters: what is accepted, and one-sentence errors for the rest."""

import contextlib
import gzip
import json
from datetime import date, time, timedelta
from decimal import Decimal
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


def test_rows_in_any_order_and_missing_rounds_are_accepted(tmp_path: Path) -> None:
    GOOD.sample(fraction=1.0, shuffle=True, seed=1).write_parquet(tmp_path / "log.parquet")
    result = ft.audit(tmp_path / "log.parquet")
    assert (result.log.length, result.coverage.empty_rounds) == (4, 1)
    assert result.log.counts.tolist() == [2, 1, 1]


def test_client_twice_in_a_round_is_refused(tmp_path: Path) -> None:
    rows = pl.DataFrame({"round": [5, 6, 6], "client": [1, 7, 7]})
    check_error(error_of(rows), "client", "7", "round 6")
    rows.write_parquet(tmp_path / "log.parquet")
    check_error(error_of(tmp_path / "log.parquet"), "client", "7", "round 6")


def test_client_outside_the_federation_is_refused() -> None:
    check_error(error_of(GOOD, clients=2), "client", "clients 0 to 1", "roster= or --roster")
    names = GOOD.with_columns(pl.col("client").cast(pl.String))
    check_error(error_of(names, clients=2), "clients", "3")
    check_error(error_of(GOOD, roster=ROSTER.head(2)), "client", "of the roster")
    five = pl.DataFrame({"round": [0] * 5, "client": ["ann", "v", "w", "x", "y"]})
    roster = pl.DataFrame({"client": ["ann", "bob"]})
    check_error(error_of(five, roster=roster), "client", "'v', 'w', 'x' and 1 more", "2 clients")


def test_log_without_participants_is_refused(tmp_path: Path) -> None:
    check_error(error_of(GOOD.with_columns(stage=pl.lit("available"))), "log", "used")
    GOOD.head(0).write_parquet(tmp_path / "log.parquet")
    (tmp_path / "log.csv").write_text("round,client\n")
    for empty in (GOOD.head(0), tmp_path / "log.parquet", tmp_path / "log.csv"):
        check_error(error_of(empty), "log", "no rows")


@pytest.mark.parametrize("url", ["https://example.org/log.csv", "s3://bucket/log.parquet"])
def test_urls_of_files_are_refused_with_the_remedy(url: str) -> None:
    check_error(error_of(url), "log", repr(url), "download it")


def test_log_of_one_round_is_refused() -> None:
    for clients in (["a"], ["a", "b"]):
        rows = pl.DataFrame({"round": [5] * len(clients), "client": clients})
        check_error(error_of(rows), "round", "round 5", "two rounds")


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_empty_and_missing_files_are_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"log{suffix}"
    path.touch()
    check_error(error_of(path), "log", "empty")
    check_error(error_of(tmp_path / f"other{suffix}"), "log", f"other{suffix}")


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_other_encodings_than_utf8_are_refused_with_the_remedy(
    tmp_path: Path, encoding: str
) -> None:
    (tmp_path / "log.csv").write_text("round,client\n0,José\n1,José\n", encoding=encoding)
    check_error(error_of(tmp_path / "log.csv"), "log", "save it as UTF-8")


def test_truncated_parquet_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    GOOD.write_parquet(path)
    path.write_bytes(path.read_bytes()[:-20])
    check_error(error_of(path), "log", "log.parquet")


def test_negative_rounds_are_refused() -> None:
    check_error(error_of(pl.DataFrame({"round": [-1], "client": [0]})), "round", "-1")


ODD_TYPES = [[1], [], {"a": 1}, [{"a": 1}], [[1]], b"x", True, Decimal("1.5"), timedelta(1)]
ODD_TYPES += [None, date(2026, 5, 1), time(1), 1.5]


@pytest.mark.parametrize("column", ["round", "time", "client", "clients", "stage", "weight"])
@pytest.mark.parametrize("value", ODD_TYPES, ids=repr)
def test_columns_of_any_type_are_read_or_refused(column: str, value: object) -> None:
    for seconds in (None, 3600.0):
        columns: dict[str, list[object]] = {"client": ["a", "b"] * 2, "stage": ["used"] * 4}
        columns |= {"time": [0, 4000, 8000, 9000]} if seconds else {"round": [0, 0, 1, 2]}
        if column == "clients":
            del columns["client"]
        for cells in ([value] * 4, [None, value] * 2):
            log = pl.DataFrame(columns | {column: pl.Series(column, cells)})
            with contextlib.suppress(InvalidInputError):
                read_participation_log(log, round_seconds=seconds)


def test_many_rounds_of_one_client_each_are_accepted(tmp_path: Path) -> None:
    """As in the logs of asynchronous training."""
    path = tmp_path / "log.csv"
    clients = np.random.default_rng(0).integers(5, size=100_000)
    pl.DataFrame({"round": np.arange(100_000), "client": clients}).write_csv(path)
    result = ft.audit(path)
    assert result.log.length == 100_000
    low, high = result.pattern.memory.interval
    assert low < 1 < high


def test_rosters_come_in_the_same_formats_as_logs(tmp_path: Path) -> None:
    roster = ROSTER.with_columns(weight=pl.Series([0.5, 0.25, 0.25]))
    (tmp_path / "roster.csv").write_text(roster.write_csv(separator=";"))
    (tmp_path / "roster.tsv.gz").write_bytes(
        gzip.compress(roster.write_csv(separator="\t").encode())
    )
    (tmp_path / "roster.json").write_text(json.dumps(roster.to_dicts()))
    (tmp_path / "roster.jsonl.gz").write_bytes(gzip.compress(roster.write_ndjson().encode()))
    for name in ("roster.csv", "roster.tsv.gz", "roster.json", "roster.jsonl.gz"):
        table = ClientTable.from_file(tmp_path / name)
        assert table.names.to_list() == [0, 1, 2]
        assert table.groups["region"].to_list() == ["a", "b", "b"]
        assert table.wanted is not None
        assert table.wanted.tolist() == [0.5, 0.25, 0.25]


@pytest.mark.parametrize("name", ["Client Name", "client_id", "Client", "cid"])
def test_a_roster_may_call_its_clients_like_a_log(name: str) -> None:
    log = read_participation_log(
        GOOD, roster=ClientTable.from_frame(ROSTER.rename({"client": name}))
    )
    assert log.names.to_list() == ROSTER["client"].to_list()
    both = ROSTER.with_columns(pl.lit("x").alias("Client"))
    assert ClientTable.from_frame(both).names.to_list() == ROSTER["client"].to_list()


@pytest.mark.parametrize("name", ["client", "client_id", " Client "])
@pytest.mark.parametrize("separator", [",", ";"])
def test_ids_of_a_roster_keep_their_zeros_whatever_their_column_is_called(
    tmp_path: Path, name: str, separator: str
) -> None:
    (tmp_path / "roster.csv").write_text(f"{name}{separator}g\n007{separator}a\n1e5{separator}b\n")
    (tmp_path / "log.csv").write_text("round,client\n0,007\n1,1e5\n")
    roster = ClientTable.from_file(tmp_path / "roster.csv")
    log = read_participation_log(tmp_path / "log.csv", roster=roster)
    assert log.names.to_list() == ["007", "1e5"]


def test_weights_of_a_roster_are_found_in_any_case() -> None:
    roster = ROSTER.with_columns(Weight=pl.Series([1e308, 1e308, 0.0]))
    table = ClientTable.from_frame(roster)
    assert table.wanted is not None
    assert table.wanted.tolist() == [0.5, 0.5, 0.0]
    assert list(table.groups) == ["region"]
    sentence = error_of(GOOD, roster=roster.with_columns(WEIGHT=1.0))
    check_error(sentence, "roster", "'Weight' and 'WEIGHT' may both be the weight")


def test_columns_of_lists_and_objects_are_no_groups(tmp_path: Path) -> None:
    rows = [{"client": n, "tags": [f"t{n % 2}"], "place": {"at": n % 2}} for n in range(3)]
    (tmp_path / "roster.json").write_text(json.dumps(rows))
    assert ClientTable.from_file(tmp_path / "roster.json").groups == {}
    sentence = error_of(GOOD, roster=tmp_path / "roster.json", groups="tags")
    check_error(sentence, "groups", "'tags' has lists or objects")


def test_ids_that_count_from_1_are_noticed() -> None:
    rows = {"round": [0, 0, 1], "client": [1, 2, 3]}
    sentence = error_of(pl.DataFrame(rows), clients=3)
    check_error(sentence, "client", "give more with clients=", "if ids count from 1")
    rows["client"] = [1, 2, 1]  # client 3 never came
    log = read_participation_log(pl.DataFrame(rows), clients=3)
    assert any("of which 0 never occurs; if they count from 1" in note for note in log.notes)
    rows["client"] = [1, 2, 0]
    assert not read_participation_log(pl.DataFrame(rows), clients=3).notes


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


def test_the_name_of_a_client_in_a_run_folder_is_never_a_list(tmp_path: Path) -> None:
    rows = {"round": [0, 1, 2], "client": ["ann;bob", "eve|joe", "[1, 2]"]}
    pl.DataFrame(rows).write_parquet(tmp_path / "participation.parquet")
    assert ft.audit(tmp_path).log.names.to_list() == sorted(rows["client"])


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


def test_negative_weights_are_refused_and_absent_ones_ignored() -> None:
    check_error(error_of(GOOD.with_columns(weight=pl.lit(-1.0))), "weight", "-1.0")
    assert ft.audit(GOOD.with_columns(weight=pl.lit(None))).objectives.given is None
    assert ft.audit(GOOD.with_columns(weight=pl.lit(0.0))).objectives.given is None


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


def test_sample_counts_of_a_roster_alone_are_wanted_weights() -> None:
    """The clients of a round count alike, (1/2, 1/2, 0); wanted is (1, 3, 6) / 10."""
    roster = SHARES.with_columns(num_examples=pl.Series(["10", "30", "60"]))
    result = ft.audit(COUNTED.drop("samples"), roster=roster)
    assert (result.wanted_source, result.objectives.given) == ("samples", None)
    assert result.objectives.plain.l1_skew == pytest.approx(1.2)
    assert "sample count of 3 clients" in result.log.notes[0]
    equal = ft.audit(COUNTED.drop("samples"), roster=roster, wanted="equal")
    assert equal.objectives.plain.l1_skew == pytest.approx(2 / 3)
    weights = roster.with_columns(weight=pl.Series([1.0, 1.0, 0.0]))
    assert ft.audit(COUNTED, roster=weights).wanted_source == "roster"


def test_columns_of_a_roster_that_are_not_read_are_listed() -> None:
    roster = pl.DataFrame(
        {
            "client": range(60),
            "region": ["north", "south"] * 30,
            "serial": [f"s{i}" for i in range(60)],
            "model": ["x"] * 60,
            "tags": [["a"]] * 60,
            "uptime": [timedelta(1), timedelta(2)] * 30,
        }
    )
    log = pl.DataFrame({"round": [0, 1], "client": [0, 1]})
    (note,) = ft.audit(log, roster=roster).log.notes
    assert note == "columns of the roster that are not read: 'serial', 'model', 'tags', 'uptime'"
    (note,) = ft.audit(log, roster=roster, groups="serial").log.notes
    assert note == "columns of the roster that are not read: 'region', 'model', 'tags', 'uptime'"
    assert ft.audit(log, roster=roster.select("client", "region")).log.notes == ()


def test_invalid_sample_counts_of_a_roster_are_refused() -> None:
    for counts, found in (([1, -1, 2], "-1"), (["1", "many", "2"], "'many'")):
        roster = SHARES.with_columns(num_examples=pl.Series(counts))
        check_error(error_of(COUNTED, roster=roster), "roster", "in 'num_examples', ", found)


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


def test_reasons_of_earlier_rounds_are_left_out() -> None:
    """As in a ledger: client 0 fails in the first rounds, and 1 later; a name is claimed once."""
    rows = []
    for t in range(20):
        for n in range(5):
            failed = n == (0 if t < 10 else 1) and t % 2 == 0
            reason = "error" if failed else None
            rows.append((t, n, "selected" if failed else "used", reason))
    rows.append((12, 5, "available", "unregistered"))
    frame = pl.DataFrame(rows, ["round", "client", "stage", "reason"], orient="row")
    later = read_participation_log(frame, clients=6, from_round=10)
    alone = read_participation_log(frame.filter(pl.col("round") >= 10), clients=6)
    assert later.refusals is not None
    assert alone.refusals is not None
    for n in range(6):
        assert later.refusals.of_client(n) == alone.refusals.of_client(n)
    assert later.refusals.of_client(1) == {"error": 5}
    assert later.available is None


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
