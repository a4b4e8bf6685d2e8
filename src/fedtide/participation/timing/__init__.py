"""Simulated time: rounds that last as long as the devices of their clients need."""

from fedtide.participation.timing.device_speeds import DeviceSpeeds, Work
from fedtide.participation.timing.synchronous import Synchronous
from fedtide.participation.timing.timed_rounds import TimedParticipants, TimedStream, Timing

POLICIES = {"synchronous": Synchronous}
"""When the server asks clients and when it moves the model, by `type` in experiment files."""

__all__ = [
    "POLICIES",
    "DeviceSpeeds",
    "Synchronous",
    "TimedParticipants",
    "TimedStream",
    "Timing",
    "Work",
]
