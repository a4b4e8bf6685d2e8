"""One log in many formats is read alike; a log that could mean several things is refused."""

import gzip
import json
import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tests.auditing.logs import error_of, list_entries

import fedtide as ft
from fedtide.auditing.log.reader import read_participation_log as read
from fedtide.cli.audit import _PAIR, _parse_pairs
from fedtide.population import Population

FILES = Path(__file__).parent / "files"
NAMED = [(0, "ann"), (0, "bob"), (1, "ann"), (3, "01")]
NUMBERED = [(0, 7), (0, 12), (1, 7), (3, 2)]
NODES = [(0, "18446744073709551615"), (0, "12"), (1, "12"), (3, "9223372036854775809")]


def frame(rows, **columns):
    return pl.DataFrame(rows, schema=["round", "client"], orient="row").with_columns(**columns)


def csv(rows, separator=",", names=("round", "client")):
    return "\n".join(separator.join(map(str, row)) for row in [names, *rows]) + "\n"


def lines(rows, names=("round", "client")):
    return "\n".join(json.dumps(dict(zip(names, row, strict=True))) for row in rows)


LISTS = {0: ["ann", "bob"], 1: ["ann"], 2: [], 3: ["01"]}
DAY = datetime(2026, 3, 28, 23, 30, tzinfo=UTC)
EVENTS = [(t, n, stage) for t, n in NAMED for stage in ("asked", "began", "uploaded")]


def timed(rows, **options):
    """Return a log of times, and the options to read it with."""
    return csv(rows, names=("time", "client")), {"round_seconds": 60} | options


def more(name, *rows):
    """Return a log with one more column."""
    return csv(rows, names=("round", "client", name))


def after(hours, zone=UTC):
    return (DAY + timedelta(hours=hours)).astimezone(zone)


