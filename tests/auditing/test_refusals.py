"""Why clients were left out of rounds: counted row by row, from ledgers and files of any kind."""

from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import fedtide as ft
from fedtide.auditing.log.reader import LogSource, read_participation_log
from fedtide.errors import InvalidInputError
from fedtide.participation import read_log, write_log
from fedtide.participation.log.schema import REASONS, STAGES

ROUNDS = 40


def draw_log() -> pl.DataFrame:
    """Return a log of eight clients: h is refused in every round, g never replies."""
    random, rows = np.random.default_rng(3), []
    for t in range(ROUNDS):
        for client in "abcdef":
            stage = STAGES[random.choice(4, p=[0.2, 0.2, 0.1, 0.5])]
            reason = None
            if stage in ("selected", "reported"):
                reason = str(random.choice(["no reply", "error", "malformed", "too old"]))
            rows.append((t, client, stage, reason))
        rows.append((t, "g", "selected", "error" if t % 4 else "no reply"))
        rows.append((t, "h", "reported", "not finite" if t < 30 else "late"))
    return pl.DataFrame(rows, schema=["round", "client", "stage", "reason"], orient="row")


@pytest.fixture(scope="module")
def log() -> pl.DataFrame:
    return draw_log()


@pytest.fixture(scope="module")
def result(log: pl.DataFrame) -> ft.auditing.Audit:
    return ft.audit(log.sample(fraction=1.0, shuffle=True, seed=1))


def count_reasons(log: pl.DataFrame) -> dict[str, Counter[str]]:
    """Return the reasons of each client, counted row by row."""
    counts: dict[str, Counter[str]] = {}
    for client, reason in log.select("client", "reason").rows():
        if reason is not None:
            counts.setdefault(client, Counter())[reason] += 1
    return counts


def read_reasons(
    source: LogSource, columns: dict[str, str] | None = None
) -> dict[str, dict[str, int]]:
    """Return the reasons of each client as an audit reads them."""
    log = read_participation_log(source, columns=columns)
    if log.refusals is None:
        return {}
    found = {str(name): log.refusals.of_client(n) for n, name in enumerate(log.names)}
    return {name: reasons for name, reasons in found.items() if reasons}


def test_a_client_refused_in_every_round_is_named_with_its_reasons(
    result: ft.auditing.Audit,
) -> None:
    limits = " ".join(result.limits)
    assert f"h 40 times: {REASONS['not finite']} (30), {REASONS['late']} (10)" in limits
    assert f"g 40 times: {REASONS['error']} (30), {REASONS['no reply']} (10)" in limits
    assert "never took part" not in limits


def test_the_document_has_the_reasons_of_each_client_and_their_sums(
    result: ft.auditing.Audit, log: pl.DataFrame
) -> None:
    refusals, expected = result.to_dict()["refusals"], count_reasons(log)
    assert refusals["clients"] == expected
    assert refusals["total"] == sum(expected.values(), Counter())


@pytest.mark.parametrize("name", ["log.csv", "log.ndjson"])
def test_reasons_come_from_files_under_several_names(
    log: pl.DataFrame, tmp_path: Path, name: str
) -> None:
    expected = count_reasons(log)
    write_log(tmp_path / name, log)
    assert "reason" in read_log(tmp_path / name).columns
    assert read_reasons(tmp_path / name) == expected
    assert read_reasons(log.rename({"reason": "Failure Reason"})) == expected
    renamed = log.rename({"reason": "why"})
    assert read_reasons(renamed) == {}
    assert read_reasons(renamed, {"reason": "why"}) == expected


def test_a_log_with_a_row_for_each_stage_counts_a_round_once(log: pl.DataFrame) -> None:
    earlier = log.filter(pl.col("stage") != "available").with_columns(
        stage=pl.lit("available"), reason=pl.lit("no reply")
    )
    several = pl.concat([log, earlier]).sample(fraction=1.0, shuffle=True, seed=2)
    assert read_reasons(several) == count_reasons(log)


def test_a_log_in_which_no_update_was_used_is_refused_with_the_reasons(log: pl.DataFrame) -> None:
    with pytest.raises(InvalidInputError, match=r"^log: .* 40 rounds: its update held.*\(30\).*; "):
        ft.audit(log.filter(client="h"))


def test_a_reason_from_a_file_cannot_control_the_terminal(log: pl.DataFrame) -> None:
    forged = "x\n• all is well \x1b[2J" + "y" * 10_000
    frame = log.with_columns(
        reason=pl.when(pl.col("reason") == "error").then(pl.lit(forged)).otherwise("reason")
    )
    said = str(ft.audit(frame).summary())
    assert "\x1b[2J" not in said
    assert "y" * 100 not in said


def test_a_client_whose_name_another_node_claims_was_not_available(log: pl.DataFrame) -> None:
    """Its rows count as refusals; on availability and selection they say nothing."""
    stages = [("used", None), *[("available", "unregistered")] * 3]
    rows = [(t, "z", *stages[t % 4]) for t in range(ROUNDS)]
    claimed = pl.concat([log, pl.DataFrame(rows, schema=log.schema, orient="row")])
    found = ft.audit(claimed)
    without = ft.audit(claimed.filter(pl.col("reason").ne_missing("unregistered")))
    assert found.log.refusals.of_client(8) == {"unregistered": ROUNDS * 3 // 4}
    assert found.availability.counts[8] == ROUNDS // 4
    np.testing.assert_array_equal(found.availability.counts, without.availability.counts)
    assert found.selection.selecting.p_value == without.selection.selecting.p_value
