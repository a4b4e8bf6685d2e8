"""The presentations of an audit: JSON, terminal and HTML page."""

import io
import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from tests.auditing.logs import from_cohorts, log_to_frame, simulate_log

import fedtide as ft
from fedtide.auditing import Audit
from fedtide.auditing.output.audit_figures import draw_history, draw_influence
from fedtide.auditing.output.html_page import render_page
from fedtide.auditing.output.terminal import show
from fedtide.auditing.output.text import describe_pattern, describe_shift, describe_window
from fedtide.auditing.statistics.pattern import NEIGHBOURS
from fedtide.auditing.statistics.skew import SkewEstimate
from fedtide.auditing.statistics.stages import StageShift
from fedtide.participation import Bernoulli, Schedule


def print_summary(result: Audit) -> str:
    file = io.StringIO()
    show(result, Console(file=file, width=80))
    return file.getvalue()


@pytest.fixture(scope="module")
def result() -> Audit:
    """The audit of a log in which the night shift has 8/3 of its share of the influence."""
    rates = [0.6 if n % 4 == 0 else 0.1 for n in range(40)]
    log = simulate_log(Schedule(Bernoulli(rates)), 40, 400, 0)
    shifts = ["night" if n % 4 == 0 else "day" for n in range(40)]
    roster = pl.DataFrame({"client": np.arange(40), "shift": shifts})
    return ft.audit(log_to_frame(log), roster=roster, simulate=True, training=None)


def test_over_represented_group_is_measured(result: Audit) -> None:
    """Expected: night has the rate 0.6 and a quarter of the clients: 0.6 / (0.6 + 0.3) = 2/3."""
    groups = result.groups[0]
    night = groups.names.index("night")
    assert groups.low[night] <= 0.667 + 0.01 <= groups.high[night] + 0.03
    assert groups.ratios[night] == pytest.approx(8 / 3, rel=0.05)
    assert groups.weights.sum() == pytest.approx(1)


def test_clients_are_one_row_each(result: Audit) -> None:
    table = result.clients()
    assert table.height == 40
    assert table["rate"].to_list() == (result.log.counts / 400).tolist()
    assert table["weight"].sum() == pytest.approx(1)


def test_json_has_the_promised_keys(result: Audit) -> None:
    document = json.loads(json.dumps(result.to_dict()))
    assert (document["clients"], document["rounds"], document["never_seen"]) == (40, 400, 0)
    assert set(document["coverage"]) >= {"longest_absence", "empty_rounds"}
    low, estimate, high = document["rates"]["0"]
    assert low < estimate == result.log.counts[0] / 400 < high
    objective = document["objective"]
    assert sum(objective["weights"].values()) == pytest.approx(1)
    assert objective["l1_skew"] == pytest.approx(2 * objective["total_variation"])
    assert objective["l1_skew_interval"][0] < objective["l1_skew"]
    assert set(document["pattern"]) >= {"family", "reason", "period", "parameters", "evidence"}
    assert set(document["regularity"][0]) == {"period", "value"}
    assert set(document["settings"]) >= {"cutoff", "period"}
    assert document["unseen"] is None
    assert set(document["churn"]) == {"tested", "gone", "late"}
    assert document["availability"] is document["selection"] is None
    assert set(objective["now"]) >= {"rounds", "l1_skew", "l1_skew_interval", "series"}
    assert set(document["forgetting"]) >= {"estimate", "interval", "window", "p_value"}
    keys = {"algorithm", "parameters", "reasons", "memory_floats"}
    assert all(set(advice) >= keys for advice in document["advice"])


def test_summary_fits_on_one_screen(result: Audit) -> None:
    text = print_summary(result)
    assert "shift night" in text
    assert "times its share" in text
    assert len(text.splitlines()) <= 40


@pytest.mark.parametrize(
    ("ends", "bound"), [((-0.00031, 0.0002), "0.00031"), ((-0.01, 0.01204), "0.013")]
)
def test_bounds_are_rounded_up(result: Audit, ends: tuple[float, float], bound: str) -> None:
    """A correlation within ±0.00031 is not within ±0.000, nor one within ±0.01204 within 0.012."""
    evidence = [
        replace(one, interval=ends) if one.test == NEIGHBOURS else one
        for one in result.pattern.evidence
    ]
    changed = replace(result, pattern=replace(result.pattern, evidence=evidence))
    assert f"neighbouring rounds within ±{bound} (95%)" in describe_pattern(changed)


