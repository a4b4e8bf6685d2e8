"""A federation to look at: real processes on this machine, and what their ledger says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from fedtide.errors import InvalidInputError
from fedtide.flower.dev.local_federation import Loopback
from fedtide.participation.log.ledger import read_rounds

EVERY = {"site-0": 1, "site-1": 1, "site-2": 2, "site-3": 3, "site-4": 4}
"""In every how many rounds each site takes part; they hold two of the ten digits each."""

_CLIENT = "import flwr.supernode.cli, fedtide.flower.client.app"
"""What a client imports, anew for every message."""
_STARTS, _LOOKS, _OTHERS = 15.0, 3.0, 0.3
"""Seconds until the first round begins and between two looks of a SuperNode for a message; how much
Flower's own processes compute, as a share of what the clients do."""

_ROUND = re.compile(r"\[ROUND (?P<number>\d+)/\d+\]")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_SHOWN = re.compile(r"(INFO|WARNING|ERROR)\s*:\s+(?P<text>\S.*)")


def run_demo(folder: Path, rounds: int, tls: bool, say: Callable[[str], None]) -> str:
    """Run the federation and return the URL of its ledger.

    Args:
        folder: where its files go.
        rounds: how many.
        tls: whether with TLS and node keys.
        say: is given each line for people.

    Raises:
        InvalidInputError: the federation does not start, or ends before its last round.
    """
    ledger = f"sqlite:///{folder.resolve() / 'ledger.db'}"
    each = _seconds_of_a_round()
    names = 0 if tls else 1  # whom the operator has not registered is asked who it is
    whole = _clock(_STARTS + (names + rounds) * each)
    say(f"rounds: {rounds}, each about {each:.0f} s; {whole} in all")
    with Loopback(folder, tls) as federation:
        federation.start_superlink()
        say(f"a SuperLink on {federation.address}" + (", TLS and node keys" if tls else ""))
        for number, (name, every) in enumerate(EVERY.items()):
            if tls:
                federation.register(name)
            shard = {"partition_id": number, "num_partitions": len(EVERY)}
            federation.start_node(name, every=every, **shard)
            say(f"a SuperNode: {name}, digits {2 * number} and {2 * number + 1}, every {every}")
        run = federation.submit(
            example(), num_server_rounds=rounds, ledger=ledger, state=folder.resolve() / "state"
        )
        _follow(run, say, Forecast(rounds, each))
    ended = len(read_rounds(ledger)) if (folder / "ledger.db").is_file() else 0
    if ended < rounds:
        raise InvalidInputError(f"flower: it ended after {ended} of {rounds} rounds; see the logs")
    return ledger


def example() -> Path:
    """Return the folder of the Flower app that the demonstration runs."""
    packed = Path(__file__).parent / "example"
    return packed if packed.is_dir() else Path(__file__).parents[3] / "examples" / "flower"


class Forecast:
    """Says how long the rounds that are left will take.

    Args:
        rounds: how many there are.
        each: seconds that a round is thought to take, until one has ended.
    """

    def __init__(self, rounds: int, each: float) -> None:
        self._rounds, self._each, self._began = rounds, each, 0.0

    def left(self, number: int, now: float) -> str:
        """Return how long it takes from the beginning of a round, 1, 2, ..., which is now."""
        if number == 1:
            self._began = now
        else:
            self._each = (now - self._began) / (number - 1)
        return f"{_clock((self._rounds - number + 1) * self._each)} to go"


def _follow(run: subprocess.Popen[bytes], say: Callable[[str], None], forecast: Forecast) -> None:
    """Say what the run logs, until it ends."""
    assert run.stdout is not None
    for line in run.stdout:
        found = _SHOWN.match(_COLOURS.sub("", line.decode(errors="replace")))
        if not found:
            continue
        begins = _ROUND.match(found["text"])
        left = f" {forecast.left(int(begins['number']), time.monotonic())}" if begins else ""
        say(found["text"] + left)
    run.wait()


def _seconds_of_a_round() -> float:
    """Measure how long a client starts; most of a round is that, for all of them at once."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", _CLIENT], check=False, capture_output=True)
    each, at_a_time = time.monotonic() - began, min(len(EVERY), os.cpu_count() or 1)
    return _LOOKS + (1 + _OTHERS) * each * len(EVERY) / at_a_time


def _clock(seconds: float) -> str:
    """Write a time as minutes and seconds.

    >>> _clock(99.6)
    '1:40 min'
    """
    return f"{round(seconds) // 60}:{round(seconds) % 60:02d} min"
