"""Checks that an author of a class of one's own calls in a test, one call each.

fedtide trusts the classes that it is given: a run checks shapes, finiteness and ranges, and does
not try an object out. What a run could not notice, such as clients of a round that change when the
run is resumed, these functions find. Each raises AssertionError with one sentence, or returns None.
"""

from fedtide.testing.loss import check_loss
from fedtide.testing.method import check_method
from fedtide.testing.network import check_network
from fedtide.testing.participation import check_dropout, check_process, check_selection

__all__ = [
    "check_dropout",
    "check_loss",
    "check_method",
    "check_network",
    "check_process",
    "check_selection",
]