def test_page_is_self_contained(result: Audit) -> None:
    page = render_page(result)
    for external in ("<script", "<link", 'src="http', "@import", "url(http"):
        assert external not in page
    assert page.count("<svg") == 6
    assert "width=device-width" in page


def test_head_cells_say_what_they_head(result: Audit) -> None:
    page = render_page(result)
    assert page.count("<th ") == page.count('scope="col"') + page.count('scope="row"')
    assert "<th>" not in page
    heads = re.findall(r"<thead>(.*?)</thead>", page)
    assert len(heads) == page.count("<table>")
    assert all('scope="row"' not in head for head in heads)


def test_a_short_log_has_no_empty_tables_and_figures_and_no_bounds_of_nothing() -> None:
    """Two rounds: too few for any test, and for a statement on the last rounds."""
    log = pl.DataFrame({"round": [0, 0, 1], "client": ["a", "b", "a"]})
    page = render_page(ft.audit(log))
    assert not re.search(r"<tbody>\s*</tbody>", page)
    assert "<figure></figure>" not in page
    assert "<p></p>" not in page
    assert "≥ 0" not in page
    assert "misplaced in the last rounds" not in page
    figure = page[page.index('aria-label="Irregularity of windows') :]
    axis = figure[figure.index('id="windows-matplotlib.axis_1"') :]
    ticks = re.findall(r">([\d.,]+)</text>", axis[: axis.index("window P")])
    assert ticks == ["1"]


def test_every_client_has_a_bar_of_its_influence() -> None:
    """Client a has 3/4 of two rounds, b 1/4; each bar reaches half a place to both sides."""
    log = pl.DataFrame({"round": [0, 0, 1], "client": ["a", "b", "a"]})
    figure = draw_influence(ft.audit(log))
    spans = []
    for shape in re.findall(r'<path id="influence-m\w+" d="([^"]*z)', figure)[:2]:
        points = re.findall(r"[ML] ([\d.]+) (-[\d.]+)", shape)
        shares = [x for x, y in points if y != points[0][1]]  # not at the height of a fair share
        spans.append((float(min(shares, key=float)), float(max(shares, key=float))))
    (middle, right), (left, end) = spans
    assert end == middle
    assert end - left == pytest.approx(right - middle, rel=0.01)
    assert end - left > 100


def test_page_holds_each_method_as_experiment_and_strategy(result: Audit) -> None:
    page = render_page(result)
    assert page.count("<details>") == len(result.advice)
    first = result.advice[0]
    assert f"algorithm: {{type: {first.algorithm}" in page.replace("\n", " ")
    assert "strategy = FedTide(" in page


def test_page_cuts_blocks_that_hold_every_one_of_many_clients() -> None:
    """Strategies name the clients: with 20,000 of them, the page would have some megabytes."""
    random = np.random.default_rng(1)
    rounds, clients = np.repeat(np.arange(60), 1000), random.integers(20_000, size=60_000)
    table = pl.DataFrame({"round": rounds, "client": clients}).unique()
    result = ft.audit(table.with_columns(pl.format("client-{}", "client").alias("client")))
    assert len(result.advice[0].strategy) > 200_000
    page = render_page(result)
    assert len(page) < 1_000_000
    assert "more characters: --json writes" in page
    assert result.to_dict()["advice"][0]["strategy"] == result.advice[0].strategy


def _labels_of_clients(
    page: str, title: str = "Participation rates", name: str = "rates"
) -> list[str]:
    """Return the labels of the horizontal axis of a figure."""
    figure = page[page.index(f'aria-label="{title}') :]
    axis = figure[figure.index(f'id="{name}-matplotlib.axis_1"') :]
    return re.findall(r">([\d,.]+)</text>", axis[: axis.index("clients, by ")])


def test_figures_of_one_client_have_one_label_and_a_point() -> None:
    page = render_page(ft.audit(pl.DataFrame({"round": range(0, 60, 2), "client": [0] * 30})))
    assert _labels_of_clients(page) == ["1"]
    assert _labels_of_clients(page, "Influence of each client", "influence") == ["1"]


def test_labels_of_rounds_in_the_millions_do_not_overlap() -> None:
    """A label of nine characters is as wide as a seventh of the axis."""
    random = np.random.default_rng(1)
    rounds, clients = np.nonzero(random.random((300, 20)) < 0.3)
    result = ft.audit(pl.DataFrame({"round": rounds + 1_500_000, "client": clients}))
    figure = draw_history(result)
    assert 2 <= len(re.findall(r">1,500,\d{3}</text>", figure)) <= 6


