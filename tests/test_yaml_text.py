"""YAML as files of experiments have it: plain words by the core schema, and why a text is refused.

What hostile texts can do is tested in reliability/test_fuzz_experiments.py.
"""

import math
import re

import pytest
import yaml

from fedtide.yaml_text import YamlError, dump, parse

CORE = {
    type(None): r"null|Null|NULL|~",
    bool: r"true|True|TRUE|false|False|FALSE",
    int: r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+",
    float: r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
    r"|[-+]?(\.inf|\.Inf|\.INF)|\.nan|\.NaN|\.NAN",
    str: r".*",
}
"""The table of section 10.3.2 of YAML 1.2.2; the first that matches counts."""

NUMBERS = {
    "010": 10,
    "-007": -7,
    "+5": 5,
    "0": 0,
    "0o10": 8,
    "0x1F": 31,
    "1e2": 100.0,
    "1e-3": 0.001,
    "1E+3": 1000.0,
    "12e5": 1_200_000.0,
    "-.5": -0.5,
    "3.": 3.0,
    "0.10": 0.1,
    "1.0e-05": 1e-5,
    "-.inf": -math.inf,
    ".INF": math.inf,
}
LISTED = (
    "1:30 190:20:30 1_000 0b11 0o9 0xfg -0x1F 1e e5 . + 2026-05-01 2026-99-99 on off yes "
    "No y = tRUE nUll .Nan"
)
TEXTS = (*LISTED.split(), "2026-05-01 12:30:00")
WORDS = (*NUMBERS, *TEXTS, "null", "~", "Null", "True", "FALSE", ".nan", "a", "a1", "ä")


def test_a_word_is_what_the_core_schema_says_and_as_text_stays_text():
    """Also for readers of YAML 1.1."""
    for word in WORDS:
        kind = next(kind for kind, pattern in CORE.items() if re.fullmatch(pattern, word))
        assert type(parse(word)) is kind, word
        if kind is str:
            assert parse(word) == word
        if word in NUMBERS:
            assert parse(word) == NUMBERS[word]
        plain = {word: [word], "name": word}
        assert parse(dump(plain)) == plain
        assert yaml.safe_load(dump(plain)) == plain


def test_nothing_is_none():
    assert parse("{a: , b: ''}") == {"a": None, "b": ""}


def test_merge_keys():
    assert parse("{a: &a {x: 1, y: 2}, b: {<<: *a, y: 3}}")["b"] == {"x": 1, "y": 3}


def test_numbers_are_read_as_they_were_written():
    for number in (0, -7, 2**62, 0.1, 1e-5, 1e16, 1e300, -math.inf):
        assert parse(dump({"a": number})) == {"a": number}
        assert yaml.safe_load(dump({"a": number})) == {"a": number}


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("a: 1\nb:\n\tc: 2", 3, r"'\t' that cannot start any token"),
        ("a: 1\n---\nb: 2", 2, "expected a single document in the stream, but found another"),
        ("a: !!python/name:os.system", 1, "python/name:os.system"),
    ],
)
def test_an_error_says_where_and_why(text, line, reason):
    with pytest.raises(YamlError, match=rf"^not YAML in line {line} \(.*\)$") as error:
        parse(text)
    assert reason in str(error.value)


def test_the_reason_is_short_whatever_the_text():
    with pytest.raises(YamlError) as error:
        parse("a: *" + "b" * 10_000)
    assert len(str(error.value)) < 300


def test_keys_that_are_one_number_are_duplicate():
    with pytest.raises(YamlError, match="line 1, the key '07' is duplicate as the number 7"):
        parse("{7: 1, 07: 2}")
    assert parse("{'007': 1, 7: 2}") == {"007": 1, 7: 2}
