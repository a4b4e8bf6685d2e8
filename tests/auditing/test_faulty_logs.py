"""Logs with small faults: what changes the meaning of the others' rows is refused or said."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.auditing.logs import error_of, list_entries

import fedtide as ft
from fedtide.auditing import ClientTable
from fedtide.auditing.log.reader import read_participation_log as read
from fedtide.flower.ledger.ledger import Entry, Ledger
from fedtide.population import Population

START = datetime(2026, 3, 28, 12, tzinfo=UTC)
HOUR = 3600


def draw_hours(rounds: int = 400, clients: int = 30) -> pl.DataFrame:
    """Return hourly rounds in Unix seconds, in which each client takes part with probability .4."""
    present = np.random.default_rng(7).random((rounds, clients)) < 0.4
    hours, ids = np.nonzero(present)
    times = int(START.timestamp()) + HOUR * hours
    return pl.DataFrame({"round": hours, "time": times, "client": ids})


HOURS = draw_hours()


def test_hourly_rounds_without_a_fault_are_read() -> None:
    log = read(HOURS.drop("round"), round_seconds=HOUR)
    assert (log.length, log.size) == (400, 30)


@pytest.mark.parametrize("missing", [0, -1, 1])
@pytest.mark.parametrize("seconds", [HOUR, 86400, 7 * 86400])
def test_a_time_that_stands_for_a_missing_one_makes_no_empty_rounds(
    missing: int, seconds: int
) -> None:
    times = pl.when(pl.col("round") == 17).then(missing).otherwise("time").alias("time")
    sentence = error_of(HOURS.select(times, "client"), round_seconds=seconds)
    assert sentence.startswith("time: ")
    assert "--columns" not in sentence
    dates = pl.from_epoch("time").alias("time")
    assert error_of(HOURS.select(times, "client").with_columns(dates), round_seconds=seconds) == (
        sentence
    )


def test_a_time_far_from_the_others_makes_no_empty_rounds() -> None:
    """One row is dated to 2066; the hint about a column of round numbers would be wrong."""
    far = pl.DataFrame({"time": [int(START.timestamp()) + 40 * 365 * 86400], "client": [3]})
    for rows in (HOURS, HOURS.filter(pl.col("client") == 3)):
        log = pl.concat([rows.select("time", pl.col("client")), far])
        sentence = error_of(log, round_seconds=HOUR)
        assert sentence.startswith("round_seconds: only ")
        assert "2026-03-28T12:00:00Z to 2066-" in sentence
        assert "--columns" not in sentence


@pytest.mark.parametrize("factor", [1000, 10**6, 10**9])
def test_times_in_two_units_are_refused(factor: int) -> None:
    unit = pl.when(pl.col("round") % 2 == 1).then(factor).otherwise(1)
    mixed = HOURS.select((pl.col("time") * unit).alias("time"), "client")
    assert "not in the same unit" in error_of(mixed, round_seconds=HOUR)


@pytest.mark.parametrize("place", [5, 6, 7])
@pytest.mark.parametrize(
    ("early", "late", "words"),
    [
        (1_777_600_000, 1_777_600_000_000, "same unit|numbers of milliseconds"),
        ("2026-03-28T12:00:00+02:00", "2026-03-28T13:00:00", "zone"),
        ("2026-03-28T12:00:00", "2026-03-28T13:00:00Z", "zone"),
    ],
)
def test_unit_and_zone_are_those_of_the_log_not_of_a_batch(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: int,
    early: object,
    late: object,
    words: str,
) -> None:
    monkeypatch.setattr("fedtide.auditing.log.table_source._JSON_ROWS", 6)
    rows = [{"time": early if i < place else late, "client": f"c{i}"} for i in range(12)]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, rows)))
    sentence = error_of(tmp_path / "log.jsonl", round_seconds=HOUR)
    assert sentence.startswith("time: ")
    assert any(word in sentence for word in words.split("|"))


@pytest.mark.parametrize("written", ["{}+02", "{}+0200", "{} +02:00", "{},250+02:00", "{}.250 +02"])
def test_iso_strings_with_a_zone_are_read_as_databases_write_them(written: str) -> None:
    check_times(written, timedelta(hours=2))


@pytest.mark.parametrize("written", ["{} UTC", "{}Z", "{} GMT", "{},123", "{}", "{},123 UTC"])
def test_iso_strings_in_utc_are_read_as_databases_and_loggers_write_them(written: str) -> None:
    check_times(written, timedelta(0))


def check_times(written: str, ahead: timedelta) -> None:
    """Rounds of an hour that begin on the hour in UTC are those of these local times."""
    hours = [0, 0, 1, 3, 25]
    for middle in (" ", "T"):
        times = [
            written.format(
                (START + ahead + timedelta(hours=h)).strftime(f"%Y-%m-%d{middle}%H:%M:%S")
            )
            for h in hours
        ]
        log = read(pl.DataFrame({"time": times, "client": list("abcde")}), round_seconds=HOUR)
        assert list_entries(log) == list(zip(hours, "abcde", strict=True))
        assert any("begins at 2026-03-28T12:00:00Z" in note for note in log.notes)


@pytest.mark.parametrize(
    "wrong", ["2026-13-45", "2026-02-30 12:00:00", "28.03.2026", "01/05/2026", "soon"]
)
def test_the_first_time_that_is_none_is_quoted(wrong: str) -> None:
    times = ["2026-03-28 12:00:00"] * 9 + [wrong, "2026-03-28 13:00:00", "later"]
    rows = pl.DataFrame({"time": times, "client": range(12)})
    assert error_of(rows, round_seconds=HOUR).startswith(f"time: {wrong!r} is not a time")


def test_dates_as_numbers_are_no_seconds() -> None:
    dates = [20260428 + i for i in range(3)] + [20260501 + i for i in range(9)]
    for column in (dates, [str(date) for date in dates]):
        rows = pl.DataFrame({"time": column, "client": [i % 3 for i in range(12)]})
        sentence = error_of(rows, round_seconds=86400)
        assert sentence.startswith("time: 20260428 looks like a date")
        assert "2026-04-28" in sentence
    seconds = pl.DataFrame({"time": [20_260_428, 20_260_478, 20_260_528], "client": [0, 1, 2]})
    assert read(seconds, round_seconds=10).length == 11


@pytest.mark.parametrize("parts", [12, 52])
def test_months_and_weeks_as_numbers_are_no_rounds(parts: int) -> None:
    """Their numbers jump at the end of a year, which would be empty rounds, and a cycle."""
    numbers = [year * 100 + part for year in (2025, 2026) for part in range(1, parts + 1)]
    rows = pl.DataFrame({"round": numbers, "client": [i % 3 for i in range(2 * parts)]})
    sentence = error_of(rows)
    assert sentence.startswith(f"round: {202500 + parts} and then 202601 look like years with a")
    assert read(rows, round_step=1).length == 101 + parts - 1
    assert read(rows.head(parts)).length == parts
    assert read(rows.with_columns(round=pl.arange(202550, 202550 + len(rows)))).length == len(rows)


COHORTS = [["ann", "bob"], ["bob"], ["ann", "eve", "joe"], ["kim", "leo"], ["eve", "kim"]]


def write_lists(path: Path, name: str, cells: list[str], more: list[str] | None = None) -> Path:
    rounds = pl.DataFrame({"round": range(len(cells)), name: cells})
    if more is not None:
        rounds = pl.concat([rounds, pl.DataFrame({"round": range(len(more)), name: more})])
    rounds.write_csv(path)
    return path


@pytest.mark.parametrize("name", ["client", "client_id", "clients"])
@pytest.mark.parametrize("write", [json.dumps, str])
def test_lists_are_no_names_where_a_round_is_written_twice(
    tmp_path: Path, name: str, write: Any
) -> None:
    cells = [write(cohort) for cohort in COHORTS]
    path = write_lists(tmp_path / "log.csv", name, cells, cells[:1])
    assert error_of(path).startswith("client: 'ann' appears twice in round 0")


def test_lists_may_have_a_row_for_each_stage(tmp_path: Path) -> None:
    rows = [(t, "selected", json.dumps([*cohort, "zoe"])) for t, cohort in enumerate(COHORTS)]
    rows += [(t, "used", json.dumps(cohort)) for t, cohort in enumerate(COHORTS)]
    frame = pl.DataFrame(rows, schema=["round", "stage", "client_id"], orient="row")
    frame.write_csv(tmp_path / "log.csv")
    for source in (frame, tmp_path / "log.csv"):
        log = read(source)
        assert list_entries(log) == sorted((t, n) for t, names in enumerate(COHORTS) for n in names)
        assert log.selected is not None
        assert list_entries(log.selected) == sorted(
            (t, n) for t, names in enumerate(COHORTS) for n in [*names, "zoe"]
        )


def test_lists_separated_by_semicolons_are_no_names_where_rounds_have_two_rows(
    tmp_path: Path,
) -> None:
    cells = [";".join(cohort) for cohort in COHORTS]
    path = write_lists(tmp_path / "log.csv", "client_id", cells, ["bob;leo"])
    sentence = error_of(path)
    assert sentence.startswith("client: most ids contain semicolons")
    assert "--columns client=client_id" in sentence
    names = read(path, columns={"client": "client_id"}).names.to_list()
    assert names == sorted({*cells, "bob;leo"})


def test_a_log_of_lists_stays_one_where_a_batch_repeats_a_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedtide.auditing.log.table_source._JSON_ROWS", 5)
    rows = [{"round": t, "client": ";".join(cohort)} for t, cohort in enumerate(COHORTS)]
    rows += [{"round": 5, "client": cohort} for cohort in ("ann;bob", "eve", "joe")]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, rows)))
    log = read(tmp_path / "log.jsonl")
    expected = [*COHORTS, ["ann", "bob", "eve", "joe"]]
    assert list_entries(log) == sorted((t, n) for t, names in enumerate(expected) for n in names)


@pytest.mark.parametrize("name", ["client", "clients"])
@pytest.mark.parametrize("write", [tuple, set, list])
def test_lists_as_python_prints_them(tmp_path: Path, name: str, write: Any) -> None:
    cohorts = [[0, 1], [2], [0, 2, 5], [1, 5]]
    path = write_lists(tmp_path / "log.csv", name, [str(write(cohort)) for cohort in cohorts])
    assert list_entries(read(path)) == [(t, n) for t, ids in enumerate(cohorts) for n in ids]


def test_numbers_separated_by_blanks_are_several_clients(tmp_path: Path) -> None:
    path = write_lists(tmp_path / "log.csv", "clients", ["0 1 2", "1  7", "2"])
    assert list_entries(read(path)) == [(0, 0), (0, 1), (0, 2), (1, 1), (1, 7), (2, 2)]
    path = write_lists(tmp_path / "log.csv", "clients", ["[0 1\n 2]", "[ 1  7]", "[2]"])  # NumPy's
    assert list_entries(read(path)) == [(0, 0), (0, 1), (0, 2), (1, 1), (1, 7), (2, 2)]
    path = write_lists(tmp_path / "log.csv", "clients", ["['a' 'b\\'s']", "['a']", "['a'\n 'c']"])
    assert list_entries(read(path)) == [(0, "a"), (0, "b's"), (1, "a"), (2, "a"), (2, "c")]
    path = write_lists(tmp_path / "log.csv", "clients", ["site 1,site 2", "site 1", "site 2"])
    assert list_entries(read(path)) == [(0, "site 1"), (0, "site 2"), (1, "site 1"), (2, "site 2")]


@pytest.mark.parametrize(
    "cell", ["(ann, bob)", "{ann,bob}", "[0 1 a]", "[0 1", "{'a': 1}", "(0, 1"]
)
def test_brackets_that_hold_no_list_are_no_names(tmp_path: Path, cell: str) -> None:
    path = write_lists(tmp_path / "log.csv", "clients", ["ann", cell, "bob"])
    assert error_of(path).startswith(f"client: {cell!r} is not a list of clients")


def test_a_frame_of_many_chunks_is_one_batch() -> None:
    rows = [(t, name) for t in range(3) for name in ("a;b", "c", "d")]
    chunks = [pl.DataFrame([row], schema=["round", "client"], orient="row") for row in rows]
    assert list_entries(read(pl.concat(chunks, rechunk=False))) == rows


@pytest.mark.parametrize("blank", ["", " ", "nan", "-", None])
def test_a_missing_stage_is_not_taken_for_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blank: str | None
) -> None:
    monkeypatch.setattr("fedtide.auditing.log.table_source._JSON_ROWS", 3)
    stages = ["used", "used ", "selected", "used"] * 2
    rows = [{"round": t // 2, "client": t, "stage": stage} for t, stage in enumerate(stages)]
    frame = pl.DataFrame(rows)
    assert read(frame).counts.tolist() == [1, 1, 0, 1] * 2
    some = frame.with_columns(
        stage=pl.when(pl.col("stage") == "selected").then(pl.lit(blank)).otherwise("stage")
    )
    some.write_csv(tmp_path / "log.csv")
    some.write_ndjson(tmp_path / "log.jsonl")
    for source in (some, tmp_path / "log.csv", tmp_path / "log.jsonl"):
        assert error_of(source).startswith("stage: 2 of 8 rows have no stage, row 3 first; ")
    empty = frame.with_columns(stage=pl.lit(blank, pl.String))
    empty.write_csv(tmp_path / "log.csv")
    for source in (empty, tmp_path / "log.csv"):
        assert read(source).counts.tolist() == [1] * 8
        assert read(source).selected is None


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_blanks_around_an_id_make_no_other_client(tmp_path: Path, suffix: str) -> None:
    rows = [(t, f"{' ' * (t % 2)}c{n}{' ' * (t % 3)}") for t in range(6) for n in range(10)]
    frame = pl.DataFrame(rows, schema=["round", "client"], orient="row")
    path = tmp_path / f"log{suffix}"
    {".csv": frame.write_csv, ".jsonl": frame.write_ndjson, ".parquet": frame.write_parquet}[
        suffix
    ](path)
    for source in (path, frame, frame.with_columns(pl.col("client").cast(pl.Categorical))):
        assert read(source).names.to_list() == [f"c{n}" for n in range(10)]


def test_numbers_with_blanks_are_the_clients_of_the_roster(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("round, client\n0, 7\n1,7 \n1, 8\n")
    (tmp_path / "roster.csv").write_text("client, region\n7, a\n8, b\n9, b\n")
    assert read(tmp_path / "log.csv").names.to_list() == [7, 8]
    for lines in ("client\n7\n8\n9\n", "client\n 7\n8 \n9\n"):
        (tmp_path / "roster.csv").write_text(lines)
        roster = ClientTable.from_file(tmp_path / "roster.csv")
        assert read(tmp_path / "log.csv", roster=roster).counts.tolist() == [2, 1, 0]


@pytest.mark.parametrize("word", ["nan", "NaN", " ", "NA", "null", "None", "-", "n/a"])
def test_a_word_for_a_missing_value_is_no_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    monkeypatch.setattr("fedtide.auditing.log.table_source._JSON_ROWS", 3)
    frame = pl.DataFrame({"round": [0, 0, 1, 1, 2], "client": ["a", "b", "a", "b", word]})
    frame.write_csv(tmp_path / "log.csv")
    frame.write_ndjson(tmp_path / "log.jsonl")
    for source in (frame, tmp_path / "log.csv", tmp_path / "log.jsonl"):
        assert error_of(source).startswith(f"client: row 5 has the client {word!r}, which stands")
    lists = pl.DataFrame({"round": [0, 1], "clients": [["a", "b"], ["a", word]]})
    assert error_of(lists).startswith(f"client: a list has the client {word!r}, which stands")
    nothing = pl.DataFrame({"round": [0, 1], "clients": [["a", "b"], ["a", None]]})
    assert error_of(nothing).startswith("client: a list has no client")


def test_names_in_a_ledger_are_exact(tmp_path: Path) -> None:
    ledger = Ledger(url := f"sqlite:///{tmp_path / 'ledger.db'}")
    for t, name in enumerate(["none", " ann", "ann"]):
        ledger.commit(t, [Entry(name, "used", 1.0)], time=0.0)
    ledger.close()
    assert sorted(read(url).names.to_list()) == [" ann", "ann", "none"]


def test_ids_that_differ_by_a_decimal_are_refused(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("round,client\n0,1\n1,1.0\n2,2\n")
    assert error_of(tmp_path / "log.csv").startswith(
        "client: the log has the clients '1' and '1.0'"
    )


def test_categories_without_a_row_are_no_clients(tmp_path: Path) -> None:
    kind = pl.Enum(["-", "ann", "bob", "eve"])
    frame = pl.DataFrame({"round": [0, 1, 1], "client": ["ann", "ann", "eve"]})
    frame = frame.with_columns(pl.col("client").cast(kind))
    assert read(frame).names.to_list() == ["ann", "eve"]


def draw_counts(name: str, rounds: int = 40) -> pl.DataFrame:
    rows = [(t, n, 10 * n + 10) for t in range(rounds) for n in range(8) if (t * n) % 3 != 1]
    return pl.DataFrame(rows, schema=["round", "client", name], orient="row")


def drop_first(rows: pl.DataFrame, name: str, count: int) -> pl.DataFrame:
    """Return the rows without the first `count` numbers of a column."""
    return rows.with_columns(
        pl.when(pl.int_range(pl.len()) < count).then(None).otherwise(name).alias(name)
    )


def test_a_missing_weight_that_changes_the_weights_is_said() -> None:
    rows = draw_counts("weight")
    whole = read(rows)
    assert whole.weights is not None
    assert not any("none" in note for note in whole.notes)
    for count, verb in ((1, "has"), (5, "have")):
        log = read(drop_first(rows, "weight", count))
        assert log.weights is None
        assert f"the weights are not used: {count} of {len(rows)} used rows {verb} none" in (
            log.notes
        )
    none = read(rows.with_columns(pl.lit(None, pl.Int64).alias("weight")))
    assert not any("none" in note for note in none.notes)


@pytest.mark.parametrize(("count", "verb"), [(1, "has"), (5, "have")])
def test_a_missing_sample_count_is_the_mean_of_the_client(count: int, verb: str) -> None:
    """Else one client could decide, with one unreadable number, that no counts are used."""
    rows = draw_counts("samples")
    whole, log = read(rows), read(drop_first(rows, "samples", count))
    np.testing.assert_array_equal(log.weights, whole.weights)
    np.testing.assert_array_equal(log.samples, whole.samples)
    words = f"{count} of {len(rows)} used rows {verb} no sample count: the mean count of the same"
    assert [note for note in log.notes if words in note] == list(log.notes)
    assert whole.notes == ()


def test_missing_sample_counts_are_not_filled_in_beside_weights() -> None:
    rows = draw_counts("samples").with_columns(weight=0.25)
    assert read(drop_first(rows, "samples", 1)).notes == read(rows).notes


def test_sample_counts_are_not_used_if_a_client_has_none() -> None:
    rows = draw_counts("samples")
    own = pl.col("client") == 2
    log = read(rows.with_columns(samples=pl.when(own).then(None).otherwise("samples")))
    count = len(rows.filter(own))
    assert log.weights is None
    note = f"the sample counts are not used as weights: {count} of {len(rows)} used rows have none"
    assert log.notes == (note,)
    none = read(rows.with_columns(pl.lit(None, pl.Int64).alias("samples")))
    assert none.weights is None
    assert none.notes == ()


def test_missing_numbers_below_the_last_stage_change_nothing() -> None:
    rows = pl.DataFrame(
        {
            "round": [0, 0, 1],
            "client": ["a", "b", "a"],
            "stage": ["used", "available", "used"],
            "samples": [10, None, 10],
        }
    )
    log = read(rows)
    assert log.weights is not None
    assert log.notes == ()


def test_a_column_that_is_renamed_half_way_is_said(tmp_path: Path) -> None:
    rows = draw_counts("samples").to_dicts()
    for row in rows[:100]:
        row["num_examples"] = row.pop("samples")
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, rows)))
    notes = read(tmp_path / "log.jsonl").notes
    assert any(f"100 of {len(rows)} used rows have no sample count: " in note for note in notes)


def test_sample_counts_with_a_separator_of_thousands_are_refused(tmp_path: Path) -> None:
    """All in thousands may be meant, such as 1.5 batches, and are said."""
    text = "round;client;samples\n0;a;1.234\n0;b;{}\n1;a;2.013\n"
    (tmp_path / "log.csv").write_text(text.format(987))
    said = "some sample counts are not whole numbers, such as "
    assert error_of(tmp_path / "log.csv").startswith(f"samples: {said}1.234; write counts without")
    for meant in ("2.5", "312.5"):
        (tmp_path / "log.csv").write_text(text.format(meant))
        assert any(note.startswith(said) for note in read(tmp_path / "log.csv").notes)
    assert not any("whole" in note for note in read(draw_counts("samples")).notes)


def test_clients_that_are_objects_are_refused_with_their_fields(tmp_path: Path) -> None:
    rows = [{"round": t, "client": {"id": "a", "region": "eu"}} for t in range(3)]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, rows)))
    message = error_of(tmp_path / "log.jsonl")
    assert message.startswith("client: each value is an object with the fields 'id', 'region'; ")


class Exported:
    """A table of another library: all that is known of it is that Arrow can read it."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def test_tables_of_other_libraries_are_logs_and_rosters() -> None:
    columns = {"round": [0, 0, 1], "client": ["a", "b", "a"], "samples": [1.0, float("nan"), 3.0]}
    table = pa.table(columns)
    roster = pa.table({"client": ["a", "b", "c"]})
    for log in (table, Exported(table)):
        read_log = read(log)
        assert list_entries(read_log) == [(0, "a"), (0, "b"), (1, "a")]
        assert any("1 of 3 used rows has none" in note for note in read_log.notes)
        assert ft.audit(log, roster=Exported(roster)).log.size == 3
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(columns)
    assert ft.audit(frame, roster=pandas.DataFrame({"client": ["a", "b", "c"]})).log.size == 3
    assert any("1 of 3 used rows has none" in note for note in read(frame).notes)
    mixed = pandas.DataFrame({"round": [0, 1], "client": ["a", 1]})
    assert error_of(mixed).startswith("log: Polars cannot read this pandas.DataFrame (")