def test_headline_tells_now_from_the_whole_log() -> None:
    """Half of the clients fade away while the others rise: even on the whole, not at the end."""
    random = np.random.default_rng(1)
    rise = np.linspace(0, 0.5, 500)[:, None]
    present = random.random((500, 30)) < np.where(np.arange(30) < 15, rise, 0.5 - rise)
    rounds, clients = np.nonzero(present)
    result = ft.audit(pl.DataFrame({"round": rounds, "client": clients}), clients=30)
    whole, now = result.objectives.plain, result.objectives.now
    assert whole.l1_skew < 0.1
    assert now.interval[0] > 0.3
    text = " ".join(print_summary(result).split())
    assert "Now, in the last" in text
    assert f"{now.total_variation:.0%} is misplaced" in text.replace("│ │ ", "")
    assert "The objective in force swings" in text.replace("│ │ ", "")


UNEVEN = np.geomspace(0.6, 0.03, 40)


def audit_of(present: np.ndarray, **options: Any) -> Audit:
    rounds, clients = np.nonzero(present)
    frame = pl.DataFrame({"round": rounds, "client": clients})
    return ft.audit(frame, clients=present.shape[1], **options)


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
        (draw(UNEVEN), "Yes: averaging favours some clients beyond chance.", True),
        (draw(np.full(40, 0.2)), "No: chance can explain", False),
        (draw(np.where(np.arange(40) < 20, 0.192, 0.208), 8000), "No: averaging favours", False),
        (draw(UNEVEN, 8), "Not enough rounds to tell", None),
        (draw_few(), "Not enough rounds to tell", None),
        (np.ones((50, 6), dtype=bool), "No: every client has the influence", False),
        (draw_turns(), "In turns: averaging favours different clients", True),
        (rise_and_fade(), "Yes: in the last ", True),
        (leave_out(draw(np.full(40, 0.2))), "Yes, as 20 clients never took part and have", True),
        (leave_out(draw(UNEVEN)), "Yes: averaging favours some clients beyond chance.", True),
    ],
    ids=[
        *("uneven", "even", "little", "short", "few", "all"),
        *("turns", "now", "never", "never and uneven"),
    ],
)
def test_the_first_line_says_whether_clients_are_favoured_beyond_chance(
    present: np.ndarray, verdict: str, favours: bool | None
) -> None:
    """The rule of "Acting on it" in docs/audit.md."""
    result = audit_of(present)
    head, *lines = print_summary(result).splitlines()[1:]
    assert verdict in " ".join(f"{head} {lines[0]}".replace("│", "").split())
    assert result.to_dict()["objective"]["favours_clients"] is favours
    assert f'<p class="lead">{verdict.split(":")[0]}' in render_page(result) or favours is False
    starts = [line.strip("│ ").startswith("Over the whole log") for line in lines]
    assert sum(starts) == 1  # on a line of its own


def test_windows_agree_with_the_advice() -> None:
    """Three time zones: the advice has the cycle of 24 rounds, whatever windows are even."""
    day = np.arange(1200)[:, None] // 8 % 3 == np.arange(48) // 16
    for rates in (np.full(48, 0.3), np.geomspace(0.9, 0.02, 48)):
        result = audit_of(day & draw(rates, 1200))
        periods = {one.parameters.get("period") for one in result.advice} - {None}
        assert periods
        assert not any(period % 24 for period in periods)
        text = describe_window(result)
        assert "none is a period" not in text
        assert "shortest period" not in text
        if periods == {result.regularity.period}:
            assert text.endswith("): the period advised for amplified methods")
        else:
            listed = " or ".join(map(str, sorted(periods)))
            end = "one cycle" if periods == {24} else "whole cycles"
            assert text.endswith(f"for amplified methods is {listed} rounds, {end}")


