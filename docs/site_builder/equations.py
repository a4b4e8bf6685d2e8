"""Equations of docstrings, which are plain Unicode text, as MathML for the site."""

from __future__ import annotations

import re

from latex2mathml.converter import convert

_SYMBOLS = {
    "←": r"\leftarrow ", "→": r"\to ", "Σ": r"\sum ", "∫": r"\int ", "·": r"\cdot ",
    "<=": r"\le ", ">=": r"\ge ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∈": r"\in ",
    "−": "-", "∞": r"\infty ", "⟨": r"\langle ", "⟩": r"\rangle ", "∇": r"\nabla ",
    "‖": r"\Vert ", "|": r"\vert ", "⌈": r"\lceil ", "⌉": r"\rceil ", "⌊": r"\lfloor ",
    "⌋": r"\rfloor ", "²": "^{2}", "³": "^{3}", "₁": "_{1}", "₂": "_{2}", "∂": r"\partial ",
    "ḡ": r"\bar{g}", "x̂": r"\hat{x}", "#": r"\# ", "%": r"\% ", "≡": r"\equiv ",
    "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "δ": r"\delta ", "ε": r"\varepsilon ",
    "ζ": r"\zeta ", "η": r"\eta ", "θ": r"\theta ", "κ": r"\kappa ", "λ": r"\lambda ",
    "μ": r"\mu ", "ρ": r"\rho ", "σ": r"\sigma ", "τ": r"\tau ", "ω": r"\omega ",
    "Δ": r"\Delta ", "Π": r"\Pi ",
}  # fmt: skip

_WORD = r"[A-Za-z][A-Za-z'’-]*[A-Za-z]"
_TEXT = re.compile(
    rf"(?P<function>{_WORD})(?=[({{_]|\s*[{{])"  # min( ), median_{{n}}
    rf"|(?P<name>[a-z]{{2,}}_[a-z]+)"  # max_on
    rf"|(?P<text>{_WORD}(?:[ ,;]+(?:{_WORD}|a|\d+(?= )|\d+$))*)"
)
_MARK = re.compile("\x00(\\d+)\x00")


def to_mathml(text: str) -> str:
    """Return the lines of an equation as a table in MathML.

    Two and more spaces separate the parts of a line; they are columns if every line has as many.

    >>> to_mathml("x ← x + η Δ_n")[:36]
    '<div class="equation" tabindex="0"><'
    """
    rows = [re.split(r" {2,}", line.strip()) for line in text.strip().splitlines()]
    between = " & " if len(set(map(len, rows))) == 1 else r" \qquad "
    body = r" \\ ".join(between.join(map(to_latex, row)) for row in rows)
    columns = "l" * max(map(len, rows))
    return latex_to_mathml(rf"\begin{{array}}{{{columns}}} {body} \end{{array}}")


def latex_to_mathml(latex: str) -> str:
    """Return a block of LaTeX as MathML."""
    return f'<div class="equation" tabindex="0">{convert(latex, display="block")}</div>'


def to_latex(text: str) -> str:
    r"""Return one part of an equation as LaTeX.

    >>> to_latex("x ← x + η / N Σ_{n in S_t} ω_t^n Δ_n")
    'x \\leftarrow x + \\eta / N \\sum _{n \\in S_{t}} \\omega _{t}^{n} \\Delta _{n}'
    >>> to_latex("for n in S_t")
    '\\text{for } n \\in S_{t}'
    >>> to_latex("√(a + √b) / 2")
    '\\sqrt{a + \\sqrt{b}} / 2'
    """
    words: list[str] = []

    def keep(match: re.Match[str]) -> str:
        kind, found = match.lastgroup, match[0]
        if kind == "function":
            words.append(rf"\operatorname{{{found}}}")
        elif kind == "name":
            words.append(rf"\mathrm{{{found.replace('_', chr(92) + '_')}}}")
        else:
            words.append(rf"\text{{{_spaced(match)}}}")
        return f"\x00{len(words) - 1}\x00"

    text = re.sub(r"\bin (?=[A-Z]_)", "∈ ", text.replace("`", ""))
    text = _TEXT.sub(keep, text)
    text = _roots(text)
    text = re.sub(r"([βγ])(\d)", r"\1_\2", text)
    text = re.sub(r"([_^])(?!\{)(\w+|\*)", r"\1{\2}", text)
    for symbol, latex in _SYMBOLS.items():
        text = text.replace(symbol, latex)
    text = re.sub(" +", " ", text)
    return _MARK.sub(lambda mark: words[int(mark[1])], text).strip()


def _spaced(match: re.Match[str]) -> str:
    """Return words with the spaces around them, which mathematics would drop."""
    before, after = match.string[: match.start()], match.string[match.end() :]
    return (" " if before.endswith(" ") else "") + match[0] + (" " if after[:1] == " " else "")


def _roots(text: str) -> str:
    r"""Return a text with `√x` and `√( ... )` as \sqrt, inner ones first."""
    while (at := text.rfind("√")) >= 0:
        rest = text[at + 1 :]
        end = _closing(rest) if rest.startswith("(") else len(re.match(r"\w+", rest)[0])
        inner = rest[1 : end - 1] if rest.startswith("(") else rest[:end]
        text = rf"{text[:at]}\sqrt{{{inner}}}{rest[end:]}"
    return text


def _closing(text: str) -> int:
    """Return the position after the parenthesis that closes the first one."""
    depth = 0
    for place, letter in enumerate(text):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if not depth:
            return place + 1
    raise ValueError(f"{text!r} does not close its parenthesis")