def test_a_column_called_like_an_attribute_of_a_result_is_an_ordinary_column() -> None:
    pandas = pytest.importorskip("pandas")
    columns = {"round": [0, 1, 1], "client": ["a", "a", "b"], "participation": [0.5, 0.5, 0.5]}
    assert ft.audit(pandas.DataFrame(columns)).log.size == 2


@pytest.mark.parametrize("source", [None, 3, {"round": [0, 1]}, [0], np.zeros((2, 2))])
def test_objects_that_are_no_table_are_refused(source: Any) -> None:
    sentence = error_of(source)
    assert sentence.startswith("log: ")
    assert "is not a table" in sentence


def test_numbers_of_unusual_width_are_read_or_refused_in_a_sentence(tmp_path: Path) -> None:
    wide = pl.DataFrame({"round": pl.Series([0, 1], dtype=pl.Int128), "client": [1, 2]})
    assert error_of(wide).startswith("log: a column has a type that Arrow does not know ('round': ")
    for column in ("round", "time", "samples"):
        columns = {"round": [0, 1, 1], "client": [1, 2, 3], "samples": [4, 5, 6]}
        if column == "time":
            columns["time"] = columns.pop("round")
        narrow = {column: pa.array(np.array(columns[column], dtype=np.float16))}
        pq.write_table(pa.table(columns | narrow), tmp_path / "log.parquet")
        log = read(tmp_path / "log.parquet", round_seconds=1 if column == "time" else None)
        assert list_entries(log) == [(0, 1), (1, 2), (1, 3)]
        assert log.samples is not None
        assert log.samples.tolist() == [4, 5, 6]


