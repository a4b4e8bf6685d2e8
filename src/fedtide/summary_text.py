"""Multi-line summaries, as returned by results and audits."""


class Summary(str):
    """A text that notebooks and the interactive interpreter show line by line."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)
