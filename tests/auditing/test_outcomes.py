"""Logs that say in words of their own how far clients came, such as a status OK or TIMEOUT."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.auditing.logs import error_of, list_entries
from typer.testing import CliRunner

import fedtide as ft
from fedtide.auditing.log.columns import PRESENCE_NAMES, is_called
from fedtide.auditing.log.reader import read_participation_log as read
from fedtide.cli.main import app

MEANINGS = {"OK": "used", "TIMEOUT": "selected"}
ROWS = pl.DataFrame(
    {
        "server_round": [0, 0, 1, 1, 2, 2, 3, 3],
        "device_id": ["ann", "bob"] * 4,
        "status": ["OK", "OK", "OK", "TIMEOUT", "OK", "TIMEOUT", "OK", "TIMEOUT"],
    }
)
USED = [(0, "ann"), (0, "bob"), (1, "ann"), (2, "ann"), (3, "ann")]
SELECTED = [(t, name) for t in range(4) for name in ("ann", "bob")]


def check(source: Any, **options: Any) -> None:
    """Bob was used in round 0 and only selected in the others."""
    log = read(source, **options)
    assert list_entries(log) == USED
    assert log.selected is not None
    assert list_entries(log.selected) == SELECTED


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_values_of_an_outcome_column_are_stages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.setattr("fedtide.auditing.log.table_source._JSON_ROWS", 3)
    path = tmp_path / f"log{suffix}"
    write = {".csv": ROWS.write_csv, ".jsonl": ROWS.write_ndjson, ".parquet": ROWS.write_parquet}
    write[suffix](path)
    for source in (path, ROWS, ROWS.with_columns(pl.col("status").cast(pl.Categorical))):
        check(source, stages=MEANINGS)
        check(source, stages=MEANINGS, columns={"stage": "status"})
        check(source, stages={" ok": "used", "other": "selected"})
    assert "'status' is the stage" in read(path, stages=MEANINGS).notes[0]


def test_the_objective_is_that_of_the_clients_that_did_not_fail() -> None:
    """Ann: (1/2 + 1 + 1 + 1) / 4 = 7/8, so the L1 skew is 2 (7/8 - 1/2); else each has a half."""
    result = ft.audit(ROWS, stages=MEANINGS)
    assert result.objectives.plain.l1_skew == pytest.approx(0.75)
    everybody = ft.audit(ROWS, stages={"OK": "used", "TIMEOUT": "used"})
    assert everybody.objectives.plain.l1_skew == pytest.approx(0.0)


def test_other_words_numbers_and_missing_values() -> None:
    failed = pl.col("status") == "TIMEOUT"
    for name, values, meanings in (
        ("success", ~failed, {True: "used", False: "selected"}),
        ("Is Failed", failed.cast(pl.Float64), {0: "used", 1: "selected"}),
        ("used", (~failed).cast(pl.Int64), {"1": "used", "0": "selected"}),
        ("error", pl.when(failed).then(pl.lit("late")), {"": "used", "other": "selected"}),
        ("error", pl.when(failed).then(pl.lit("late")), {None: "used", "LATE": "selected"}),
        ("stage", pl.when(failed).then(pl.lit("X")).otherwise(pl.lit("used")), {"X": "selected"}),
    ):
        check(ROWS.with_columns(values.alias(name)).drop("status"), stages=meanings)


def test_a_status_is_the_reason_if_asked_for() -> None:
    log = read(ROWS, stages=MEANINGS, columns={"stage": "status", "reason": "status"})
    assert log.refusals is not None
    assert log.refusals.total() == {"TIMEOUT": 3}


def test_values_without_a_meaning_are_listed_with_counts_and_the_option() -> None:
    sentence = error_of(ROWS, columns={"stage": "status"})
    assert sentence.startswith("stage: unknown stages 'OK' (5), 'TIMEOUT' (3) (column 'status'); ")
    assert f"stages={MEANINGS!r} or --stages OK=used,TIMEOUT=selected" in sentence
    sentence = error_of(ROWS, stages={"OK": "used"})
    assert sentence.startswith("stage: unknown stage 'TIMEOUT' (3) (column 'status'); ")
    assert "--stages OK=used,TIMEOUT=selected" in sentence
    many = ROWS.with_columns(status=pl.format("E{}", pl.int_range(pl.len())))
    assert "and 2 more" in error_of(many, columns={"stage": "status"})
    missing = ROWS.with_columns(status=pl.col("status").replace("TIMEOUT", None))
    assert error_of(missing, stages={"OK": "used"}).endswith(
        "--stages OK=used,=selected, or remove the column if all rows are used"
    )
    check(missing, stages={"OK": "used", "": "selected"})


@pytest.mark.parametrize(
    ("name", "good", "bad", "stage"),
    [
        ("state", "FINISHED", "SKIPPED", "available"),
        ("status", "OK", "not_selected", "available"),
        ("status", "OK", "TIMEOUT: client did not answer", "selected"),
        ("status", "OK", "did not respond", "selected"),
        ("status", "ok", "failed (not retried)", "selected"),
        ("error", None, "CUDA error: device not ready", "selected"),
        ("failure_reason", None, "client is idle", "selected"),
    ],
)
def test_failures_are_not_taken_for_clients_that_were_passed_over(
    name: str, good: object, bad: str, stage: str
) -> None:
    values = [bad if status == "TIMEOUT" else good for status in ROWS["status"]]
    log = ROWS.drop("status").with_columns(pl.Series(name, values))
    assert f"{bad!r}: {stage!r}" in error_of(log)


@pytest.mark.parametrize("bad", ["not_converged", "not cached", "not late"])
def test_what_else_was_not_is_no_failure(bad: str) -> None:
    values = [bad if status == "TIMEOUT" else "trained" for status in ROWS["status"]]
    assert list_entries(read(ROWS.with_columns(pl.Series("status", values)))) == SELECTED


def test_meanings_that_cannot_be_used_are_refused() -> None:
    assert error_of(ROWS, stages={"OK": "usd"}).startswith("stages: 'OK' is to mean 'usd'; ")
    assert error_of(ROWS.drop("status"), stages=MEANINGS).startswith(
        "stages: no column is called 'stage', 'status' or the like; name the column with columns="
    )
    two = ROWS.with_columns(result=pl.lit("x"))
    sentence = error_of(two, stages=MEANINGS)
    assert sentence.startswith("stages: 'status' and 'result' may say")
    assert "--columns stage=status" in sentence
    check(two, stages=MEANINGS, columns={"stage": "status"})


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("status", "OK", "TIMEOUT"),
        ("Status", "reported", "client disconnected"),
        ("state", "done", "FAILED"),
        ("state", "FINISHED", "SKIPPED"),
        ("status", "aggregated", "not_aggregated"),
        ("outcome", "trained", "DEADLINE: timed out"),
        ("result", None, "RuntimeError: CUDA out of memory"),
        ("success", True, False),
        ("completed", "yes", "no"),
        ("ok", 1, 0),
        ("failed", False, True),
        ("dropped", 0.0, 1.0),
        ("participated", 1, 0),
        ("Is Used", 1.0, 0.0),
        ("selected", True, False),
        ("active", "true", "false"),
        ("present", "t", "f"),  # as PostgreSQL writes them
        ("online", "online", "offline"),
        ("error", None, "CUDA out of memory"),
        ("error", 0, 1),
        ("failure_reason", None, "battery"),
        ("exception", "-", "KeyError('x')"),
        ("exception", False, True),
    ],
)
def test_rows_that_plainly_failed_are_refused(
    tmp_path: Path, name: str, good: object, bad: object
) -> None:
    """They would count as participation; what the sentence proposes leaves them out."""
    values = [bad if status == "TIMEOUT" else good for status in ROWS["status"]]
    log = ROWS.drop("status").with_columns(pl.Series(name, values))
    log.write_csv(tmp_path / "log.csv")
    for source in (log, tmp_path / "log.csv"):
        sentence = error_of(source)
        assert sentence.startswith(f"log: '{name}' is ")
        assert "in 3 of 8 rows, which would count as participation; " in sentence
        given = shlex.split(sentence.split(" --stages ")[1])[0]
        arguments = ["audit", str(tmp_path / "log.csv"), "--stages", given]
        if "--columns" in sentence:
            arguments += ["--columns", f"stage={name}"]
        out = tmp_path / "a.json"
        done = CliRunner().invoke(app, [*arguments, "--json", str(out)])
        assert done.exit_code == 0, done.output
        assert json.loads(out.read_text())["objective"]["weights"] == {"ann": 0.875, "bob": 0.125}
    with_stages = log.with_columns(stage=pl.lit("used"))
    assert list_entries(read(with_stages)) == SELECTED
    same = log.with_columns(pl.Series(name, [bad] * len(log)))
    if is_called(name, PRESENCE_NAMES):
        assert error_of(same).startswith(f"log: '{name}' is '{bad}' in 8 of 8 rows")
    else:
        assert list_entries(read(same)) == SELECTED


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("status", ["OK", "late"]),
        ("status", ["OK", "not_pending"]),
        ("state", ["OR", "OK"]),
        ("result", [0.25, 1.0]),
        ("error", [0.25, 1.0]),
        ("error", ["0.25", "none"]),
        ("error", ["OK", "no error"]),
        ("status", [200, 204]),
        ("result", [[1], [2]]),
        ("outcome", [b"x", b"y"]),
        ("is_failure", ["no", "yes"]),
    ],
)
def test_columns_that_do_not_say_who_failed_are_not_read(name: str, values: list[object]) -> None:
    log = ROWS.drop("status").with_columns(pl.Series(name, values * 4))
    assert list_entries(read(log)) == SELECTED
    assert any(f"columns that are not read: '{name}'" in note for note in read(log).notes)


def test_an_outcome_of_mixed_types_does_not_refuse_a_log(tmp_path: Path) -> None:
    """Nothing is read of it: "result" has the loss of a client, or a list of losses."""
    rows = ROWS.drop("status").to_dicts()
    for i, row in enumerate(rows):
        row["result"] = [0.5, {"loss": 0.5}, "x"][i % 3]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert list_entries(read(tmp_path / "log.jsonl")) == SELECTED


@pytest.mark.parametrize("values", [["da", "weg"], [0, 7], ["x", None]])
def test_values_whose_rows_alone_have_no_samples_are_failures(
    tmp_path: Path, values: list[object]
) -> None:
    """Bob's sample counts are missing from round 1 on, where the status says something else."""
    status = [values[word == "TIMEOUT"] for word in ROWS["status"]]
    samples = [5, 5, 5, None, 5, None, 5, None]
    log = ROWS.with_columns(status=pl.Series(status), num_examples=pl.Series(samples))
    log.write_csv(tmp_path / "log.csv")
    for source in (log, log.with_columns(pl.col("num_examples").cast(float)), tmp_path / "log.csv"):
        assert "in 3 of 8 rows, which would count as participation; " in error_of(source)
    shuffled = log.with_columns(num_examples=pl.Series(samples[::-1]))
    assert list_entries(read(shuffled)) == SELECTED
    assert list_entries(read(log.with_columns(pl.lit(5).alias("num_examples")))) == SELECTED