@pytest.mark.skipif(not hasattr(pa, "uuid"), reason="this PyArrow has no such type")
@pytest.mark.parametrize("column", ["round", "client", "stage", "samples"])
def test_columns_of_rare_types_are_refused_in_a_sentence(tmp_path: Path, column: str) -> None:
    columns = {"round": [0, 1], "client": ["a", "b"], "stage": ["used"] * 2}
    rare = {column: pa.array([bytes(16), bytes(range(16))], pa.uuid())}
    pq.write_table(pa.table(columns | rare), tmp_path / "log.parquet")
    assert "uuid" in error_of(tmp_path / "log.parquet")


def test_rounds_in_which_hardly_anybody_was_used_are_no_timestamps() -> None:
    rows = pl.DataFrame({"round": range(15_000), "client": [t % 3 for t in range(15_000)]})
    stage = pl.when(pl.col("round") < 10).then(pl.lit("used")).otherwise(pl.lit("available"))
    rows = rows.with_columns(stage=stage)
    timed = rows.select(pl.col("round").alias("time") * HOUR, "client", "stage")
    for log in (read(rows), read(timed, round_seconds=HOUR)):
        assert (log.length, int(log.counts.sum())) == (15_000, 10)


def test_whole_numbers_that_a_database_gives_as_decimals() -> None:
    kinds = {"round": pl.Decimal(38, 0), "client": pl.Decimal(38, 2), "weight": pl.Decimal(9, 2)}
    columns = {"round": [0, 0, 1], "client": [7, 9, 7], "weight": [0.5, 0.25, 1.0]}
    log = read(pl.DataFrame(columns).cast(kinds))
    assert list_entries(log) == [(0, 7), (0, 9), (1, 7)]
    assert log.weights.tolist() == [0.5, 0.25, 1.0]
    replayed = ft.participation.Replay(pl.DataFrame(columns | {"client": [1, 0, 1]}).cast(kinds))
    running = replayed.begin(Population(clients=2), seed=0)
    assert [running.round(t).clients.tolist() for t in range(2)] == [[0, 1], [1]]
    halves = pl.DataFrame(columns).cast(kinds).with_columns(pl.col("round") + 0.5)
    assert error_of(halves).startswith("round: 0.5 is not a round")
    assert error_of(halves.rename({"round": "client", "client": "round"})).startswith("client: ")


