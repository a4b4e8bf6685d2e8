"""What a result was computed with, in words."""

from fedtide.provenance import versions


def test_code_that_is_run_where_it_lies_has_no_version():
    """A run of hours must not end in an error for it."""
    found = versions(["a-package-that-nobody-has", "numpy"])
    assert found.startswith("a-package-that-nobody-has (not installed), NumPy ")