FORMATS = {
    "commas": ("log.csv", csv(NAMED), {}, NAMED),
    "numbers": ("log.csv", csv(NUMBERED), {}, NUMBERED),
    "pandas' floats": ("log.csv", csv([(t, f"{n}.0") for t, n in NUMBERED]), {}, NUMBERED),
    "64 bits": ("log.csv", csv(NODES), {}, NODES),
    "blanks": ("log.csv", csv(NAMED, " , ").replace("\n", " \n"), {}, NAMED),
    "blank lines": ("log.csv", "\n" + csv(NAMED).replace("\n", "\r\n\r\n"), {}, NAMED),
    "a mark": ("log.csv", "\ufeff" + csv(NAMED), {}, NAMED),
    "semicolons": ("log.csv", csv(NAMED, ";"), {}, NAMED),
    "tabs": ("log.tsv", csv(NAMED, "\t"), {}, NAMED),
    "bars": ("log.csv", csv(NAMED, "|"), {}, NAMED),
    "packed": ("log.csv.gz", gzip.compress(csv(NAMED).encode()), {}, NAMED),
    "aliases": ("log.csv", csv(NAMED, names=("Server Round", "device_id")), {}, NAMED),
    "own names": (
        "log.csv",
        csv([(*row, 0) for row in NAMED], names=("epoch", "who", "client")),
        {"columns": {"round": "epoch", "client": "who"}},
        NAMED,
    ),
    "lines of JSON": ("log.jsonl", lines(NAMED), {}, NAMED),
    "packed lines": ("log.ndjson.gz", gzip.compress(lines(NAMED).encode()), {}, NAMED),
    "an array": ("log.json", f"[{lines(NAMED).replace(chr(10), ',')}]", {}, NAMED),
    "64 bits in JSON": ("log.jsonl", lines([(t, int(n)) for t, n in NODES]), {}, NODES),
    "cohorts": ("log.json", json.dumps(LISTS), {}, NAMED),
    "lists": ("log.jsonl", lines(LISTS.items(), ("round", "clients")), {}, NAMED),
    **{
        f"cells with {separator}": (
            "log.tsv",
            csv([(t, separator.join(cohort)) for t, cohort in LISTS.items()], "\t"),
            {"columns": {"clients": "client"}},
            NAMED,
        )
        for separator in (";", "|", ",", ", ")
    },
    "cells of JSON": (
        "log.tsv",
        csv([(t, json.dumps(cohort)) for t, cohort in LISTS.items()], "\t", ("round", "cohort")),
        {},
        NAMED,
    ),
    "cells of numbers": ("log.csv", "round,participants\n0,7 12\n1,7\n2,\n3,2\n", {}, NUMBERED),
    "a name with a bar": (
        "log.csv",
        csv([(0, "a|b"), (1, "c")]),
        {"columns": {"client": "client"}},
        [(0, "a|b"), (1, "c")],
    ),
    "only training": (
        "log.csv",
        more(
            "phase", *[(*row, "fit") for row in NAMED], (0, "x", "evaluate"), (0, "y", "evaluate")
        ),
        {"where": {"phase": "FIT"}},
        NAMED,
    ),
    "a status": (
        "log.csv",
        more("status", *[(*row, "OK") for row in NAMED], (1, "bob", "LATE"), (2, "bob", "")),
        {"stages": {"ok": "used", "other": "selected"}},
        NAMED,
    ),
    "events": (
        "log.csv",
        more("event", *EVENTS),
        {"stages": {"uploaded": "used", "other": "selected"}},
        NAMED,
    ),
    "an ignored column": (
        "log.csv",
        more("region", *[(*row, "ab"[k % 2]) for k, row in enumerate(NAMED)]),
        {"ignore": ["region"]},
        NAMED,
    ),
    "every seventh": ("log.csv", csv([(7 * t + 3, n) for t, n in NAMED]), {"round_step": 7}, NAMED),
    "seconds": ("log.csv", *timed([(60 * t + 5, n) for t, n in NAMED]), NAMED),
    "ms": ("log.csv", *timed([(1_777_600_000_000 + 60_000 * t, n) for t, n in NAMED]), NAMED),
    "ISO": ("log.csv", *timed([(after(t / 60).isoformat(), n) for t, n in NAMED]), NAMED),
    "Python's logging": (
        "log.csv",
        *timed([(f'"{after(t / 60):%Y-%m-%d %H:%M:%S},2"', n) for t, n in NAMED], time_zone="UTC"),
        NAMED,
    ),
    "days": (
        "log.csv",
        *timed([(f"2026-05-0{t + 1}", n) for t, n in NAMED], round_seconds=86400),
        NAMED,
    ),
    "local days": (  # the clock goes forward in the first night
        "log.csv",
        *timed(
            [(after((0, 23, 46, 70.7)[t]).isoformat(), n) for t, n in NAMED],
            round_seconds=86400,
            time_zone="Europe/Berlin",
        ),
        NAMED,
    ),
}


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("name", FORMATS)
def test_formats(name, tmp_path):
    """Rounds count from the first row; round 2 is empty."""
    file, content, options, entries = FORMATS[name]
    log = read(write(tmp_path / file, content), **options)
    assert list_entries(log) == sorted(entries)
    assert log.length == entries[-1][0] + 1
    replayed = {k: v for k, v in options.items() if k in ("columns", "stages", "where", "ignore")}
    if replayed == options:  # a replay reads what an audit reads
        process = ft.participation.Replay(tmp_path / file, **options)
        stream = process.begin(Population(len(log.names), names=log.names.to_numpy()), seed=0)
        rounds = [stream.round(t).clients.tolist() for t in range(log.length)]
        assert rounds == [
            sorted(log.clients[slice(*log.starts[t : t + 2])]) for t in range(log.length)
        ]


