"""Docstrings as Markdown: their equations as MathML, their tables as tables of Markdown."""

from __future__ import annotations

import re
from typing import Any

import griffe

from fedtide.cli.key_tables import split_docstring
from site_builder.equations import to_mathml

_RST_TABLE = re.compile(r"^(=+(?: +=+)+)\n(.+)\n\1\n((?:.+\n)+?)\1$", re.MULTILINE)
_INDENTED = re.compile(r"(?<=\n\n)(?: {4}.*(?:\n|$)|\n(?= {4}))+")


def to_markdown(text: str) -> str:
    """Return the prose of a docstring, which ends where its sections begin, as Markdown.

    >>> print(to_markdown("Sums.\\n\\n    x ← x + 1\\n")[:42])
    Sums.
    <BLANKLINE>
    <div class="equation" tabindex="0">
    """
    text = _RST_TABLE.sub(_markdown_table, text.strip() + "\n")
    text = _INDENTED.sub(lambda block: to_mathml(block[0]) + "\n\n", text)
    return re.sub(r"(?<![`\\])\*(?=\w)", r"\\*", text).strip()


def _markdown_table(match: re.Match[str]) -> str:
    """Return a table whose columns are underlined with equals signs as a table of Markdown."""
    spans = [part.span() for part in re.finditer("=+", match[1])]
    lines = [match[2], *match[3].splitlines()]
    rows = ["| " + " | ".join(line[a:b].strip() for a, b in spans) + " |" for line in lines]
    return "\n".join([rows[0], "|---" * len(spans) + "|", *rows[1:]])


_DATACLASS = griffe.ExprName("dataclass", parent=griffe.ExprName("dataclasses"))


class Equations(griffe.Extension):
    """Applies `to_markdown` to every docstring that mkdocstrings shows, and finds all dataclasses.

    `fedtide.spec` makes dataclasses, too; griffe reads the arguments of those that it
    recognises by their decorator.
    """

    def on_class_instance(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        for decorator in cls.decorators:
            if decorator.callable_path.endswith(".spec"):
                decorator.value = _DATACLASS

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            prose, sections = split_docstring(obj.docstring.value)
            sections, prompt, example = sections.partition(">>>")
            fenced = f"```pycon\n{prompt}{example.rstrip()}\n```\n" if prompt else ""
            obj.docstring.value = f"{to_markdown(prose)}\n\n{sections}\n{fenced}"