@pytest.mark.parametrize("by", ["roster", "samples"])
def test_other_ways_of_averaging_are_judged_as_the_advice_judges_them(by: str) -> None:
    """Where unequal weights are wanted, losses are multiplied; a third never took part."""
    rounds, clients = np.nonzero(leave_out(draw(np.full(30, 0.3))))
    frame = pl.DataFrame({"round": rounds, "client": clients})
    wanted = np.arange(1, 31)
    options: dict[str, Any] = {"clients": 30}
    if by == "samples":
        frame = frame.with_columns(samples=wanted[clients])
    else:
        options = {"roster": pl.DataFrame({"client": np.arange(30), "weight": wanted})}
    result = ft.audit(frame, **options)
    assert result.wanted_source == by
    remaining = {
        "known rates": next(one for one in result.advice if one.algorithm == "known-rates"),
        "averaging over all clients": next(
            one for one in result.advice if one.parameters.get("weights") == "all"
        ),
    }
    page = render_page(result)
    rows = dict(
        re.findall(r'<th scope="row">([^<]*), losses multiplied</th><td class="n">(.*?)<', page)
    )
    rows = {
        name.removesuffix(", without these weights"): float(skew) for name, skew in rows.items()
    }
    for name, advice in remaining.items():
        assert rows[name] == pytest.approx(advice.remaining, abs=0.0006)
    assert len(rows) == 4
    assert "nan" not in page.lower().replace("nance", "")
    equal = render_page(audit_of(draw(UNEVEN)))
    assert "losses multiplied" not in equal.lower()


def test_the_summary_shows_a_method_without_a_memory_of_every_client() -> None:
    result = audit_of(draw(UNEVEN))
    assert {one.memory for one in result.advice[:3]} == {"heavy"}
    rank = next(n for n, one in enumerate(result.advice, start=1) if one.memory == "light")
    text = print_summary(result)
    assert f"\n{rank}. {result.advice[rank - 1].algorithm} " in text
    assert "the first without a memory of all clients" in text
    light = audit_of(draw(np.full(40, 0.2)))
    assert "the first without a memory" not in print_summary(light)


def test_what_no_method_corrects_is_told_from_the_rest_of_the_remaining_skew() -> None:
    result = audit_of(leave_out(draw(UNEVEN)))
    text = " ".join(print_summary(result).split())
    assert "whatever the method, 1.00 of the remaining L1 skew is due to clients" in text
    assert "20 of 40 clients never took part" in text
    assert min(one.remaining for one in result.advice) == pytest.approx(1.0)
    assert "whatever the method" not in print_summary(audit_of(draw(UNEVEN)))


@pytest.mark.parametrize(
    ("p_value", "end"),
    [
        (0.14, "which a uniform draw can explain (p = 0.14)"),
        (0.0064, "which a uniform draw can explain (p = 0.0064, above the level 0.001)"),
        (0.0004, "it is not uniform (p < 0.001)"),
    ],
)
def test_a_small_p_value_that_is_not_enough_is_explained(p_value: float, end: str) -> None:
    shift = StageShift(SkewEstimate(0.1, 0.1, (0.0, 0.2)), p_value)
    assert describe_shift(shift).endswith(end)


def test_recorded_weights_make_the_headline() -> None:
    """Two clients of equal samples, always there, weighted 3 : 1: a quarter is misplaced."""
    rows = [(t, n, w) for t in range(40) for n, w in ((0, 0.75), (1, 0.25))]
    log = pl.DataFrame(rows, schema=["round", "client", "weight"], orient="row")
    result = ft.audit(log, clients=2)
    summary = print_summary(result).replace("│", "")
    text = " ".join(summary.split())
    assert "with the weights in the log, 25% of the influence is misplaced" in text
    assert "without these weights, would misplace 0%" in text


def test_no_interval_is_said_with_its_reason() -> None:
    """Two rounds do not tell how much rates vary by chance."""
    log = pl.DataFrame({"round": [0, 0, 1], "client": ["a", "b", "a"]})
    result = ft.audit(
        log, roster=pl.DataFrame({"client": ["a", "b", "c"], "site": ["x", "y", "y"]})
    )
    assert not result.rates.intervals
    text, page = " ".join(print_summary(result).split()), render_page(result)
    assert f"no intervals: {result.rates.reason}" in text
    assert "nan" not in text.lower()
    assert ">nan" not in page
    assert "nan–" not in page
    document = result.to_dict()
    json.dumps(document, allow_nan=False)
    assert document["rates"]["a"] == [None, 1.0, None]


def test_unknown_number_of_clients_is_never_called_everyone() -> None:
    random = np.random.default_rng(2)
    rounds = np.repeat(np.arange(60), 5)
    log = pl.DataFrame({"round": rounds, "client": random.integers(0, 500, len(rounds))}).unique()
    result = ft.audit(log)
    text = " ".join(print_summary(result).replace("│", "").split())
    assert "every" not in text.split("pattern")[0].replace("every client is to have", "")
    assert result.unseen is not None
    assert f"at least {result.unseen.interval[0]:,.0f} never came" in text.lower()
    assert "clients never seen, if they come independently" in render_page(result)


