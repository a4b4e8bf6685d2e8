"""Clients by name: from files to ids and back, against dictionaries."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fedtide.errors import InvalidInputError
from fedtide.participation import (
    Availability,
    Bernoulli,
    Replay,
    Schedule,
    SubsetLaw,
    Table,
    Trace,
    read_log,
    round_rows,
    to_frame,
    write_log,
)
from fedtide.participation.log.client_ids import number_clients
from fedtide.population import Names, Population

WORDS = np.array(["zoe", "ann", 'a, "b"', "007", "7", "señor 名", "-1"], dtype=object)
NUMBERS = np.array([1001, 7, 0, -5, 2**62])


@pytest.mark.parametrize(
    ("names", "suffix"), [(WORDS, ".csv"), (WORDS.astype(str), ".parquet"), (NUMBERS, ".jsonl")]
)
def test_a_log_with_names_is_read_as_it_was_written(
    names: Names, suffix: str, tmp_path: Path
) -> None:
    population = Population(len(names), names=names)
    running = Schedule(Bernoulli(0.5)).start(population, seed=1)
    rounds = [running.round(t) for t in range(40)]
    frame = to_frame([round_rows(one) for one in rounds], names)
    expected = [names.tolist()[n] for one in rounds for n in one.reported]
    assert frame["client"].to_list() == expected
    write_log(tmp_path / f"log{suffix}", frame)
    assert read_log(tmp_path / f"log{suffix}")["client"].to_list() == expected
    replay = Replay(tmp_path / f"log{suffix}").begin(population, seed=0)
    for one in rounds:
        again = replay.round(one.round)
        assert again.clients.tolist() == one.reported.tolist()
        assert again.weights is not None
        assert again.weights.tolist() == one.weights.tolist()


def test_numbers_and_strings_that_are_written_alike_are_one_name() -> None:
    """A CSV file cannot tell them apart; "007" is another name than 7."""
    numbers, words = Population(2, names=np.array([7, 12])), np.array(["12", "7"])
    assert number_clients("file", pl.Series(["12", "7"]), numbers).tolist() == [1, 0]
    strings = Population(2, names=words)
    assert number_clients("file", pl.Series([12, 7, 7]), strings).tolist() == [0, 1, 1]
    with pytest.raises(InvalidInputError, match=r"^file: .*'007'"):
        number_clients("file", pl.Series(["007"]), numbers)
    with pytest.raises(InvalidInputError, match=r"^file: .*'0'"):
        number_clients("file", pl.Series([0]), strings)


def write_trace(path: Path, *names: object) -> Path:
    rows = [(name, 10 * n, 10 * n + 10) for n, name in enumerate(names)]
    pl.DataFrame(rows, schema=["client", "start", "end"], orient="row").write_csv(path)
    return path


def test_a_trace_finds_clients_by_name(tmp_path: Path) -> None:
    names = np.array([f"user_{n:04}" for n in range(200)])
    path = write_trace(tmp_path / "trace.csv", "user_0199", "user_0150", "user_0199")
    trace = Trace(path, round_seconds=10, repeat=True)
    running = trace.begin(Population(200, names=names), seed=0)
    assert [running.round(t).clients.tolist() for t in range(4)] == [[199], [150], [199], [199]]
    rates = trace.known_rates(Population(200, names=names), seed=0)
    assert rates is not None
    assert np.flatnonzero(rates).tolist() == [150, 199]
    assert rates[[150, 199]] == pytest.approx([1 / 3, 2 / 3])


def test_a_subset_law_numbers_the_names_of_all_its_subsets_together() -> None:
    """Where clients have no names, as many different strings in all as there are clients."""
    law = SubsetLaw([["dora", "bob"], [], ["carl", "bob", "ann"]], [0.5, 0.25, 0.25])
    assert law.known_rates(Population(4), seed=0).tolist() == [0.25, 0.75, 0.25, 0.5]
    pairs = SubsetLaw([["ann", "bob"], ["carl", "dora"]], [0.5, 0.5])
    mixed = SubsetLaw([["ann", "bob"], [0]], [0.5, 0.5])
    for law, complaint in (
        (pairs, "subsets: 4 different clients by name, but the 2 clients .*; number them"),
        (mixed, r"subsets\[1\]: no client of the problem is called '0' .*; choose one"),
    ):
        for use in (law.begin, law.known_rates):
            with pytest.raises(InvalidInputError, match=f"^{complaint}"):
                use(Population(2), seed=0)


LOG = pl.DataFrame({"round": [0, 0, 0, 0, 1], "client": ["ann", "x", "y", "z", "w"]})


@pytest.mark.parametrize(
    ("process", "start"),
    [
        (Replay(LOG), "log: "),
        (Table("log.csv"), "weights: "),
        (Trace("trace.csv", 1), "file: "),
        (SubsetLaw([["ann", "x", "y", "z", "w"]], [1.0]), r"subsets\[0\]: "),
    ],
)
def test_unknown_names_are_listed_and_counted(
    process: Availability, start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    LOG.with_columns(weight=1.0).write_csv("log.csv")
    write_trace(Path("trace.csv"), *LOG["client"])
    population = Population(4, names=np.array(["ann", "bob", "cid", "dan"]))
    wanted = rf"^{start}.*called 'x', 'y', 'z' and 1 more .*4 .*'ann', 'bob', 'cid' and 1 more.*; "
    with pytest.raises(InvalidInputError, match=wanted):
        process.begin(population, seed=0)
    with pytest.raises(InvalidInputError, match=wanted):
        process.known_rates(population, seed=0)


@pytest.mark.parametrize("clients", [1, 4, 6])
def test_names_for_clients_without_names_must_be_all_or_none(clients: int) -> None:
    with pytest.raises(InvalidInputError, match=rf"^log: 5 .* {clients} clients .*; number them"):
        Replay(LOG).begin(Population(clients), seed=0)
    assert Replay(LOG).begin(Population(5), seed=0).round(0).clients.tolist() == [0, 2, 3, 4]


def test_a_value_for_each_client_is_given_once() -> None:
    """7 and "7" are one name, so that a mapping with both has two values for it."""
    population = Population(2, names=np.array([7, 12]))
    assert Bernoulli(rates={"7": 0.1, 12: 0.2}).known_rates(population, seed=0).tolist() == [
        0.1,
        0.2,
    ]
    with pytest.raises(InvalidInputError, match=r"^rates: .*once"):
        Bernoulli(rates={7: 0.1, "7": 0.3, 12: 0.2}).known_rates(population, seed=0)


def test_clients_of_weight_0_in_a_replayed_log_are_absent():
    """As in the table of the same weights, whose 0 says that a client is not there."""
    weights = np.array([[0.5, 0.5, 0], [0, 1, 0], [0, 0, 0], [0.2, 0, 0.8]])
    rounds, clients = np.indices(weights.shape).reshape(2, -1)
    log = pl.DataFrame({"round": rounds, "client": clients, "weight": weights.ravel()})
    replay = Replay(log)
    table, population = Table(weights), Population(3)
    np.testing.assert_array_equal(
        replay.known_rates(population, 0), table.known_rates(population, 0)
    )
    one, other = replay.begin(population, 0), table.begin(population, 0)
    for t in range(4):
        assert one.round(t).clients.tolist() == other.round(t).clients.tolist()


def test_clients_of_weight_0_that_a_log_says_were_used_are_replayed():
    """A process of one's own may give the weight 0; methods count such a client as taking part."""
    log = pl.DataFrame({"round": [0, 0, 1], "client": [0, 1, 1], "weight": [1.0, 0.0, 1.0]})
    running = Replay(log.with_columns(stage=pl.lit("used"))).begin(Population(2), seed=0)
    assert running.round(0).clients.tolist() == [0, 1]
    nothing = Replay(log.with_columns(weight=pl.lit(0.0))).begin(Population(2), seed=0)
    assert nothing.round(0).clients.tolist() == [0, 1]  # as an audit reads it
