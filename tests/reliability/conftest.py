"""What the tests of reliability share: a small experiment whose method keeps a memory."""

import pytest


@pytest.fixture
def fields(regression):
    """Return the fields of a small experiment with minibatches, as plain data."""
    return regression | {"algorithm": "fedau"}
