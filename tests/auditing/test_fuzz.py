"""Damaged files are read or refused in one sentence, never with another exception."""

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import fedtide as ft
from fedtide.auditing.log.reader import read_participation_log
from fedtide.errors import InvalidInputError
from fedtide.participation import Schedule, Trace
from fedtide.population import Population

ODD: list[Any] = [None, "", "x", -1, 0, 1, 7, 2**31, 2**63 - 1, -(2**63), 1.5, 1e308, "nan", True]
ODD += ["used", "avaliable", "ünï", "0", "01", " 1", "1e3", "inf", [1], {"a": 1}, "\x00", "'; --"]


def rows_of(source: random.Random, names: list[str]) -> list[dict[str, Any]]:
    """Return a dozen valid rows, some of them then altered."""
    rows: list[dict[str, Any]] = [
        {"round": t, "client": n, "stage": "used", "weight": 0.5}
        for t in range(4)
        for n in range(3)
        if source.random() < 0.7
    ]
    rows = [{name: row[name] for name in names if name in row} for row in rows]
    for _ in range(source.randrange(4)):
        if rows:
            row = source.choice(rows)
            kind = source.randrange(4)
            if kind == 0:
                row[source.choice(names)] = source.choice(ODD)
            elif kind == 1:
                row.pop(source.choice(names), None)
            elif kind == 2:
                rows.append(dict(row))
            else:
                row[str(source.choice(ODD))] = source.choice(ODD)
    return rows


def as_text(rows: list[dict[str, Any]], suffix: str) -> bytes:
    if suffix.endswith(".gz"):
        return gzip.compress(as_text(rows, suffix.removesuffix(".gz")))
    if suffix == ".json":
        return json.dumps(rows).encode()
    if suffix == ".jsonl":
        return "\n".join(json.dumps(row) for row in rows).encode()
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [",".join(columns)]
    lines += [",".join("" if row.get(c) is None else str(row[c]) for c in columns) for row in rows]
    return "\n".join(lines).encode()


def as_parquet(rows: list[dict[str, Any]], path: Path) -> bytes:
    frame = pl.DataFrame(
        {
            name: pl.Series(name, [row.get(name) for row in rows], strict=False)
            for name in dict.fromkeys(name for row in rows for name in row)
        }
    )
    frame.write_parquet(path)
    return path.read_bytes()


def damage(source: random.Random, content: bytes) -> bytes:
    """Return the bytes with some truncated, changed, repeated or inserted."""
    damaged = bytearray(content)
    for _ in range(source.randrange(3)):
        if damaged:
            place = source.randrange(len(damaged))
            kind = source.randrange(4)
            if kind == 0:
                del damaged[place:]
            elif kind == 1:
                damaged[place] = source.randrange(256)
            elif kind == 2:
                damaged[place:place] = damaged[place : place + 8]
            else:
                damaged[place:place] = source.choice([b"\xff", b'"', b"\n", b",", b"9" * 30])
    return bytes(damaged)


def check_outcome(use: Callable[[Path], object], path: Path) -> None:
    """Allow only success or a one-line InvalidInputError; attach the file to anything else."""
    try:
        use(path)
    except InvalidInputError as error:
        message = str(error)
    except Exception as error:
        error.add_note(repr(path.read_bytes()))
        raise
    else:
        return
    assert len(message.splitlines()) == 1, path.read_bytes()


@pytest.mark.fuzz
@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_damaged_log_is_audited_or_refused(tmp_path: Path, suffix: str) -> None:
    source = random.Random(f"log{suffix}")
    path = tmp_path / f"log{suffix}"
    names = ["round", "client", "stage", "weight"]
    for _ in range(1200):
        rows = rows_of(source, names[: source.randrange(2, 5)])
        try:
            content = as_parquet(rows, path) if suffix == ".parquet" else as_text(rows, suffix)
        except (pl.exceptions.PolarsError, TypeError, OverflowError):
            continue
        path.write_bytes(damage(source, content))
        check_outcome(lambda log: ft.audit(log, clients=source.choice([None, 3])), path)


@pytest.mark.fuzz
@pytest.mark.parametrize("suffix", [".csv", ".json", ".csv.gz", ".jsonl.gz"])
def test_damaged_log_of_events_and_times_is_read_or_refused(tmp_path: Path, suffix: str) -> None:
    source = random.Random(f"events{suffix}")
    path = tmp_path / f"log{suffix}"
    times = ["2026-05-01", "2026-05-01T00:00:00Z", 1.7e9, 1_700_000_000_000, "a;b", ["a", "b"], []]
    for _ in range(600):
        rows = rows_of(source, ["round", "client", "stage", "weight"])
        for row in source.sample(rows, min(len(rows), source.randrange(3))):
            row[source.choice(["round", "time", "client", "clients", "cid", "samples"])] = (
                source.choice(times + ODD)
            )
        path.write_bytes(damage(source, as_text(rows, suffix)))
        seconds = source.choice([None, 1, 3600])
        step = source.choice([1, 2]) if seconds is None and source.random() < 0.5 else None
        check_outcome(
            lambda log, s=seconds, g=step: read_participation_log(
                log, round_seconds=s, round_step=g
            ),
            path,
        )


@pytest.mark.fuzz
@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_damaged_trace_is_read_or_refused(tmp_path: Path, suffix: str) -> None:
    source = random.Random(f"trace{suffix}")
    path = tmp_path / f"trace{suffix}"

    def read(file: Path) -> None:
        process = Trace(str(file), round_seconds=10.0, repeat=source.random() < 0.5)
        stream = Schedule(process).start(Population(3), 0)
        assert all(0 <= n < 3 for t in range(5) for n in stream.round(t).reported.tolist())

    for _ in range(800):
        rows = [
            {"client": n, "start": 10.0 * t, "end": 10.0 * t + 5}
            for n in range(3)
            for t in range(3)
        ]
        for row in source.sample(rows, source.randrange(4)):
            row[source.choice(["client", "start", "end"])] = source.choice(ODD)
        try:
            content = as_parquet(rows, path) if suffix == ".parquet" else as_text(rows, suffix)
        except (pl.exceptions.PolarsError, TypeError, OverflowError):
            continue
        path.write_bytes(damage(source, content))
        check_outcome(read, path)


def test_some_generated_logs_are_valid(tmp_path: Path) -> None:
    """Otherwise the tests above would exercise refusals only."""
    source, path, valid = random.Random(0), tmp_path / "log.csv", 0
    for _ in range(40):
        path.write_bytes(damage(source, as_text(rows_of(source, ["round", "client"]), ".csv")))
        try:
            valid += ft.audit(path).log.length > 0
        except InvalidInputError:
            continue
    assert 5 <= valid <= 35
