"""The console of all commands; names in the output cannot send control characters to it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook
from rich.measure import Measurement
from rich.segment import Segment

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters except tabs and line breaks, and marks that reverse the text direction."""


class _WithoutControls:
    """A renderable with � in place of every control character in its text."""

    def __init__(self, shown: ConsoleRenderable) -> None:
        self._shown = shown

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self._shown, options):
            text, style, control = segment
            yield segment if control else Segment(_CONTROLS.sub("�", text), style)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self._shown)


class _RemoveControls(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_WithoutControls(one) for one in renderables]


def new_console() -> Console:
    r"""Return a console that prints no control characters other than its own.

    >>> new_console().print("site-a\x1b[2J", markup=False)
    site-a�[2J
    """
    console = Console()
    console.push_render_hook(_RemoveControls())
    return console
