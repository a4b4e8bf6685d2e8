"""How fedtide says that it cannot go on: an input that cannot be used, or somebody who asked."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class BadInput(ValueError):
    """An input that cannot be used; its text is one sentence that names the field and the mend.

    The command line prints the sentence and exits with status 2.
    """

    def at(self, field: str) -> BadInput:
        """Return the same complaint with `field` put before the field that it already names.

        >>> str(BadInput("rates: 1.5 is not within [0, 1]").at("participation"))
        'participation.rates: 1.5 is not within [0, 1]'
        """
        return BadInput(f"{field}.{self}")


class MissingExtra(BadInput, ImportError):
    """A library that only an extra brings; an ImportError, too, for whoever probes imports.

    Args:
        what: what needs the library; a complaint begins with it.
        extra: the extra of fedtide that brings it.

    >>> str(MissingExtra("ledger", "flower"))
    "ledger: a library is missing; install it with pip install 'fedtide[flower]'"
    """

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(
            f"{what}: a library is missing; install it with pip install 'fedtide[{extra}]'"
        )


class Interrupted(BaseException):
    """What was asked for was asked to end, and is saved; its text says how to go on.

    It is no Exception, so that whoever takes any failure of a user's code for bad input lets it
    pass.
    """


@contextmanager
def within(field: str) -> Iterator[None]:
    """Put `field` before the field that a complaint raised inside names.

    >>> with within("local"):
    ...     raise BadInput("lr: 0 is not a positive number")
    Traceback (most recent call last):
    fedtide.errors.BadInput: local.lr: 0 is not a positive number
    """
    try:
        yield
    except BadInput as error:
        raise error.at(field) from None


def did_you_mean(name: str, options: Iterable[str]) -> str:
    """Return what to add to a complaint about an unknown `name`: the nearest option, or all.

    >>> did_you_mean("fedua", ["fedavg", "fedau"])
    "did you mean 'fedau'?"
    >>> did_you_mean("xyz", ["fedavg", "fedau"])
    "choose one of 'fedau', 'fedavg'"
    """
    options = sorted(options)
    nearest = difflib.get_close_matches(name, options, n=1, cutoff=0.5)
    if nearest:
        return f"did you mean {nearest[0]!r}?"
    return "choose one of " + ", ".join(repr(option) for option in options)
