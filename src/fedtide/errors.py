"""Exceptions of fedtide and helpers for their messages."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

_LISTED = 3  # names in a message


def printable(text: str, most: int | None = None) -> str:
    """Return untrusted text as one line that cannot control a terminal.

    Line breaks, terminal codes and marks that reverse the text direction are escaped.

    Args:
        text: such as the name of a client.
        most: the largest number of characters to return; None: all.

    >>> printable("site-a\\n\\x1b[2J"), printable("all is well\\nyes", most=14)
    ('site-a\\\\n\\\\x1b[2J', 'all is well\\\\n…')
    """
    # Escaping never shortens text, so the rest cannot matter.
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[: most and most + 1])
    return line if most is None or len(line) <= most else f"{line[: most - 1]}…"


class InvalidInputError(ValueError):
    """An input is invalid; the message reads `field: what is wrong; hint`.

    The command line prints the message, which is one printable line, and exits with status 2.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(" ".join(message.splitlines())))

    def prefixed(self, field: str) -> InvalidInputError:
        """Return the same error with `field` prefixed to the field that it names.

        >>> str(InvalidInputError("rates: 1.5 is not within [0, 1]").prefixed("participation"))
        'participation.rates: 1.5 is not within [0, 1]'
        """
        return InvalidInputError(f"{field}.{self}")


class RunFailedError(RuntimeError):
    """A run failed with an exception, usually from a user's own code.

    The message contains the exception followed by its traceback.

    Args:
        what: the exception in one line.
        trace: its traceback.
    """

    def __init__(self, what: str, trace: str) -> None:
        super().__init__(f"the run failed: {printable(what)}\n\n{trace}")


class MissingExtraError(InvalidInputError, ImportError):
    """A library of an optional extra is not installed (also an ImportError).

    Args:
        what: the feature that needs the library; the message begins with it.
        extra: the extra of fedtide that installs it.

    The message includes the ImportError being handled, as an installed library may be broken.

    >>> str(MissingExtraError("ledger", "flower"))
    "ledger: a library is missing; install it with pip install 'fedtide[flower]'"
    """

    def __init__(self, what: str, extra: str) -> None:
        error = sys.exception()
        cause = f" ({first_line(error)})" if isinstance(error, ImportError) else ""
        super().__init__(
            f"{what}: a library is missing{cause}; install it with pip install 'fedtide[{extra}]'"
        )


class Interrupted(BaseException):
    """A run was asked to stop and its state is saved; the message says how to resume.

    Like KeyboardInterrupt, it is not an Exception, so error handlers in user code let it pass.

    Args:
        what: what was interrupted, and what is saved.
        hint: how to continue from Python; the command line replaces it with its own hint. Empty if
            there is nothing to continue.

    >>> str(Interrupted("interrupted after round 3 of 5", "continue with resume=True"))
    'interrupted after round 3 of 5; continue with resume=True'
    """

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(f"{what}; {hint}" if hint else what)
        self.what, self.hint = what, hint


@contextmanager
def error_prefix(field: str) -> Iterator[None]:
    """Prefix `field` to the field named by any InvalidInputError raised in this context.

    >>> with error_prefix("local"):
    ...     raise InvalidInputError("lr: 0 is not a positive number")
    Traceback (most recent call last):
    fedtide.errors.InvalidInputError: local.lr: 0 is not a positive number
    """
    try:
        yield
    except InvalidInputError as error:
        raise error.prefixed(field) from None


def first_line(error: BaseException, length: int = 200, with_type: bool = False) -> str:
    """Return the first line of an error's message, or the name of its type if it has no message.

    Args:
        error: from any library, or from a user's code.
        length: the largest number of characters of the message to return.
        with_type: whether the name of the type precedes the message.

    >>> first_line(ValueError("not a number\\nsee the manual")), first_line(KeyError())
    ('not a number', 'KeyError')
    >>> first_line(ValueError("not a number"), with_type=True)
    'ValueError: not a number'
    """
    name, lines = type(error).__name__, str(error).strip().splitlines()
    line = printable(lines[0].strip()[:length]) if lines else ""
    return f"{name}: {line}" if line and with_type else line or name


def did_you_mean(name: str, options: Iterable[str]) -> str:
    """Return the hint for an unknown `name`: the closest option, or else all options, if any.

    Upper and lower case count as equal.

    >>> did_you_mean("fedua", ["fedavg", "fedau"]), did_you_mean("FedAU", ["fedavg", "fedau"])
    ("did you mean 'fedau'?", "did you mean 'fedau'?")
    >>> did_you_mean("xyz", ["fedavg", "fedau"])
    "choose one of 'fedau', 'fedavg'"
    >>> did_you_mean("xyz", [])
    'none is known here; remove it'
    """
    options = sorted(options)
    if not options:
        return "none is known here; remove it"
    folded = {option.lower(): option for option in options}
    closest = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.5)
    if closest:
        return f"did you mean {folded[closest[0]]!r}?"
    return "choose one of " + ", ".join(repr(option) for option in options)


def quantify(count: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun, in the singular or plural.

    Args:
        count: the number.
        noun: the noun in the singular.
        plural: the noun in the plural; "": the singular with an s.

    >>> quantify(1, "entry", "entries"), quantify(2, "client")
    ('1 entry', '2 clients')
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def list_names(names: Sequence[int | str]) -> str:
    """Return the first few of these names and how many more there are.

    >>> list_names(["ann", "bob", "eve", "zoe"])
    "'ann', 'bob', 'eve' and 1 more"
    """
    listed = ", ".join(f"{name!r:.60}" for name in names[:_LISTED])
    return listed if len(names) <= _LISTED else f"{listed} and {len(names) - _LISTED} more"
