"""What the tests of the deployment share: a grid in this process, whose time is a number."""

import pytest

pytest.importorskip("flwr", reason="the deployment needs fedtide[flower]")
pytest.importorskip("sqlalchemy", reason="the deployment needs fedtide[flower]")
