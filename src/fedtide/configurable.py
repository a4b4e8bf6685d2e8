"""The former name of `fedtide.spec.spec`."""

from fedtide.spec import spec as configurable

__all__ = ["configurable"]
