"""Damaged logs and traces in every file format: one sentence or a valid table."""

import random
from itertools import pairwise

import numpy as np
import polars as pl
import pytest

import fedtide as ft
from fedtide.participation import STAGES, Replay, Table, Trace, read_log
from fedtide.population import Population

CLIENTS = Population(clients=5)


def log(draw):
    rows = [(t, n) for t in range(6) for n in range(5) if draw.random() < 0.6] or [(0, 0)]
    name = draw.choice([int, "client {}".format])
    return pl.DataFrame(
        {
            "round": [t for t, _ in rows],
            "client": [name(n) for _, n in rows],
            "stage": [draw.choice(STAGES) for _ in rows],
            "weight": [draw.random() for _ in rows],
        }
    )


def trace(draw):
    ends = [sorted(draw.sample(range(100), 4)) for _ in range(5)]
    return pl.DataFrame(
        {
            "client": [n for n in range(5) for _ in range(2)],
            "start": [float(times[k]) for times in ends for k in (0, 2)],
            "end": [float(times[k]) for times in ends for k in (1, 3)],
        }
    )


WORDS = [
    b"", b"nan", b"-1", b"1e999", b"99999999999999999999", b"0.5", b"null", b"\xff", b"\0", b'"',
    b",", b"\n", b"\r", b"{", b"}", b"[1]", "日本".encode(), b"round", b"client", b"1" * 5000,
    b"true", b"2020-01-01", b"=1+1", b"\xef\xbb\xbf", b"-0", b"1_0", b"0x1", b"inf",
]  # fmt: skip


def damage(content, draw):
    first = draw.randrange(len(content) + 1)
    last = min(len(content), first + draw.choice([0, 1, 2, 8, 50]))
    how = draw.randrange(6)
    if how == 0:
        return content[:first]
    if how == 1:
        return content[:first] + bytes([draw.randrange(256)]) + content[first + 1 :]
    if how == 2:
        return content[:last] + content[first:]
    return content[:first] + draw.choice(WORDS) + content[last:]


def write_damaged(frame, file, draw):
    """Write the table and damage the file."""
    write = {".parquet": frame.write_parquet, ".csv": frame.write_csv, ".jsonl": frame.write_ndjson}
    write[file.suffix](file)
    content = file.read_bytes()
    for _ in range(draw.choice([1, 1, 2, 4])):
        content = damage(content, draw)
    file.write_bytes(content)


def is_refused(use):
    """Return whether an input is refused, in one sentence."""
    message = None
    try:
        use()
    except ft.InvalidInputError as error:
        message = str(error)
    assert message is None or (": " in message and "\n" not in message), message
    return message is not None


@pytest.mark.fuzz
@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_damaged_logs_are_refused_or_valid(suffix, tmp_path):
    file, kept = tmp_path / f"log{suffix}", 0
    for number in range(300):
        draw = random.Random(number)
        write_damaged(log(draw), file, draw)
        for process in (Table(weights=file), Replay(log=file)):
            is_refused(lambda process=process: process.begin(CLIENTS, seed=0).round(0))
        if not is_refused(lambda: read_log(file)):
            frame = read_log(file)
            kept += 1
            assert frame["round"].min() is None or frame["round"].min() >= 0
            assert not frame.select("round", "client").is_duplicated().any()
    assert 0 < kept < 300
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.fuzz
@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_damaged_traces_are_refused_or_valid(suffix, tmp_path):
    file, kept = tmp_path / f"trace{suffix}", 0
    for number in range(300):
        draw = random.Random(number)
        write_damaged(trace(draw), file, draw)
        process = Trace(
            file=file, round_seconds=draw.choice([1, 0.1, 7]), repeat=draw.random() < 0.5
        )
        if not is_refused(lambda process=process: process.begin(CLIENTS, seed=0)):
            running = process.begin(CLIENTS, seed=0)
            kept += 1
            for t in (0, 3, 10**6):
                ids = running.round(t).clients
                assert all(0 <= a < b < 5 for a, b in pairwise([*ids, 4.5])) or not len(ids)
            rates = process.known_rates(CLIENTS, seed=0)
            assert rates is None or np.all((rates >= 0) & (rates <= 1))
    assert 0 < kept < 300