@pytest.mark.parametrize(("name", "good", "bad"), [("status", "OK", "TIMEOUT"), ("used", 1, 0)])
@pytest.mark.parametrize("counted", ["nobody", "failures"])
def test_failures_are_refused_also_where_the_others_have_no_samples(
    name: str, good: object, bad: object, counted: str
) -> None:
    failed = [status == "TIMEOUT" for status in ROWS["status"]]
    counts = pl.Series([5 if f and counted == "failures" else None for f in failed], dtype=pl.Int64)
    outcome = pl.Series(name, [bad if f else good for f in failed])
    log = ROWS.drop("status").with_columns(outcome, num_examples=counts)
    assert "in 3 of 8 rows, which would count as participation; " in error_of(log)


def test_failures_in_any_case_are_counted() -> None:
    log = ROWS.with_columns(status=pl.Series(["OK"] * 5 + ["timeout", "Timeout", "TIMEOUT"]))
    assert "or the like in 3 of 8 rows" in error_of(log)


def test_many_messages_are_one_failure(tmp_path: Path) -> None:
    rows = [
        {"round": t, "client": n, "error": f"lost after {t} s: {n}" if n == 3 else None}
        for t in range(200)
        for n in range(4)
    ]
    sentence = error_of(pl.DataFrame(rows))
    assert "in 200 of 800 rows" in sentence
    assert "--stages =used,other=selected" in sentence
    log = read(pl.DataFrame(rows), stages={"": "used", "other": "selected"})
    assert log.counts.tolist() == [200, 200, 200, 0]


