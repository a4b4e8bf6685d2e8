"""The presentations of an audit: terminal, HTML page and JSON.

One small log is compared with golden files; FEDTIDE_WRITE_GOLDEN=1 writes them again.
"""

import io
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from tests.auditing.logs import to_frame

import fedtide as ft
from fedtide.auditing import Audit
from fedtide.auditing.output.html_page import render_page
from fedtide.auditing.output.sentences import list_lines
from fedtide.auditing.output.terminal import show

GOLDEN = Path(__file__).parent / "golden"


def print_summary(result: Audit) -> str:
    file = io.StringIO()
    show(result, Console(file=file, width=80))
    return file.getvalue()


@pytest.fixture(scope="module")
def hospitals() -> Audit:
    """Six hospitals: a server prefers two, one leaves, one is refused, one never comes."""
    random = np.random.default_rng(7)
    names = ["aarhus", "bonn", "cork", "delft", "evora"]
    online = random.random((120, 5)) < [0.9, 0.8, 0.7, 0.6, 0.4]
    online[60:, 3] = False
    rows = []
    for t, there in enumerate(online):
        order = sorted(np.flatnonzero(there), key=lambda n: (n > 1, random.random()))
        for place, n in enumerate(order):
            stage = "used" if place < 2 else "available"
            if stage == "used" and n == 4:
                stage = "reported"
            rows.append((t, names[n], stage, "error" if stage == "reported" else None))
    log = pl.DataFrame(rows, schema=["round", "client", "stage", "reason"], orient="row")
    roster = pl.DataFrame({"client": [*names, "faro"], "coast": list("yynnyy")})
    return ft.audit(log, roster=roster, dimension=1000, training=ft.auditing.Training(1.0))


def compare(name: str, text: str) -> str:
    """Return the golden text, after writing it if that is asked for."""
    if os.environ.get("FEDTIDE_WRITE_GOLDEN"):
        GOLDEN.mkdir(exist_ok=True)
        (GOLDEN / name).write_text(text, encoding="utf-8")
    return (GOLDEN / name).read_text(encoding="utf-8")


def test_terminal(hospitals: Audit) -> None:
    text = print_summary(hospitals)
    assert text == compare("audit.txt", text)


def test_page(hospitals: Audit) -> None:
    """Without its figures and its style."""
    page = re.sub(r"<svg.*?</svg>", "<svg></svg>", render_page(hospitals), flags=re.DOTALL)
    page = re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)
    assert page == compare("audit.html", page)


def test_json(hospitals: Audit) -> None:
    text = json.dumps(hospitals.to_dict(), indent=1, allow_nan=False) + "\n"
    golden = json.loads(compare("audit.json", text))
    check_equal(hospitals.to_dict(), golden, "audit")


def check_equal(found: Any, golden: Any, path: str) -> None:
    """Compare nested data, numbers up to rounding."""
    if isinstance(golden, dict):
        assert list(found) == list(golden), path
        for key, value in golden.items():
            check_equal(found[key], value, f"{path}.{key}")
    elif isinstance(golden, list):
        assert len(found) == len(golden), path
        for place, value in enumerate(golden):
            check_equal(found[place], value, f"{path}[{place}]")
    elif isinstance(golden, float):
        assert found == pytest.approx(golden, rel=1e-6, abs=1e-9), path
    else:
        assert found == golden, path


def test_a_page_is_self_contained_and_its_tables_have_heads(hospitals: Audit) -> None:
    page = render_page(hospitals)
    for external in ("<script", "<link", 'src="http', "@import", "url(http"):
        assert external not in page
    assert page.count("<svg") == 7
    assert "<th>" not in page
    heads = re.findall(r"<thead>(.*?)</thead>", page)
    assert len(heads) == page.count("<table>")
    assert page.count("<details>") == len(hospitals.advice)


def test_over_represented_group_is_measured() -> None:
    """Expected: night has the rate 0.6 and a quarter of the clients: 0.6 / (0.6 + 0.3) = 2/3."""
    night = np.arange(40) % 4 == 0
    present = draw(np.where(night, 0.6, 0.1))
    roster = pl.DataFrame({"client": np.arange(40), "shift": np.where(night, "night", "day")})
    result = ft.audit(to_frame(present), roster=roster)
    groups = result.groups[0]
    place = groups.names.index("night")
    assert groups.low[place] <= 0.667 + 0.01 <= groups.high[place] + 0.03
    assert groups.ratios[place] == pytest.approx(8 / 3, rel=0.05)
    assert groups.weights.sum() == pytest.approx(1)
    table = result.clients()
    assert table["rate"].to_list() == (present.sum(axis=0) / 400).tolist()
    assert table["weight"].sum() == pytest.approx(1)


UNEVEN = np.geomspace(0.6, 0.03, 40)


def audit_of(present: np.ndarray, **options: Any) -> Audit:
    return ft.audit(to_frame(present), clients=present.shape[1], **options)


def draw(rates: Any, rounds: int = 400, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).random((rounds, len(rates))) < rates


def draw_turns() -> np.ndarray:
    """Two halves of the clients take turns of 40 rounds: even on the whole, not at any time."""
    turn = np.arange(960)[:, None] // 40 % 2
    return draw(np.full(40, 0.3), 960) & (np.arange(40) % 2 == turn)


def leave_out(present: np.ndarray) -> np.ndarray:
    present = present.copy()
    present[:, 20:] = False
    return present


