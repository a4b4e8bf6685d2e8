"""The fields of claims."""

import pytest

from fedtide import InvalidInputError
from fedtide.papers.claims import Claim


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"kind": "value", "within": 1}, "value"),
        ({"kind": "value", "value": 3}, "within"),
        ({"kind": "printed"}, "within"),
        ({"kind": "matches", "than": ["b"]}, "within"),
        ({"kind": "beats"}, "than"),
        ({"kind": "loses"}, "than"),
        ({"kind": "wins", "than": ["b"]}, "kind"),
        ({"kind": "grows", "against": "x"}, "against"),
    ],
)
def test_invalid_claim_names_the_field(fields, field):
    with pytest.raises(InvalidInputError, match=rf"^{field}: .*;"):
        Claim(statement="", measure="m", method="a", **fields)


def test_claims_of_printed_numbers_and_differences_need_the_published_size():
    assert Claim("", "m", "a", kind="value", value=1, within=1).needs_full_scale
    assert Claim("", "m", "a", kind="printed", within=1).needs_full_scale
    assert Claim("", "m", "a", ["b"], full_scale=True).needs_full_scale
    for kind in ("beats", "loses"):
        assert Claim("", "m", "a", ["b"], kind=kind, by=5.4).needs_full_scale
        assert not Claim("", "m", "a", ["b"], kind=kind, by=-0.02).needs_full_scale
    assert not Claim("", "m", "a", ["b"]).needs_full_scale
