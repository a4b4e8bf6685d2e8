"""One log in many formats: what people have is read as it is meant, or refused with a hint."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.auditing.logs import error_of, list_entries

from fedtide.auditing import ParticipationLog
from fedtide.auditing.log.client_table import ClientTable
from fedtide.auditing.log.reader import read_participation_log as read
from fedtide.errors import InvalidInputError

FILES = Path(__file__).parent / "files"
START = datetime(2026, 5, 1, tzinfo=UTC)

Row = dict[str, Any]


def draw_rows(names: Sequence[Any], rounds: int = 9, seed: int = 0) -> list[Row]:
    """Return the rows of a log in which every round has clients, but for round 4."""
    source = Random(seed)
    return [
        {"round": t, "client": client, "weight": source.randrange(1, 9) / 8}
        for t in range(rounds)
        if t != 4
        for client in source.sample(list(names), source.randrange(1, len(names)))
    ]


NAMED = draw_rows(["ann", "bob", "eve", "01"])
NUMBERED = draw_rows([0, 1, 2, 3])


def check_same(log: ParticipationLog, rows: Sequence[Row]) -> None:
    """The log has the rounds, clients and weights of the rows."""
    assert list_entries(log) == sorted((row["round"], row["client"]) for row in rows)
    if "weight" in rows[0]:
        assert log.weights is not None
        given = {(row["round"], row["client"]): row["weight"] for row in rows}
        rounds = np.repeat(np.arange(log.length), log.cohorts) + log.first_round
        names = log.names.to_list()
        for t, n, weight in zip(rounds, log.clients, log.weights, strict=True):
            assert weight == pytest.approx(given[int(t), names[n]], rel=1e-6)


def as_delimited(separator: str, decimal: str = ".") -> Callable[[Sequence[Row]], str]:
    def write(rows: Sequence[Row]) -> str:
        text = io.StringIO()
        out = csv.writer(text, delimiter=separator)
        out.writerow(rows[0])
        for row in rows:
            cells = (str(cell) for cell in row.values())
            out.writerow(c.replace(".", decimal) for c in cells)
        return text.getvalue()

    return write


def as_lines(rows: Sequence[Row]) -> str:
    return "\n".join(map(json.dumps, rows)) + "\n"


@pytest.mark.parametrize("rows", [NAMED, NUMBERED], ids=["named", "numbered"])
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize(
    ("suffix", "write"),
    [
        (".csv", as_delimited(",")),
        (".tsv", as_delimited("\t")),
        (".csv", as_delimited("\t")),
        (".csv", as_delimited(";")),
        (".csv", as_delimited(";", decimal=",")),
        (".csv", as_delimited("|")),
        (".csv", lambda rows: "\ufeff" + as_delimited(",")(rows)),
        (".csv", lambda rows: "\n" + as_delimited(",")(rows).replace("\n", "\r\n")),
        (".jsonl", as_lines),
        (".json", as_lines),
        (".json", json.dumps),
        (".json", lambda rows: json.dumps(rows, indent=2)),
    ],
)
def test_every_text_format_says_the_same(
    tmp_path: Path,
    suffix: str,
    write: Callable[[Sequence[Row]], str],
    packed: bool,
    rows: list[Row],
) -> None:
    content = write(rows).encode()
    path = tmp_path / f"log{suffix}{'.gz' if packed else ''}"
    path.write_bytes(gzip.compress(content) if packed else content)
    check_same(read(path), rows)


def test_streamed_batches_make_one_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedtide.auditing.log.table_source._CSV_BYTES", 60)
    monkeypatch.setattr("fedtide.auditing.log.table_source._JSON_ROWS", 3)
    for suffix, write in ((".csv", as_delimited(",")), (".jsonl", as_lines)):
        (tmp_path / f"log{suffix}").write_text(write(NUMBERED))
        check_same(read(tmp_path / f"log{suffix}"), NUMBERED)


def test_columns_that_begin_late_in_json_are_refused_if_they_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedtide.auditing.log.table_source._JSON_ROWS", 2)
    rows: list[Row] = [{"round": t, "client": "a"} for t in range(5)]
    (tmp_path / "log.jsonl").write_text(as_lines([*rows[:4], rows[4] | {"loss": 0.5}]))
    check_same(read(tmp_path / "log.jsonl"), rows)
    (tmp_path / "log.jsonl").write_text(as_lines([*rows[:4], rows[4] | {"stage": "used"}]))
    assert "no row of the first 2 has 'stage'" in error_of(tmp_path / "log.jsonl")


def test_ids_are_numbers_only_if_all_rows_of_a_text_file_have_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedtide.auditing.log.table_source._CSV_BYTES", 16)
    (tmp_path / "log.csv").write_text("round,client\n0,1\n1,2\n2,3\n3,4\n4,x\n")
    assert read(tmp_path / "log.csv").names.to_list() == ["1", "2", "3", "4", "x"]


@pytest.mark.parametrize(
    ("names", "note"),
    [
        ({"round": "server_round", "client": "cid"}, "'server_round' is the round"),
        ({"round": "Server Round", "client": "Client-ID"}, "'Client-ID' is the client"),
        ({"round": "rnd", "client": "node_id"}, "'rnd' is the round, 'node_id' is the client"),
        ({"round": "currentRound", "client": "partition_id"}, "'partition_id' is the client"),
        ({"round": "round_idx", "client": "client_idx"}, "'client_idx' is the client"),  # FedML
        ({"round": "round_number", "client": "collaborator"}, "'collaborator' is the"),  # OpenFL
    ],
)
def test_common_column_names_are_recognised_and_said(names: Row, note: str) -> None:
    log = read(pl.DataFrame(NAMED).rename(names))
    check_same(log, NAMED)
    assert any(note in text for text in log.notes)


def test_categories_are_client_ids() -> None:
    frame = pl.DataFrame(NAMED)
    for kind in (pl.Categorical, pl.Enum(["01", "ann", "bob", "eve"])):
        check_same(read(frame.with_columns(pl.col("client").cast(kind))), NAMED)


def test_errors_name_the_column_as_the_log_does() -> None:
    rows = pl.DataFrame({"rnd": [0, -1], "cid": ["a", "b"]})
    assert error_of(rows).startswith("round: -1 is not a round (column 'rnd'); ")
    rows = pl.DataFrame({"round": [0, 1], "cid": ["a", None]})
    assert error_of(rows).startswith("client: row 2 has no client (column 'cid'); ")


def test_names_given_by_the_user_come_first() -> None:
    rows = pl.DataFrame(NAMED).with_columns(cid=pl.lit("x"), server_round=pl.lit(0))
    check_same(read(rows), NAMED)
    swapped = rows.rename({"client": "who"})
    log = read(swapped, columns={"client": "who"})
    check_same(log, NAMED)
    assert log.notes == ("columns that are not read: 'cid', 'server_round'",)


def test_columns_that_are_not_read_are_listed() -> None:
    rows = pl.DataFrame(NAMED).with_columns(pl.lit("failed").alias("Status"), loss=pl.lit(0.5))
    (note,) = read(rows).notes
    assert note.startswith("columns that are not read: 'Status', 'loss'; if 'Status' says who")
    (note,) = read(rows.with_columns(stage=pl.lit("used"))).notes
    assert note == "columns that are not read: 'Status', 'loss'"
    wide = pl.DataFrame(NAMED).with_columns(**{f"x{i}": pl.lit(0) for i in range(10)})
    assert read(wide).notes[0].endswith("'x7' and 2 more")


def test_ids_that_pandas_made_floating_are_whole_numbers() -> None:
    rows = {"round": [0, 0, 1], "client": [7.0, 12.0, 7.0]}
    assert read(pl.DataFrame(rows)).names.to_list() == [7, 12]
    gap = pl.DataFrame(rows | {"client": [7.0, float("nan"), 7.0]})
    assert error_of(gap).startswith("client: row 2 has no client")
    large = pl.DataFrame(rows | {"client": [2.0**53, 12.0, 7.0]})
    assert error_of(large).startswith("client: ids as large as these lose digits")
    single = large.with_columns(pl.Series("client", [2.0**24, 12.0, 7.0], pl.Float32))
    assert error_of(single).startswith("client: ids as large as these lose digits")
    parts = pl.DataFrame(rows | {"client": [7.0, 12.5, 7.0]})
    assert error_of(parts).startswith("client: ids of type double are not whole numbers (")


def test_ids_that_pandas_wrote_with_a_point_are_whole_numbers(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("round,client\n0,7.0\n0,12.0\n1,7.0\n")
    assert read(tmp_path / "log.csv").names.to_list() == [7, 12]
    (tmp_path / "roster.csv").write_text("client\n7.0\n12.0\n3.0\n")
    file = ClientTable.from_file(tmp_path / "roster.csv")
    frame = ClientTable.from_frame(pl.DataFrame({"client": [7.0, 12.0, 3.0]}))
    for roster in (file, frame):
        assert read(tmp_path / "log.csv", roster=roster).names.to_list() == [7, 12, 3]


def test_the_index_of_pandas_is_not_listed_as_a_column_that_is_not_read() -> None:
    rows = pl.DataFrame(NAMED).with_columns(pl.lit(0).alias("__index_level_0__"))
    assert read(rows.with_columns(pl.lit(0).alias("Unnamed: 0"))).notes == ()


def test_json_with_columns_instead_of_rows_says_how_to_write_rows(tmp_path: Path) -> None:
    columns = {"round": {"0": 0, "1": 1}, "client": {"0": 3, "1": 4}}
    (tmp_path / "log.json").write_text(json.dumps(columns))
    assert "one JSON object per row" in error_of(tmp_path / "log.json")


def by_round(rows: Sequence[Row], rounds: int = 9) -> list[tuple[int, list[Any]]]:
    return [(t, [row["client"] for row in rows if row["round"] == t]) for t in range(rounds)]


ROWS_ONLY = [{"round": row["round"], "client": row["client"]} for row in NAMED]


@pytest.mark.parametrize(
    ("name", "join"),
    [
        ("clients", ";".join),
        ("clients", "; ".join),
        ("client", lambda clients: ";".join([*clients, ""])),
        ("participants", ",".join),
        ("cohort", "|".join),
        ("client", json.dumps),
        ("clients", str),
    ],
)
def test_one_row_per_round_with_a_list_as_text(
    tmp_path: Path, name: str, join: Callable[[list[Any]], str]
) -> None:
    with (tmp_path / "log.csv").open("w") as file:
        out = csv.writer(file)
        out.writerow(["round", name])
        out.writerows((t, join(clients)) for t, clients in by_round(NAMED))
    log = read(tmp_path / "log.csv")
    check_same(log, ROWS_ONLY)
    assert (log.length, int(log.cohorts[4])) == (9, 0)


def test_names_of_clients_may_look_like_lists() -> None:
    rows = [{"round": t, "client": n} for t in range(3) for n in ("[red]", "a;b", '["x"]')]
    check_same(read(pl.DataFrame(rows)), rows)


@pytest.mark.parametrize("cell", ["ann|bob", "ann, bob", "7 12", "[7 12]", "(ann)(eve), bob"])
def test_text_that_may_be_a_list_is_refused_where_no_round_has_two_rows(
    tmp_path: Path, cell: str
) -> None:
    """In a column called `client`, bars or commas may separate clients or belong to a name."""
    rows = [(0, "ann"), (1, cell), (2, "bob")]
    for name in ("client", "cid"):
        frame = pl.DataFrame(rows, schema=["round", name], orient="row")
        frame.write_csv(tmp_path / "log.csv")
        for source in (frame, tmp_path / "log.csv"):
            sentence = error_of(source)
            assert sentence.startswith(f"client: {cell!r} may be one client or several")
            assert f"--columns client={name}" in sentence
            assert list_entries(read(source, columns={"client": name})) == rows
    twice = [*rows, (2, "eve")]
    assert (
        list_entries(read(pl.DataFrame(twice, schema=["round", "client"], orient="row"))) == twice
    )


def test_text_that_may_be_a_list_is_refused_where_a_round_has_a_row_for_each_stage() -> None:
    rows = [(t, stage, f"ann|bob{t}") for t in range(3) for stage in ("selected", "used")]
    frame = pl.DataFrame(rows, schema=["round", "stage", "client"], orient="row")
    assert error_of(frame).startswith("client: 'ann|bob0' may be one client or several")
    assert read(frame, columns={"client": "client"}).size == 3
    lists = read(frame.rename({"client": "clients"}))
    assert lists.names.to_list() == ["ann", "bob0", "bob1", "bob2"]
    two = pl.concat([frame, frame.with_columns(client=pl.lit("eve"))])
    assert read(two).size == 4


def test_a_matrix_of_cohorts_is_a_column_of_lists(tmp_path: Path) -> None:
    cohorts = np.array([[0, 2], [1, 2], [0, 1]])
    frame = pl.DataFrame({"round": [0, 1, 2], "clients": cohorts, "samples": 10 * cohorts + 5})
    assert isinstance(frame["clients"].dtype, pl.Array)
    frame.write_parquet(tmp_path / "log.parquet")
    for source in (frame, tmp_path / "log.parquet"):
        log = read(source)
        assert list_entries(log) == [(0, 0), (0, 2), (1, 1), (1, 2), (2, 0), (2, 1)]
        assert log.samples is not None
        assert log.samples.tolist() == [5, 15, 25]


def test_text_that_is_read_as_several_clients_is_said() -> None:
    said = "cells such as 'ann;bob' are read as several clients"
    cells = {"round": [0, 1, 2], "client": ["eve", "ann;bob", "ann"]}
    assert read(pl.DataFrame(cells)).notes == (said,)
    assert read(pl.DataFrame(cells).rename({"client": "clients"})).notes[-1] == said
    assert read(pl.DataFrame(cells | {"client": ['["ann"]', '["bob", "eve"]', "[]"]})).notes == ()


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_a_last_batch_of_one_row_has_names_as_the_batches_before(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedtide.auditing.log.table_source._PARQUET_ROWS", 4)
    monkeypatch.setattr("fedtide.auditing.log.table_source._JSON_ROWS", 4)
    names = ["Doe; Jane", "Doe, Jim", '["x"]', "eve"]
    for last in names:
        rows = [(t, name) for t in range(2) for name in names] + [(2, last)]
        frame = pl.DataFrame(rows, schema=["round", "client"], orient="row")
        path = tmp_path / f"log{suffix}"
        frame.write_parquet(path) if suffix == ".parquet" else frame.write_ndjson(path)
        assert list_entries(read(path)) == sorted(rows)


def test_ids_of_nodes_in_json_need_all_64_bits(tmp_path: Path) -> None:
    """Flower's node ids are whole numbers below 2⁶⁴."""
    ids = [2**64 - 1, 12, 2**63 + 1]
    rows = [{"round": t, "node_id": node} for t in range(3) for node in ids[t:]]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "log.json").write_text(json.dumps({t: ids[t:] for t in range(3)}))
    expected = sorted((t, str(node)) for t in range(3) for node in ids[t:])
    for name in ("log.jsonl", "log.json"):
        assert list_entries(read(tmp_path / name)) == expected
    (tmp_path / "log.json").write_text(f'{{"0": [{2**63}, 1.5], "1": [1]}}')
    assert "mixed or too large" in error_of(tmp_path / "log.json")


