"""Colours by method, and legends that cover no data."""

from itertools import combinations

import pytest

from fedtide.plotting.saving import figure_svg
from fedtide.plotting.style import (
    COLOURS,
    label_rounds,
    method_styles,
    new_figure,
    place_legend,
)

PNG = b"\x89PNG\r\n"

METHODS = ["fedavg", "fedau", "known-rates", "fedavg-all", "mine", "yours"]


def looks(styles):
    return {method: tuple(style.values()) for method, style in styles.items()}


@pytest.mark.parametrize("count", [7, 28])
def test_methods_have_different_looks_and_different_colours_while_there_are_any(count):
    styles = method_styles([f"method-{i}" for i in range(count)])
    assert len(set(looks(styles).values())) == count
    assert len({style["color"] for style in styles.values()}) == min(count, len(COLOURS))


def test_usual_methods_keep_their_colours_whoever_else_is_there():
    alone = {method: method_styles([method])[method] for method in METHODS[:4]}
    for size in range(1, len(METHODS) + 1):
        for chosen in combinations(METHODS, size):
            for method, style in method_styles(chosen).items():
                assert method not in alone or style == alone[method]


@pytest.mark.parametrize(("count", "length"), [(1, 200), (12, 30)])
def test_a_legend_lies_below_the_panels_and_within_the_figure(count, length):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure, panels = new_figure(2.5, 2)
    for i in range(count):
        panels[i % 2].plot([0, 1], label=f"{i} " + "word " * (length // 5))
    place_legend(*panels)
    FigureCanvasAgg(figure).draw()
    (legend,) = figure.legends
    box, width = legend.get_window_extent(), figure.bbox.width
    assert box.y1 <= min(panel.get_tightbbox().y0 for panel in panels)
    assert box.y0 >= 0
    assert 0 <= box.x0 < box.x1 <= width
    assert len(legend.get_texts()) == count
    assert all(panel.get_window_extent().height > 100 for panel in panels)


def test_a_legend_names_methods_that_begin_with_an_underscore():
    figure, (panel,) = new_figure()
    panel.plot([0, 1], label="_mine")
    panel.scatter([0, 1], [0, 1], label="_yours")
    panel.fill_between([0, 1], [0, 1])
    panel.axhline(0.5)
    place_legend(panel)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["_mine", "_yours"]


@pytest.mark.parametrize("rounds", [[7], [0, 1], [0, 300]])
def test_axes_of_rounds_have_whole_rounds_only(rounds):
    _, (panel,) = new_figure()
    panel.plot(rounds, rounds, marker="o")
    label_rounds(panel)
    ticks = panel.get_xticks()
    assert len(ticks)
    assert all(tick == round(tick) for tick in ticks)


@pytest.mark.filterwarnings("error")
def test_letters_that_the_bundled_font_lacks_stay_text_in_a_page():
    figure, (panel,) = new_figure(1)
    panel.set_title("日本 🌊")
    assert "日本 🌊" in figure_svg(figure, "title", "a")