def test_dates_divided_into_hours_are_said() -> None:
    days = pl.from_epoch(pl.col("time") // 86400 * 86400)
    log = read(HOURS.select(days, "client").unique(), round_seconds=HOUR)
    assert any("rounds of 86400 s would have no empty ones" in note for note in log.notes)
    assert not any("rounds of" in note for note in read(HOURS, round_seconds=HOUR).notes)


def test_a_row_for_every_client_in_every_round_is_said() -> None:
    """The table of a system with a column for each client, after `unpivot`."""
    there = np.random.default_rng(9).random((20, 9)) < 0.5
    wide = pl.DataFrame(there.astype(int), schema=[f"site-{n}" for n in range(9)])
    wide = wide.with_row_index("round")
    assert error_of(wide).endswith(
        "if each client has a column, turn the columns into rows with unpivot"
    )
    rows = wide.unpivot(index="round", variable_name="client")
    said = "every client has a row in every round"
    assert any(note.startswith(said) for note in read(rows).notes)
    assert not any(note.startswith(said) for note in read(rows.drop("value")).notes)
    log = read(rows.filter(pl.col("value") == 1))
    assert len(log.clients) == there.sum()
    assert not any(note.startswith(said) for note in log.notes)


def test_ids_that_are_bytes_are_refused_with_the_remedy() -> None:
    rows = pl.DataFrame({"round": [0, 1], "client": [b"0123456789abcdef"] * 2})
    assert error_of(rows).endswith("such as UUIDs as text")


@pytest.mark.parametrize("count", ["2,465", "12'465", "1 002 465"])
def test_a_separator_of_thousands_in_text_is_named(count: str) -> None:
    rows = pl.DataFrame({"round": [0, 1], "client": ["a", "b"], "samples": ["12", count]})
    assert error_of(rows).endswith("give numbers without a thousands separator")