def test_one_row_per_round_with_a_column_of_lists(tmp_path: Path) -> None:
    rounds = by_round(NAMED, rounds=11)  # rounds 9 and 10 are empty
    frame = pl.DataFrame(rounds, schema=["round", "clients"], orient="row")
    frame.write_parquet(tmp_path / "log.parquet")
    rows = [{"round": t, "clients": clients} for t, clients in rounds]
    (tmp_path / "log.json").write_text(json.dumps(rows))
    (tmp_path / "cohorts.json").write_text(json.dumps(dict(rounds)))
    for source in (frame, *(tmp_path / n for n in ("log.parquet", "log.json", "cohorts.json"))):
        log = read(source)
        check_same(log, ROWS_ONLY)
        assert log.length == 11


def test_empty_lists_are_rounds_and_no_stride() -> None:
    """Clients come in every second round only, and the log says so."""
    lists = [["a", "b"] if t % 2 == 0 else [] for t in range(20)]
    log = read(pl.DataFrame({"round": range(20), "clients": lists}))
    assert log.cohorts.tolist() == [2, 0] * 10
    assert not any("advance" in note for note in log.notes)
    every_fifth = read(pl.DataFrame({"round": range(0, 100, 5), "clients": lists}))
    assert every_fifth.cohorts.tolist() == [2, 0] * 10