def test_command_maps_values_to_stages(tmp_path: Path) -> None:
    ROWS.write_csv(tmp_path / "log.csv")
    log, out = str(tmp_path / "log.csv"), str(tmp_path / "a.json")
    for options in (
        ["--stages", "OK=used,TIMEOUT=selected"],
        ["--stages", "OK=used", "--stages", "TIMEOUT=selected", "--columns", "stage=status"],
    ):
        done = CliRunner().invoke(app, ["audit", log, *options, "--json", out])
        assert done.exit_code == 0, done.output
        assert json.loads(Path(out).read_text())["objective"]["weights"]["ann"] == 0.875
    wrong = CliRunner().invoke(app, ["audit", log, "--stages", "OK"])
    assert str(wrong.exception).startswith("stages: 'OK' is not VALUE=STAGE; write OK=used,")


@pytest.mark.parametrize("name", ["error", "result", "status"])
def test_a_column_of_many_measurements_refuses_no_log(name: str) -> None:
    values = [float("inf"), *(k / 7 for k in range(199))]
    log = pl.DataFrame({"round": range(200), "client": ["ann", "bob"] * 100, name: values})
    assert len(list_entries(read(log))) == 200


def test_the_option_that_an_error_names_is_short_and_works(tmp_path: Path) -> None:
    rounds, path = 80, tmp_path / "log.csv"
    words = [f"state {k % 40}" for k in range(rounds)]
    words[7] = "failed, retry"
    pl.DataFrame({"round": range(rounds), "client": ["ann"] * rounds, "status": words}).write_csv(
        path
    )
    message = error_of(path)
    assert "stages={'failed, retry': 'selected', 'other': 'used'}" in message
    option = shlex.split(message[message.index("--stages") :])
    result = CliRunner().invoke(app, ["audit", str(path), *option, "--clients", "1"])
    assert "is not VALUE=STAGE" not in result.output
    assert "unknown stage" not in result.output


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_an_error_that_is_an_object_is_an_error(tmp_path: Path, suffix: str) -> None:
    error = [
        {"code": 504, "message": "no reply"} if s == "TIMEOUT" else None for s in ROWS["status"]
    ]
    rows = ROWS.drop("status").with_columns(error=pl.Series(error, dtype=pl.Struct))
    path = tmp_path / f"log{suffix}"
    {".jsonl": rows.write_ndjson, ".parquet": rows.write_parquet}[suffix](path)
    found = error_of(path)
    assert found.startswith("log: 'error' is 'object' in 3 of 8 rows, which would count as")
    assert "--stages =used,object=selected" in found
    check(path, stages={"": "used", "object": "selected"})