@pytest.mark.parametrize(
    "table",
    [
        frame(NAMED),
        frame(NAMED).with_columns(pl.col("client").cast(pl.Categorical)),
        frame(NAMED).to_dicts(),
        frame(NAMED).to_arrow(),
        frame(NAMED).cast({"round": pl.Decimal(9, 2)}),
        frame(NAMED).group_by("round", maintain_order=True).agg("client"),
        pl.DataFrame({"round": [0, 1], "client": np.array([[7, 12], [7, 2]])}),
    ],
    ids=["rows", "category", "dicts", "arrow", "decimal", "lists", "matrix"],
)
def test_tables_in_memory(table, tmp_path):
    numbered = isinstance(table, pl.DataFrame) and isinstance(table["client"].dtype, pl.Array)
    expected = [(0, 7), (0, 12), (1, 2), (1, 7)] if numbered else sorted(NAMED)
    assert list_entries(read(table)) == expected
    if isinstance(table, pl.DataFrame):
        table.write_parquet(tmp_path / "log.parquet")
        assert list_entries(read(tmp_path / "log.parquet")) == expected


def test_pandas():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"round": [0, 0, 1], "client": [7.0, 12.0, 7.0]})
    assert list_entries(read(table)) == [(0, 7), (0, 12), (1, 7)]


@pytest.mark.parametrize(
    ("name", "size", "length", "entries"),
    [
        ("flower-1.41.0-observed.csv", 4, 3, 7),
        ("nvflare-2.9.0-sampled.json.gz", 5, 12, 36),
        ("nvflare-2.9.0-flaky.json.gz", 5, 12, 10),
    ],
)
def test_files_of_other_programs(name, size, length, entries):
    log = read(FILES / name)
    assert (log.size, log.length, len(log.clients)) == (size, length, entries)


WORDS = {
    "aggregated": [True, False, True, True],
    "timed_out": [0, 1, 0, 0],
    "status_code": [200, 500, 200, 200],
    "last_phase": ["fit", "eval", "fit", "fit"],
    "task": ["train", "validate", "train", "train"],
    "duration": [3.5, None, 4.5, 2.5],
    "error": [None, "CUDA out of memory", None, None],
    "reason": ["", "battery", "", ""],
    "run_id": ["a", "a", "b", "b"],
}


@pytest.mark.parametrize("name", WORDS)
@pytest.mark.parametrize("kind", ["csv", "frame"])
def test_a_column_that_tells_rows_apart_is_refused_until_it_is_mapped(name, kind, tmp_path):
    """Each remedy that the sentence names is accepted, and does what it says."""
    column = pl.Series(name, WORDS[name])
    source = table = frame([(0, "ann"), (0, "bob"), (1, "bob"), (2, "eve")]).with_columns(column)
    if kind != "frame":
        source = tmp_path / f"log.{kind}"
        getattr(table, f"write_{kind}")(source)
    sentence = error_of(source)
    assert sentence.startswith(f"log: the column '{name}' tells rows apart")
    options = shlex.split(sentence)
    assert (
        list_entries(read(source, ignore=options[-1].split(",")))
        == table.select("round", "client").rows()
    )
    if name == "run_id":
        assert list_entries(read(source, where={"run_id": "B"})) == [(1, "bob"), (2, "eve")]
        return
    mapped = _parse_pairs("columns", [o for o in options if o.startswith("stage=")], "")
    stages = _PAIR.findall(options[options.index("--stages") + 1].rstrip(","))
    log = read(source, columns=mapped, stages=_parse_pairs("stages", stages, ""))
    assert list_entries(log) == [(0, "ann"), (1, "bob"), (2, "eve")]


@pytest.mark.parametrize("name", ["n", "count", "len", "value", "literal", "samples used"])
def test_counts_are_told_from_stages_whatever_their_name(name, tmp_path):
    """Polars calls columns of its own so. The first option that is named is the right one."""
    sizes = [1200, 800, 300]
    rows = [(t, c) for t in range(4) for c in range(3)]
    table = frame(rows).with_columns(pl.Series(name, sizes * 4))
    table.write_csv(tmp_path / "log.csv")
    sentence = error_of(tmp_path / "log.csv")
    assert sentence.startswith(f"log: the column '{name}' tells rows apart")
    assert "stages" not in sentence
    options = shlex.split(sentence)
    mapped = _parse_pairs("columns", [options[options.index("--columns") + 1].rstrip(",")], "")
    assert read(tmp_path / "log.csv", columns=mapped).samples.tolist() == sizes
    words = table.with_columns(pl.Series(name, ["ok", "late", "ok"] * 4))
    assert f"--columns {shlex.quote(f'stage={name}')} " in error_of(words)