def test_lists_beside_the_list_of_clients_belong_to_them() -> None:
    rows = {"round": [0, 1], "clients": [["a", "b"], ["b"]], "num_examples": [[1, 3], [3]]}
    log = read(pl.DataFrame(rows))
    assert log.weights is not None
    assert log.weights.tolist() == [0.25, 0.75, 1.0]
    unequal = pl.DataFrame(rows | {"num_examples": [[1], [3, 1]]})
    assert error_of(unequal).startswith("samples: a list is not as long")


def test_numbers_of_clients_are_not_taken_for_clients(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("round,clients\n0,5\n1,6\n2,5\n")
    sentence = error_of(tmp_path / "log.csv")
    assert sentence.startswith("client: every round has one number")
    assert "--columns client=clients" in sentence
    log = read(tmp_path / "log.csv", columns={"client": "clients"})
    assert log.names.to_list() == [5, 6]
    (tmp_path / "log.json").write_text('{"0": 5, "1": 6}')
    assert error_of(tmp_path / "log.json").startswith("log: round 0 has 5 instead of a list")


def test_all_wrong_column_names_are_named_at_once() -> None:
    frame = pl.DataFrame({"round": [0, 1], "client": ["ann", "bob"]})
    sentence = error_of(frame, columns={"client": "who", "round": "when"})
    assert sentence.startswith("columns: the log has no column 'who' or 'when'; ")


@pytest.mark.parametrize("cell", ["[a, b", '["a", 1.5]', '[{"a": 1}]'])
def test_text_that_is_no_list_is_refused(tmp_path: Path, cell: str) -> None:
    (tmp_path / "log.tsv").write_text(f"round\tclients\n0\t{cell}\n")
    assert error_of(tmp_path / "log.tsv").startswith("client: ")


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def test_times_become_rounds_that_begin_at_multiples_of_their_length() -> None:
    """Hours of which the third is empty; two messages of ann in one hour count once."""
    seconds = [0, 1800, 3599.5, 3600, 10800]
    clients = ["ann", "bob", "ann", "ann", "bob"]
    times = [at(s) for s in seconds]
    unix = START.timestamp()
    columns: dict[str, list[Any]] = {
        "datetimes": times,
        "ISO strings": [t.isoformat() for t in times],
        "ISO strings in UTC": [t.strftime("%Y-%m-%dT%H:%M:%S.%fZ") for t in times],
        "without a zone": [t.strftime("%Y-%m-%d %H:%M:%S.%f") for t in times],
        "Unix seconds": [unix + s for s in seconds],
        "Unix milliseconds": [int((unix + s) * 1000) for s in seconds],
        "Unix microseconds": [int((unix + s) * 1_000_000) for s in seconds],
        "Unix nanoseconds": [int((unix + s) * 1000) * 1_000_000 for s in seconds],
        "seconds from a start": [float(s) for s in seconds],
        "text of seconds": [str(unix + s) for s in seconds],
    }
    expected = [(0, "ann"), (0, "bob"), (1, "ann"), (3, "bob")]
    for kind, column in columns.items():
        for name in ("time", "timestamp", "round"):
            log = read(pl.DataFrame({name: column, "client": clients}), round_seconds=3600)
            assert list_entries(log) == expected, kind
            assert any("1 of 5 rows repeats a client" in note for note in log.notes)
            begins = "0 s" if kind == "seconds from a start" else "2026-05-01T00:00:00Z"
            assert any(f"3600 s long; the first one begins at {begins}" in n for n in log.notes)
            if name != "round":
                assert error_of(pl.DataFrame({name: column, "client": clients})).startswith("log: ")


def test_zones_are_respected() -> None:
    local = pl.Series([at(0), at(3599), at(3600)]).dt.convert_time_zone("Asia/Kolkata")
    log = read(pl.DataFrame({"time": local, "client": ["a", "b", "c"]}), round_seconds=3600)
    assert list_entries(log) == [(0, "a"), (0, "b"), (1, "c")]
    times = ["2026-05-01T00:30:00+02:00", "2026-04-30T22:40:00Z", "2026-05-01T00:00:00+0100"]
    log = read(pl.DataFrame({"time": times, "client": ["a", "b", "c"]}), round_seconds=1800)
    assert list_entries(log) == [(0, "a"), (0, "b"), (1, "c")]
    mixed = pl.DataFrame({"time": [times[0], "2026-05-01T00:00:00"], "client": ["a", "b"]})
    assert error_of(mixed, round_seconds=60).startswith("time: only some times name a zone")


def test_rounds_that_are_too_short_are_refused() -> None:
    times = pl.DataFrame({"time": [at(0), at(86400)], "client": ["a", "b"]})
    assert error_of(times, round_seconds=0.001).startswith("round_seconds: ")


def test_column_round_stays_the_round_unless_its_length_is_given() -> None:
    rows = {"round": [0, 1], "time": [at(0), at(86400 * 3)], "client": ["a", "b"]}
    assert read(pl.DataFrame(rows)).length == 2
    assert read(pl.DataFrame(rows), round_seconds=86400).length == 4


def test_rounds_of_times_merge_stages_and_sample_counts() -> None:
    rows = {
        "time": [0, 5, 9, 12, 14],
        "client": ["a", "a", "b", "b", "b"],
        "stage": ["available", "used", "used", "available", "available"],
        "samples": [2, 2, 6, 6, 6],
    }
    log = read(pl.DataFrame(rows), round_seconds=10)
    assert list_entries(log) == [(0, "a"), (0, "b")]
    assert log.length == 2
    assert log.available is not None
    assert list_entries(log.available) == [(0, "a"), (0, "b"), (1, "b")]
    assert log.weights is not None
    np.testing.assert_allclose(log.weights, [0.25, 0.75])


@pytest.mark.parametrize(
    "rounds",
    [
        [1_777_593_600 + 600 * i for i in range(400)],
        [1_777_593_600_000 + 37 * i for i in range(400)],
        [20_260_425 + i for i in (0, 1, 2, 76, 77)],
        sorted(Random(1).sample(range(2_000_000), 3000)),
        [at(600 * i) for i in range(5)],
        [at(600 * i).isoformat() for i in range(5)],
    ],
    ids=["Unix", "milliseconds", "dates", "seconds", "datetimes", "ISO"],
)
def test_times_do_not_pass_as_rounds(rounds: list[Any], tmp_path: Path) -> None:
    frame = pl.DataFrame({"round": rounds, "client": [i % 3 for i in range(len(rounds))]})
    sentence = error_of(frame)
    assert sentence.startswith("round: ")
    assert "--round-seconds" in sentence
    frame.write_csv(tmp_path / "log.csv")
    assert "--round-seconds" in error_of(tmp_path / "log.csv")


def test_missing_times_and_impossible_lengths_of_rounds_are_refused() -> None:
    rows = pl.DataFrame({"time": [1.0, None], "client": [1, 2]})
    assert error_of(rows, round_seconds=60).startswith("time: row 2 has no time")
    for seconds in (0, -1, float("nan"), 1e-10, 1e12):
        with pytest.raises(InvalidInputError, match=r"^round_seconds: "):
            read(rows, round_seconds=seconds)


def test_every_seventh_round_is_a_round() -> None:
    rows = pl.DataFrame(
        {"round": [3 + 7 * t for t in range(12)], "client": [t % 3 for t in range(12)]}
    )
    log = read(rows)
    assert (log.first_round, log.length) == (0, 12)
    assert any("advance by 7 from 3" in note for note in log.notes)
    kept = read(rows, round_step=1)
    assert (kept.first_round, kept.length, kept.notes) == (3, 78, ())
    with pytest.raises(InvalidInputError, match=r"^round_step: round 10 "):
        read(rows, round_step=5)
    with pytest.raises(InvalidInputError, match=r"^round_step: .*round_seconds"):
        read(rows, round_step=7, round_seconds=60)
    with pytest.raises(InvalidInputError, match=r"^round_step: 0 "):
        read(rows, round_step=0)


def test_missing_rounds_stay_empty_rounds() -> None:
    """Three rounds, or rounds that are no multiple of one number, are no sign of a stride."""
    for rounds in ([0, 2, 4], [0, 2, 4, 6, 8, 11], [5, 6, 9]):
        log = read(pl.DataFrame({"round": rounds, "client": [0] * len(rounds)}))
        assert (log.first_round, log.length) == (rounds[0], rounds[-1] - rounds[0] + 1)


def test_stride_may_have_empty_rounds_of_its_own() -> None:
    numbers = [0, 10, 20, 40, 50, 60, 70, 90, 100, 110]
    log = read(pl.DataFrame({"round": numbers, "client": [0] * len(numbers)}))
    assert (log.length, int((log.cohorts == 0).sum())) == (12, 2)


def sites(digits: str) -> set[str]:
    return {f"site-{digit}" for digit in digits}


SAMPLED = ["245", "134", "234", "125", "125", "245", "124", "125", "235", "245", "123", "345"]
"""What NVFlare printed while it ran: "Sampled clients: ['site-5', 'site-2', 'site-4']", ..."""


def test_nvflare_summary_of_a_job_is_read() -> None:
    log = read(FILES / "nvflare-2.9.0-sampled.json.gz")
    assert list_entries(log) == sorted(
        (t, s) for t, digits in enumerate(SAMPLED) for s in sites(digits)
    )
    assert log.available is None


def test_nvflare_clients_that_failed_were_selected_and_not_used() -> None:
    log = read(FILES / "nvflare-2.9.0-flaky.json.gz")
    assert (log.first_round, log.length) == (0, 12)
    failed = {
        (t, s) for t in range(12) for s in sites("12345") if Random(f"{s}-{t}").random() < 0.4
    }
    used = set(list_entries(log))
    assert len(used) == 10
    assert not used & failed
    assert log.selected is not None
    selected = set(list_entries(log.selected))
    assert used < selected
    assert {(0, "site-2"), (0, "site-4"), (7, "site-1")} <= selected
    assert (2, "site-3") not in selected  # its result of round 1 was rejected in round 2


def test_nvflare_summary_without_names_is_refused() -> None:
    sentence = error_of(FILES / "nvflare-2.9.0-counting.json.gz")
    assert "6 of 12 rounds (round 0: 1 accepted, 0 by name)" in sentence


def nvflare_summary() -> dict[str, Any]:
    with gzip.open(FILES / "nvflare-2.9.0-sampled.json.gz", "rt") as file:
        return dict(json.load(file))


def test_nvflare_rounds_that_did_not_end_are_left_out(tmp_path: Path) -> None:
    summary = nvflare_summary()
    summary["rounds"][-1]["ended_at"] = None
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    log = read(tmp_path / "summary.json")
    assert log.length == 11
    assert "rounds that had not ended are left out: 1" in log.notes


def test_nvflare_workflows_are_numbered_one_after_the_other(tmp_path: Path) -> None:
    summary = nvflare_summary()
    for row in summary["rounds"][6:]:
        row["workflow"], row["round"] = 2, row["round"] - 6
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    log = read(tmp_path / "summary.json")
    assert list_entries(log) == sorted(
        (t, s) for t, digits in enumerate(SAMPLED) for s in sites(digits)
    )


def test_nvflare_summary_of_another_version_is_refused(tmp_path: Path) -> None:
    summary = nvflare_summary()
    del summary["rounds"][3]["accepted_client_names_complete"]
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    assert "'accepted_client_names_complete'" in error_of(tmp_path / "summary.json")


def test_log_of_a_flower_server_points_to_the_observer() -> None:
    sentence = error_of(FILES / "flower-1.41.0.log")
    assert "says how many clients took part, not which" in sentence
    assert "fedtide.flower.ParticipationObserver" in sentence


def test_log_of_the_observer_of_a_flower_strategy_is_read() -> None:
    """The counts are those of the log that Flower printed."""
    log = read(FILES / "flower-1.41.0-observed.csv")
    printed = (FILES / "flower-1.41.0.log").read_text()
    assert log.selected is not None
    assert log.available is not None
    sampled = re.findall(r"Sampled (\d+) nodes \(out of (\d+)\)", printed)
    assert log.selected.cohorts.tolist() == [int(some) for some, _ in sampled]
    assert [int(size) for size in re.findall(r"Received (\d+) results", printed)] == [2, 2, 3]
    assert log.cohorts.tolist() == [2, 2, 3]
    assert log.samples is not None
    assert sorted(log.samples[~np.isnan(log.samples)].tolist()) == [10, 30, 40]
    assert log.weights is not None
    assert sorted(log.weights[:2].tolist()) == pytest.approx([0.2, 0.8])


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("log.json", '{"a": 1, "b": 2}', "'round' and 'client'"),
        ("log.json", "[1, 2]", "not an object"),
        ("log.json", '{"a": [1]\n, "b": 2}', "an array of rows"),
        ("log.jsonl", '{"round": 0, "client": 1}\n{"round": \n', "line 2"),
        ("log.csv", "round,client\n0,1\n1\n", "Expected 2 columns"),
        ("log.csv", "round;client;weight\n0;1;x\n1;1;1\n", "weight: 'x' is not a number"),
        ("log.csv", 'round,client,weight\n0,1,"0,5"\n', "weight: '0,5' is not a number"),
        ("log.txt", "hello\n", "text without columns"),
        ("log.xlsx", "PK", "unknown suffix; choose one of '.csv', '.csv.gz', '.json',"),
        ("log.csv.zst", "x", "unpack it (text may be compressed by gzip)"),
        ("log.csv", "round;client\n0;1\n;\n;\n", "round: row 2 has no round; "),
        ("ledger.db", "SQLite format 3", "is a database; write sqlite:///"),
        ("log.csv.gz", "round,client\n", "not a readable .csv file"),
    ],
)
def test_files_that_cannot_be_read_are_refused(
    tmp_path: Path, name: str, content: str, words: str
) -> None:
    (tmp_path / name).write_text(content)
    assert words in error_of(tmp_path / name)


def test_truncated_archive_is_refused(tmp_path: Path) -> None:
    for name, content in (("log.csv.gz", as_delimited(",")), ("log.json.gz", as_lines)):
        packed = gzip.compress(content(draw_rows(range(9), 4000)).encode())
        (tmp_path / name).write_bytes(packed[:-200])
        assert "not a readable" in error_of(tmp_path / name)
