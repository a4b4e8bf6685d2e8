"""How fedtide says that it cannot go on: an input that cannot be used, or somebody who asked."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class InvalidInputError(ValueError):
    """An input that cannot be used; its text is one sentence that names the field and the mend.

    The command line prints the sentence and exits with status 2.
    """

    def prefixed(self, field: str) -> InvalidInputError:
        """Return the same complaint with `field` put before the field that it already names.

        >>> str(InvalidInputError("rates: 1.5 is not within [0, 1]").prefixed("participation"))
        'participation.rates: 1.5 is not within [0, 1]'
        """
        return InvalidInputError(f"{field}.{self}")


class MissingExtraError(InvalidInputError, ImportError):
    """A library that only an extra brings; an ImportError, too, for whoever probes imports.

    Args:
        what: what needs the library; a complaint begins with it.
        extra: the extra of fedtide that brings it.

    >>> str(MissingExtraError("ledger", "flower"))
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
def error_prefix(field: str) -> Iterator[None]:
    """Put `field` before the field that a complaint raised inside names.

    >>> with error_prefix("local"):
    ...     raise InvalidInputError("lr: 0 is not a positive number")
    Traceback (most recent call last):
    fedtide.errors.InvalidInputError: local.lr: 0 is not a positive number
    """
    try:
        yield
    except InvalidInputError as error:
        raise error.prefixed(field) from None


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