def test_an_event_says_who_failed(tmp_path: Path) -> None:
    rows = ROWS.with_columns(
        event=pl.col("status").replace({"OK": "update_received", "TIMEOUT": "update_rejected"})
    ).drop("status")
    assert error_of(rows).startswith("log: 'event' is 'update_rejected' in 3 of 8 rows")
    check(rows, stages={"update_received": "used", "update_rejected": "selected"})
    # A status says it better, and was read before.
    check(ROWS.with_columns(event=pl.lit("fit")), stages={"OK": "used", "TIMEOUT": "selected"})


def make_events(*words: str | None) -> pl.DataFrame:
    """Return a row for each event of a client's turn: selected, started, answered, or failed."""
    selected, started, answered, failed = words
    turns = {"OK": (selected, started, answered), "TIMEOUT": (selected, started, failed)}
    rows = [
        {"server_round": t, "device_id": name, "event": word}
        for t, name, status in ROWS.iter_rows()
        for word in turns[status]
        if word is not None
    ]
    return pl.DataFrame(rows)


@pytest.mark.parametrize(
    "words",
    [
        ("selected", "started", "reported", "failed"),
        ("selected", "started", "reported", None),
        ("Task assigned", "training started", "update received", "timed out"),
        ("TASK_ASSIGNED", "TRAINING_STARTED", "UPDATE_RECEIVED", None),
        ("invited", None, "done", None),
    ],
)
@pytest.mark.parametrize("timed", [False, True])
def test_a_row_for_each_event_of_a_turn(
    tmp_path: Path, words: tuple[str | None, ...], timed: bool
) -> None:
    """The rows of what comes before the answer are refused; what the sentence proposes is right."""
    events, options = make_events(*words), list[str]()
    if timed:
        events = events.select("device_id", "event", time=3600 * pl.col("server_round") + 1)
        options = ["--round-seconds", "3600"]
    path, out = tmp_path / "log.csv", tmp_path / "a.json"
    events.write_csv(path)
    sentence = error_of(events, round_seconds=3600 if timed else None)
    assert "which would count as participation; " in sentence
    given = shlex.split(sentence.split(" --stages ")[1])[0]
    arguments = ["audit", str(path), "--stages", given, "--json", str(out), *options]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert json.loads(out.read_text())["objective"]["weights"] == {"ann": 0.875, "bob": 0.125}


def test_several_events_of_one_stage_count_once() -> None:
    """Two values that mean the same stage below `used` are two events of one turn."""
    events = make_events("selected", "started", "reported", "failed")
    meanings = {"started": "selected", "reported": "used", "failed": "selected"}
    check(events, stages=meanings)
    check(events, stages={"reported": "used", "other": "selected"})
    again = events.filter(event="reported").head(1)
    assert error_of(pl.concat([events, again]), stages=meanings).startswith(
        "client: 'ann' appears twice in round 0"
    )
    both = events.with_columns(pl.col("event").replace("started", "selected"))
    assert error_of(
        both.filter(event="selected").vstack(both.filter(event="reported")),
        stages={"reported": "used"},
    ).startswith("client: 'ann' appears twice in round 0")


def test_failures_are_refused_where_nothing_says_who_answered() -> None:
    events = make_events("selected", None, None, "failed")
    sentence = error_of(events)
    assert sentence.startswith("log: 'event' is 'failed' in 3 of 11 rows, which would count as")
    assert "--stages selected=STAGE,failed=selected" in sentence


def test_the_meanings_of_further_events_are_left_to_the_user() -> None:
    events = make_events("selected", "downloaded", "reported", "failed")
    sentence = error_of(events)
    assert "--stages downloaded=STAGE,reported=used,failed=selected,selected=selected" in sentence
