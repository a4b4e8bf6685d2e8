"""Colours by method, and legends that cover no data."""

import pytest

from fedtide.plotting.style import (
    COLOURS,
    method_styles,
    new_figure,
    place_legend,
)


def looks(styles):
    return {method: tuple(style.values()) for method, style in styles.items()}


@pytest.mark.parametrize("count", [7, 28])
def test_methods_have_different_looks_and_different_colours_while_there_are_any(count):
    styles = method_styles([f"method-{i}" for i in range(count)])
    assert len(set(looks(styles).values())) == count
    assert len({style["color"] for style in styles.values()}) == min(count, len(COLOURS))


def test_a_legend_names_methods_that_begin_with_an_underscore():
    figure, (panel,) = new_figure()
    panel.plot([0, 1], label="_mine")
    panel.scatter([0, 1], [0, 1], label="_yours")
    panel.fill_between([0, 1], [0, 1])
    panel.axhline(0.5)
    place_legend(panel)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["_mine", "_yours"]