def rise_and_fade() -> np.ndarray:
    rise = np.linspace(0, 0.5, 500)[:, None]
    return draw(np.full(30, 1.0), 500) & (
        np.random.default_rng(1).random((500, 30)) < np.where(np.arange(30) < 15, rise, 0.5 - rise)
    )


def draw_few() -> np.ndarray:
    """Draw 3 of 100 clients in each of 30 rounds, the first 50 about four times as often."""
    keys = np.random.default_rng(0).exponential(size=(30, 100))
    keys[:, :50] /= 4
    return keys.argsort(axis=1).argsort(axis=1) < 3


@pytest.mark.parametrize(
    ("present", "verdict", "favours"),
    [
        (draw(UNEVEN), "mostly that of some clients", True),
        (draw(np.full(40, 0.2)), "everyone's, as far as this log shows", False),
        (draw(np.where(np.arange(40) < 20, 0.192, 0.208), 8000), "nearly everyone's", False),
        (draw(UNEVEN, 8), "not known: too few rounds", None),
        (draw_few(), "not known: too few rounds", None),
        (np.ones((50, 6), dtype=bool), "everyone's: every client has the influence", False),
        (draw_turns(), "that of different clients at different times", True),
        (rise_and_fade(), "lately that of some clients: in the last ", True),
        (leave_out(draw(np.full(40, 0.2))), "that of the clients that came: 20 of 40", True),
        (leave_out(draw(UNEVEN)), "mostly that of some clients", True),
    ],
    ids=[
        *("uneven", "even", "little", "short", "few", "all"),
        *("turns", "now", "never", "never and uneven"),
    ],
)
def test_the_first_line_says_whose_model_it_is(
    present: np.ndarray, verdict: str, favours: bool | None
) -> None:
    """The rule of "Acting on it" in docs/audit.md."""
    result = audit_of(present)
    lines = list_lines(result)
    assert lines["WHOSE MODEL"].startswith(verdict)
    assert result.to_dict()["objective"]["favours_clients"] is favours
    assert result.to_dict()["summary"] == lines
    sure = {True: "beyond chance", None: "not ", False: "if participation stays alike, at most"}
    assert lines["HOW SURE"].startswith(sure[favours])
    assert re.match("none|found|not testable", lines["DRIFT"])


@pytest.mark.parametrize("names", [("Mayo", "Porto"), ("7", "12")])
def test_the_first_line_names_who_counts_most_and_least(names: tuple[str, str]) -> None:
    """Two of four in a round, the first always: half of the influence, twice its quarter."""
    second = np.random.default_rng(3).choice(3, 300, p=[0.1, 0.45, 0.45])
    rows = [(t, names[0]) for t in range(300)]
    rows += [(t, (names[1], "oslo", "gent")[n]) for t, n in enumerate(second)]
    lines = list_lines(ft.audit(pl.DataFrame(rows, schema=["round", "client"], orient="row")))
    first, last = (f"client {name}" if name.isdigit() else name for name in names)
    rarely = 4 * (second == 0).mean() / 2
    said = f"; {first} counts 2.0 times its share, {last} {rarely:.2f} times"
    assert lines["WHOSE MODEL"].endswith(said)  # the other two have 0.9 of theirs: chance


def test_names_are_escaped_and_no_mathematics() -> None:
    log = pl.DataFrame({"round": [0, 1, 2, 3], "client": ["<b>", "<b>", "a [red]", "<b>"]})
    roster = pl.DataFrame({"client": ["<b>", "a [red]"], "price": ["$5 to $_{", "more"]})
    result = ft.audit(log, roster=roster)
    page = render_page(result)
    assert "<b></td>" not in page
    assert "&lt;b&gt;" in page
    assert "$5 to $_{" in page
    assert "a [red]" in print_summary(result)


def test_page_cuts_blocks_that_hold_every_one_of_many_clients() -> None:
    """Strategies name the clients: with 20,000 of them, the page would have some megabytes."""
    random = np.random.default_rng(1)
    rounds, clients = np.repeat(np.arange(60), 1000), random.integers(20_000, size=60_000)
    table = pl.DataFrame({"round": rounds, "client": clients}).unique()
    result = ft.audit(table.with_columns(pl.format("client-{}", "client").alias("client")))
    assert len(result.advice[0].strategy) > 200_000
    assert len(page := render_page(result)) < 1_000_000
    assert "more characters: --json writes" in page
    assert result.to_dict()["advice"][0]["strategy"] == result.advice[0].strategy


SMALL_LOGS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 5)), min_size=2, max_size=60, unique=True
).filter(lambda rows: len({t for t, _ in rows}) > 1)


def check_log(rows: list[tuple[int, int]]) -> Audit:
    log = pl.DataFrame(rows, schema=["round", "client"], orient="row")
    result = ft.audit(log, clients=6)
    document = json.dumps(result.to_dict(), allow_nan=False)
    assert json.loads(document)["never_seen"] == 6 - log["client"].n_unique()
    print_summary(result)
    return result


@pytest.mark.parametrize(
    "rows",
    [
        [(0, 0), (1, 0)],
        [(0, 2), (30, 2)],
        [(t, t % 6) for t in range(24)],
    ],
)
def test_tiny_logs_are_audited(rows: list[tuple[int, int]]) -> None:
    assert "Whose model" in render_page(check_log(rows))


@pytest.mark.fuzz
@settings(max_examples=40)
@given(SMALL_LOGS)
def test_every_small_log_is_audited(rows: list[tuple[int, int]]) -> None:
    check_log(rows)
