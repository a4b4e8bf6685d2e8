"""Claims and measures against what is worked out by hand."""

import polars as pl
import pytest

from fedtide import InvalidInputError
from fedtide.papers.claims import Claim, judge
from fedtide.papers.measures import Measure


def verdict(claim, table, cases=("main",), higher=True):
    """Judge a claim over a table {(case, method): [values by seed]}."""

    def values(case, method):
        return dict(enumerate(table.get((case, method), ())))

    return judge(claim, list(cases), values, higher)


BEATS = Claim(says="", measure="m", method="a", than=["b"])


def test_a_clear_difference_is_reproduced():
    """d = 2, 3, 4: mean 3, standard error 1/√3 = 0.58."""
    found = verdict(BEATS, {("main", "a"): [5, 6, 7], ("main", "b"): [3, 3, 3]})
    assert found.word == "reproduced"
    assert found.numbers == "a − b = 3.00, SE 0.58 (3 seeds)"


def test_a_difference_within_two_standard_errors_is_not():
    """d = -1, 1, 3: mean 1, standard error 2/√3 = 1.15."""
    found = verdict(BEATS, {("main", "a"): [2, 4, 6], ("main", "b"): [3, 3, 3]})
    assert found.word == "not reproduced"
    assert found.numbers == "a − b = 1.00, SE 1.15 (3 seeds)"


def test_seeds_are_compared_with_themselves():
    """The methods differ by 1 in every seed, however much seeds differ."""
    found = verdict(BEATS, {("main", "a"): [11, 101, 1001], ("main", "b"): [10, 100, 1000]})
    assert found.word == "reproduced"
    assert "SE 0.00" in found.numbers


def test_less_is_better_where_it_is():
    table = {("main", "a"): [1.0], ("main", "b"): [2.0]}
    assert verdict(BEATS, table, higher=False).word == "reproduced"
    assert verdict(BEATS, table, higher=True).word == "not reproduced"


def test_the_claimed_size_counts():
    claim = Claim(says="", measure="m", method="a", than=["b"], by=5.0)
    assert verdict(claim, {("main", "a"): [9], ("main", "b"): [3]}).word == "reproduced"
    assert verdict(claim, {("main", "a"): [7], ("main", "b"): [3]}).word == "not reproduced"


def test_only_common_seeds_count():
    found = verdict(BEATS, {("main", "a"): [5, 6, 7], ("main", "b"): [3]})
    assert found.numbers == "a − b = 2.00 (1 seed)"


def test_nothing_run_is_not_tested():
    assert verdict(BEATS, {("main", "a"): [1]}).word == "not tested"
    assert verdict(BEATS, {}, cases=()).word == "not tested"


def test_a_claim_holds_only_if_it_holds_everywhere():
    claim = Claim(says="", measure="m", method="a", than=["b", "c"])
    table = {("x", "a"): [5], ("x", "b"): [4], ("x", "c"): [3]}
    whole = table | {("y", "a"): [5], ("y", "b"): [6], ("y", "c"): [3]}
    assert verdict(claim, table, cases=["x"]).word == "reproduced"
    found = verdict(claim, whole, cases=["x", "y"])
    assert found.word == "not reproduced"
    assert found.numbers == "holds in 3 of 4 comparisons; weakest: a − b (y) = -1.00 (1 seed)"
    partly = verdict(claim, table, cases=["x", "y"])
    assert (partly.word, partly.numbers) == (
        "not tested",
        "2 of 4 comparisons were run, and 2 hold",
    )


def test_whoever_diverges_has_lost():
    assert verdict(BEATS, {("main", "a"): [1], ("main", "b"): [None]}).word == "reproduced"
    assert verdict(BEATS, {("main", "a"): [None], ("main", "b"): [1]}).word == "not reproduced"
    assert verdict(BEATS, {("main", "a"): [None], ("main", "b"): [None]}).word == "not reproduced"


def test_matching():
    claim = Claim(says="", measure="m", method="a", than=["b"], kind="matches", within=0.5)
    assert verdict(claim, {("main", "a"): [1, 2], ("main", "b"): [1.4, 2.4]}).word == "reproduced"
    assert verdict(claim, {("main", "a"): [1, 2], ("main", "b"): [2, 3]}).word == "not reproduced"


def test_values():
    claim = Claim(says="", measure="m", method="a", kind="value", value=800, within=50)
    assert verdict(claim, {("main", "a"): [840, 850]}).word == "reproduced"
    assert verdict(claim, {("main", "a"): [860, 870]}).word == "not reproduced"
    assert verdict(claim, {("main", "a"): [None]}).word == "not reproduced"
    assert verdict(claim, {}).word == "not tested"


def test_growing():
    """By how much a is better than b: 0, 1, 3 over the cases; the slope is 1.5."""
    claim = Claim(says="", measure="m", method="a", than=["b"], kind="grows")
    cases = ["low", "middle", "high"]
    table = {(case, "b"): [0.0] for case in cases}
    table |= {("low", "a"): [0.0], ("middle", "a"): [1.0], ("high", "a"): [3.0]}
    found = verdict(claim, table, cases=cases)
    assert found.word == "reproduced"
    assert "1.50" in found.numbers
    falling = table | {("low", "a"): [9.0]}
    assert verdict(claim, falling, cases=cases).word == "not reproduced"


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"kind": "value"}, "value: missing"),
        ({"kind": "beats"}, "than: missing"),
        ({"kind": "wins", "than": ["b"]}, "kind: unknown 'wins'; "),
    ],
)
def test_bad_claims(fields, sentence):
    with pytest.raises(InvalidInputError, match=sentence):
        Claim(says="", measure="m", method="a", **fields)


METRICS = pl.DataFrame(
    {"round": [0, 10, 20, 30, 40], "loss": [4.0, 2.0, 1.0, 0.5, 0.75], "share": [0.1] * 5}
)


@pytest.mark.parametrize(
    ("fields", "value"),
    [
        ({}, 0.75),
        ({"take": "best"}, 0.5),
        ({"take": "best", "better": "higher"}, 4.0),
        ({"take": "mean", "rounds": 20}, 0.625),
        ({"take": "mean", "rounds": 21}, 0.75),
        ({"take": "first-below", "target": 1.0}, 20),
        ({"take": "first-above", "target": 4.0}, 0),
        ({"take": "first-below", "target": 0.1}, None),
        ({"percent": True}, 75.0),
    ],
)
def test_measures(fields, value):
    assert Measure("loss", **fields).of(METRICS) == value


def test_the_worst_but_a_tenth_of_the_last_tenth():
    """The last 20 of 200 evaluations are 0..19; 90 % are no worse than 1.9, or 17.1."""
    frame = pl.DataFrame({"round": range(200), "m": [1e3] * 180 + list(range(20))})
    high = Measure("m", take="worst-of-last", better="higher").of(frame)
    low = Measure("m", take="worst-of-last", better="lower").of(frame)
    assert (high, low) == (pytest.approx(1.9), pytest.approx(17.1))


def test_a_metric_that_is_not_there_gives_nothing():
    assert Measure("nothing").of(METRICS) is None