def test_columns_that_tell_nobody_apart_are_only_listed():
    random = np.random.default_rng(0)
    rows = [(t, n) for t in range(40) for n in range(8)]
    table = frame(rows, loss=pl.Series(random.random(320)), model=pl.lit("v1"), time=pl.lit(7.0))
    log = read(table.with_columns(job=pl.int_range(pl.len())))
    assert log.notes == ("columns that are not read: 'loss', 'model', 'time', 'job'",)
    used = table.with_columns(stage=pl.lit("used"), seconds=pl.lit(1.5))
    lost = used.tail(9).with_columns(pl.col("round") + 40, stage=pl.lit("selected"), seconds=None)
    assert read(pl.concat([used, lost], how="vertical_relaxed")).size == 8  # only failures lack it


def test_rare_values_far_down_a_log_are_found():
    rows = frame([(t, n) for t in range(3000) for n in range(10)])
    column = pl.Series("ok", [True] * 29_999 + [False])
    assert "'true' (29,999), 'false' (1)" in error_of(rows.with_columns(column))


NOON, ONE = "2026-05-01T12:00:00", "2026-05-01T13:00:00"
REFUSED = {
    "two names": (csv([(0, "a", 1)], names=("round", "cid", "user")), {}, "--columns client=cid"),
    "list or name": (csv([(0, "a;b"), (1, "c")]), {}, "--columns clients=client"),
    "separators": (csv([(0, "a;b"), (0, "c;d"), (1, "c;d")]), {}, "--columns client=client"),
    "Python's list": ("round;clients\n0;['a', 'b']\n1;['c']\n", {}, "write a JSON array"),
    "NumPy's array": ("round,clients\n0,[0 1]\n1,[1 2]\n", {}, "write a JSON array"),
    "two separators": ("round;clients\n0;a,b|c\n1;c\n", {}, "by one character"),
    "numbers of clients": ("round,clients\n0,5\n1,6\n", {}, "--columns client=clients"),
    "unknown stages": (more("stage", (0, "a", "DONE")), {}, "--stages DONE=STAGE"),
    "some stages": (more("stage", (0, "a", "used"), (1, "b", "")), {}, "--stages =selected"),
    "stages of no column": (csv(NAMED), {"stages": {"OK": "used"}}, "--columns stage=NAME"),
    "some counts": (more("samples", (0, "a", 5), (1, "b", "")), {}, "--ignore samples"),
    "counts": (more("weight", (0, "a", 500), (1, "b", 300)), {}, "--columns samples=weight"),
    "ones": (more("weight", (0, "a", 1), (0, "b", 1), (1, "b", 1)), {}, "--ignore weight"),
    "thousands": (more("samples", (0, "a", 1.2), (1, "b", 3)), {}, "--columns samples=samples"),
    "a stride": (csv([(5 * t, "a") for t in range(12)]), {}, "--round-step 5"),
    "Unix times": (csv([(1_777_600_000 + t, "a") for t in range(3)]), {}, "--round-seconds"),
    "months": (csv([(202_512, "a"), (202_601, "a")]), {}, "--round-step 1"),
    "dates": (csv([("2026-05-01", "a"), ("2026-05-02", "a")]), {}, "--round-seconds"),
    "only times": (csv(NAMED, names=("time", "client")), {}, "--round-seconds"),
    "no zone": (*timed([(NOON, "a"), (ONE, "b")]), "--time-zone"),
    "several zones": (*timed([(f"{NOON}+02:00", "a"), (f"{ONE}+01:00", "b")]), "--time-zone"),
    "some zones": (*timed([(f"{NOON}+02:00", "a"), (ONE, "b")]), "write all with"),
    "UTC's days": (*timed([(f"{NOON}Z", "a")], round_seconds=86400), "--time-zone"),
    "two units": (*timed([(1_777_600_000, "a"), (1_777_600_000_000, "b")]), "in one unit"),
    "a missing time": (*timed([(1_777_600_000, "a"), (0, "b")]), "give every row a time"),
    "a missing date": (*timed([(f"{NOON}Z", "a"), (f"1970{NOON[4:]}Z", "b")]), "every row a time"),
    "a far time": (*timed([(1_777_600_000, "a"), (1_999_600_000, "b")]), "give longer rounds"),
    "dates as seconds": (*timed([(20_260_501, "a"), (20_260_502, "b")]), "write dates as"),
    "no time": (*timed([("soon", "a")]), "2026-05-01T13:00:00Z"),
    "run again": (csv([*NAMED, (1, "ann")]), {}, "if several runs are in the log, audit each"),
    "a missing client": (csv([(0, "a"), (1, "nan")]), {}, "give every row a client id"),
    "two spellings": (csv([(0, "7"), (1, "7.0")]), {}, "in one way"),
    "a missing round": (csv([(0, "a"), ("", "b")]), {}, "leave out empty rows"),
    "no rows": ("round,client\n", {}, "at least two rounds"),
    "no column": (csv(NAMED, names=("step", "client")), {}, "--columns round=NAME"),
    "a wrong name": (csv(NAMED), {"columns": {"client": "cliemt"}}, "did you mean 'client'"),
    "an unknown column": (csv(NAMED), {"ignore": ["x"]}, "among 'round', 'client'"),
    "no such value": (csv(NAMED), {"where": {"client": "zoe"}}, "give other values"),
    "no objects": ("[1, 2]", "log.json", "--columns round=NAME"),
    "columns": ('[{"round": {"0": 0}, "client": {"0": 3}}]', "log.json", "one object per row"),
    "mixed lists": ('{"0": [9223372036854775808, 1.5], "1": [1]}', "log.json", "write it again"),
    "text": ("hello\n", "log.txt", "rename it to .csv"),
    "packed otherwise": ("x", "log.csv.zst", "unpack it"),
    "damaged": (b"round,client\n0,\xe9\n", "log.csv", "UTF-8"),
    "too many values": ("round,client\n0,1\n1,2,3\n", "log.csv", "more values than the header"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_what_to_do(name, tmp_path):
    content, second, hint = REFUSED[name]
    file, options = ("log.csv", second) if isinstance(second, dict) else (second, {})
    assert hint in error_of(write(tmp_path / file, content), **options)


def test_a_log_of_another_program_without_names_is_refused():
    assert "ParticipationObserver" in error_of(FILES / "flower-1.41.0.log")
    assert "publish the names" in error_of(FILES / "nvflare-2.9.0-counting.json.gz")


def test_what_changes_numbers_is_said():
    """An aborted round that ran again, two runs in one file, and gaps in the numbers."""
    rows = [(t, f"{t % 7}-{k}") for t in range(30) for k in range(4)]
    again = [(9, f"again-{k}") for k in range(4)]
    notes = " ".join(read(frame([*rows[:40], *again, *rows[40:]])).notes)
    assert "1 round with more rows than the usual 4, such as round 9 with 8" in notes
    second = frame(rows + [(t, f"second-{k}") for t in range(30) for k in range(4)])
    assert "go back 1 time, first from 29 to 0 in row 121" in " ".join(read(second).notes)
    gaps = [row for row in rows if row[0] not in (4, 5)]
    assert "2 rounds of 30 without rows, such as round 4" in " ".join(read(frame(gaps)).notes)
    by_client = frame([(t, n) for n in range(9) for t in range(30)])
    assert read(by_client).notes == ()


def test_an_audit_reads_without_pytorch(tmp_path):
    import subprocess
    import sys

    write(tmp_path / "log.csv", csv(NAMED))
    code = (
        "import sys; from fedtide.auditing.log.reader import read_participation_log as read;"
        f"read({str(tmp_path / 'log.csv')!r}); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