def test_an_audit_is_shown_in_one_line_and_summarised_as_in_the_terminal(
    result: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    share = f"{result.objectives.plain.total_variation:.0%}"
    advised = result.advice[0].algorithm
    assert repr(result) == (
        f"Audit(40 clients, 400 rounds: {share} of the influence misplaced, advises {advised})"
    )
    text = result.summary()
    assert repr(text) == text
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert result.summary() == text
    assert " ".join(text.replace("│", " ").split()).startswith("╭─ whose model")
    assert "\x1b" not in text
    assert share in text


def test_notes_of_the_reader_are_printed() -> None:
    log = pl.DataFrame({"server_round": [0, 1, 2, 3], "client": [0, 1, 0, 1]})
    result = ft.audit(log, clients=2)
    assert result.log.notes
    for note in result.log.notes:
        assert note.split(":")[0] in print_summary(result)
        assert result.to_dict()["notes"] == list(result.log.notes)


def test_client_names_are_escaped() -> None:
    log = pl.DataFrame({"round": [0, 1, 2, 3], "client": ["<b>", "<b>", "a [red]", "<b>"]})
    result = ft.audit(log)
    page = render_page(result)
    assert "<b></td>" not in page
    assert "&lt;b&gt;" in page
    assert "a [red]" in print_summary(result)


def test_group_names_are_no_mathematics() -> None:
    log = pl.DataFrame({"round": [0, 1, 2, 3], "client": ["a", "b", "a", "a"]})
    roster = pl.DataFrame({"client": ["a", "b"], "price": ["$5 to $_{", "more"]})
    assert "$5 to $_{" in render_page(ft.audit(log, roster=roster))


SMALL_LOGS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 5)), min_size=2, max_size=60, unique=True
).filter(lambda rows: len({t for t, _ in rows}) > 1)


def check_log(rows: list[tuple[int, int]], simulate: bool = True) -> Audit:
    log = pl.DataFrame(rows, schema=["round", "client"], orient="row")
    result = ft.audit(log, clients=6, simulate=simulate)
    document = json.dumps(result.to_dict(), allow_nan=False)
    assert json.loads(document)["never_seen"] == 6 - log["client"].n_unique()
    print_summary(result)
    return result


@pytest.mark.parametrize(
    "rows",
    [
        [(0, 0), (1, 0)],
        [(0, 0), (0, 1), (3, 0)],
        [(0, 2), (30, 2)],
        [(t, n) for t in range(4) for n in range(6)],
        [(t, t % 6) for t in range(24)],
    ],
)
def test_tiny_logs_are_audited(rows: list[tuple[int, int]]) -> None:
    check_log(rows)


@pytest.mark.fuzz
@pytest.mark.parametrize("simulate", [False, True])
def test_every_small_log_is_audited(simulate: bool) -> None:
    @settings(max_examples=8 if simulate else 40)
    @given(SMALL_LOGS)
    def audit(rows: list[tuple[int, int]]) -> None:
        result = check_log(rows, simulate)
        assert not simulate or "Whose model" in render_page(result)

    audit()


def test_clients_without_a_wanted_share_have_no_ratio() -> None:
    """A weight of 0 in the roster: nothing is a multiple of it."""
    present = np.random.default_rng(1).random((100, 6)) < 0.4
    rounds, clients = np.nonzero(present)
    log = pl.DataFrame({"round": rounds, "client": clients})
    roster = pl.DataFrame(
        {"client": range(6), "weight": [0, 1, 1, 1, 1, 2], "group": ["a", "b", "b", "b", "c", "c"]}
    )
    result = ft.audit(log, roster=roster)
    assert np.isnan(result.clients()["times_its_share"][0])
    document = result.to_dict()
    json.dumps(document, allow_nan=False)
    assert document["groups"]["group"]["a"]["times_its_share"] is None
    shown = print_summary(result) + render_page(result)
    assert "00000000" not in shown
    assert ">nan" not in shown


def test_one_client_unlike_all_others_is_in_the_summary() -> None:
    """Client 0 takes part in all rounds, the others once: quantiles alone look equal."""
    cohorts = [[0] if t % 3 else [0, 1 + t // 3] for t in range(60)]
    text = print_summary(ft.audit(log_to_frame(from_cohorts(cohorts, 21))))
    assert "for all clients that took part" not in text


def test_half_of_the_influence_is_of_half_of_equal_clients() -> None:
    text = print_summary(ft.audit(log_to_frame(from_cohorts([list(range(10))] * 40, 10))))
    assert "5 of 10 clients have half of the influence" in " ".join(text.replace("│", "").split())
