"""The rule that judges claims, against differences computed by hand."""

import pytest

from fedtide import InvalidInputError
from fedtide.papers.claims import Claim, judge


def judge_table(claim, table, cases=("main",), higher=True):
    """Judge a claim over a table {(case, method): [values by seed]}."""

    def values(case, method):
        return dict(enumerate(table.get((case, method), ())))

    return judge(claim, list(cases), values, higher)


BEATS = Claim(statement="", measure="m", method="a", than=["b"])


def test_difference_beyond_two_standard_errors_is_reproduced():
    """d = 2, 3, 4: mean 3, standard error 1/√3 = 0.58."""
    result = judge_table(BEATS, {("main", "a"): [5, 6, 7], ("main", "b"): [3, 3, 3]})
    assert result.outcome == "reproduced"
    assert result.numbers == "a − b = 3.00, SE 0.58 (3 seeds)"


def test_difference_within_two_standard_errors_is_not_reproduced():
    """d = -1, 1, 3: mean 1, standard error 2/√3 = 1.15."""
    result = judge_table(BEATS, {("main", "a"): [2, 4, 6], ("main", "b"): [3, 3, 3]})
    assert result.outcome == "not reproduced"
    assert result.numbers == "a − b = 1.00, SE 1.15 (3 seeds)"


def test_methods_are_compared_seed_by_seed():
    """The methods differ by 1 in every seed; the seeds differ by much more."""
    result = judge_table(BEATS, {("main", "a"): [11, 101, 1001], ("main", "b"): [10, 100, 1000]})
    assert result.outcome == "reproduced"
    assert "SE 0.00" in result.numbers


def test_lower_is_better_unless_higher_is():
    table = {("main", "a"): [1.0], ("main", "b"): [2.0]}
    assert judge_table(BEATS, table, higher=False).outcome == "reproduced"
    assert judge_table(BEATS, table, higher=True).outcome == "not reproduced"


def test_difference_must_reach_the_claimed_size():
    claim = Claim(statement="", measure="m", method="a", than=["b"], by=5.0)
    assert judge_table(claim, {("main", "a"): [9], ("main", "b"): [3]}).outcome == "reproduced"
    assert judge_table(claim, {("main", "a"): [7], ("main", "b"): [3]}).outcome == "not reproduced"


def test_only_common_seeds_are_compared():
    result = judge_table(BEATS, {("main", "a"): [5, 6, 7], ("main", "b"): [3]})
    assert result.numbers == "a − b = 2.00 (1 seed)"


def test_claim_without_runs_is_not_tested():
    assert judge_table(BEATS, {("main", "a"): [1]}).outcome == "not tested"
    assert judge_table(BEATS, {}, cases=()).outcome == "not tested"


def test_claim_must_hold_in_every_case_and_against_every_method():
    claim = Claim(statement="", measure="m", method="a", than=["b", "c"])
    table = {("x", "a"): [5], ("x", "b"): [4], ("x", "c"): [3]}
    whole = table | {("y", "a"): [5], ("y", "b"): [6], ("y", "c"): [3]}
    assert judge_table(claim, table, cases=["x"]).outcome == "reproduced"
    result = judge_table(claim, whole, cases=["x", "y"])
    assert result.outcome == "not reproduced"
    assert result.numbers == "holds in 3 of 4 comparisons; weakest: a − b (y) = -1.00 (1 seed)"
    partly = judge_table(claim, table, cases=["x", "y"])
    assert (partly.outcome, partly.numbers) == (
        "not tested",
        "2 of 4 comparisons were run, and 2 hold",
    )


def test_diverged_method_loses():
    assert judge_table(BEATS, {("main", "a"): [1], ("main", "b"): [None]}).outcome == "reproduced"
    assert (
        judge_table(BEATS, {("main", "a"): [None], ("main", "b"): [1]}).outcome == "not reproduced"
    )
    assert (
        judge_table(BEATS, {("main", "a"): [None], ("main", "b"): [None]}).outcome
        == "not reproduced"
    )


def test_claim_that_methods_match():
    claim = Claim(statement="", measure="m", method="a", than=["b"], kind="matches", within=0.5)
    assert (
        judge_table(claim, {("main", "a"): [1, 2], ("main", "b"): [1.4, 2.4]}).outcome
        == "reproduced"
    )
    assert (
        judge_table(claim, {("main", "a"): [1, 2], ("main", "b"): [2, 3]}).outcome
        == "not reproduced"
    )


def test_claim_of_a_published_value():
    claim = Claim(statement="", measure="m", method="a", kind="value", value=800, within=50)
    assert judge_table(claim, {("main", "a"): [840, 850]}).outcome == "reproduced"
    assert judge_table(claim, {("main", "a"): [860, 870]}).outcome == "not reproduced"
    assert judge_table(claim, {("main", "a"): [None]}).outcome == "not reproduced"
    assert judge_table(claim, {}).outcome == "not tested"


def test_claim_that_an_advantage_grows():
    """The advantage of a over b is 0, 1 and 3 over the cases: slope 1.5."""
    claim = Claim(statement="", measure="m", method="a", than=["b"], kind="grows")
    cases = ["low", "middle", "high"]
    table = {(case, "b"): [0.0] for case in cases}
    table |= {("low", "a"): [0.0], ("middle", "a"): [1.0], ("high", "a"): [3.0]}
    result = judge_table(claim, table, cases=cases)
    assert result.outcome == "reproduced"
    assert "1.50" in result.numbers
    falling = table | {("low", "a"): [9.0]}
    assert judge_table(claim, falling, cases=cases).outcome == "not reproduced"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"kind": "value"}, "value"),
        ({"kind": "beats"}, "than"),
        ({"kind": "wins", "than": ["b"]}, "kind"),
    ],
)
def test_invalid_claim_names_the_field(fields, field):
    with pytest.raises(InvalidInputError, match=rf"^{field}: .*;"):
        Claim(statement="", measure="m", method="a", **fields)
