"""What can name a client of a federation."""

LONGEST_NAME = 200


def is_name(name: object) -> bool:
    """Return whether this can name a client: printable text of 1 to 200 characters."""
    return isinstance(name, str) and 0 < len(name) <= LONGEST_NAME and name.isprintable()
