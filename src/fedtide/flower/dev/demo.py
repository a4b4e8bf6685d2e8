"""The demo: a real federation on this machine, with sites that take part now and then."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import fedtide.examples
from fedtide.errors import InvalidInputError
from fedtide.flower._flwr_private import CLIENT_STARTUP
from fedtide.flower.dev.local_federation import LocalFederation
from fedtide.participation.log.ledger import read_rounds

SITES = {"site-0": 1, "site-1": 1, "site-2": 2, "site-3": 3, "site-4": 4}
"""Each site and its period: it takes part in every so many rounds, and holds two of ten digits."""

_STARTUP, _POLLING = 15.0, 3.0  # seconds until the first round; between polls of a SuperNode
_OVERHEAD = 0.3  # computing of Flower's own processes, as a share of the clients'

_ROUND = re.compile(r"\[ROUND (?P<number>\d+)/\d+\]")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_LOG_LINE = re.compile(r"(INFO|WARNING|ERROR)\s*:\s+(?P<text>\S.*)")


def run_demo(folder: Path, rounds: int, tls: bool, show: Callable[[str], None]) -> str:
    """Run the federation and return the URL of its ledger.

    Args:
        folder: for its files.
        rounds: how many.
        tls: with TLS and node keys.
        show: called with each line of output.

    Raises:
        InvalidInputError: the federation does not start, or ends before its last round.
    """
    ledger = f"sqlite:///{folder.resolve() / 'ledger.db'}"
    seconds = _estimate_round()
    name_queries = 0 if tls else 1  # about a round's time; a registered node is not asked
    total = _format_time(_STARTUP + (name_queries + rounds) * seconds)
    show(f"rounds: {rounds}, each about {seconds:.0f} s; {total} in all")
    with LocalFederation(folder, tls) as federation:
        federation.start_superlink()
        show(f"a SuperLink on {federation.address}" + (", TLS and node keys" if tls else ""))
        for number, (name, period) in enumerate(SITES.items()):
            if tls:
                federation.register(name)
            shard = {"partition_id": number, "num_partitions": len(SITES)}
            federation.start_node(name, every=period, **shard)
            show(f"a SuperNode: {name}, digits {2 * number} and {2 * number + 1}, every {period}")
        run = federation.submit(
            example_app(), num_server_rounds=rounds, ledger=ledger, state=folder.resolve() / "state"
        )
        _follow(run, show, Forecast(rounds, seconds))
    ended = len(read_rounds(ledger)) if (folder / "ledger.db").is_file() else 0
    if ended < rounds:
        raise InvalidInputError(f"flower: it ended after {ended} of {rounds} rounds; see the logs")
    return ledger


def example_app() -> Path:
    """Return the folder of the Flower app that the demo runs."""
    return Path(fedtide.examples.__file__).parent / "flower"


class Forecast:
    """Predicts how long the remaining rounds take.

    Args:
        rounds: how many in total.
        seconds: the estimate for a round, until one has ended.
    """

    def __init__(self, rounds: int, seconds: float) -> None:
        self._rounds, self._seconds, self._began = rounds, seconds, 0.0

    def remaining(self, number: int, now: float) -> str:
        """Return the time to go when round `number`, counted from 1, begins now."""
        if number == 1:
            self._began = now
        else:
            self._seconds = (now - self._began) / (number - 1)
        return f"{_format_time((self._rounds - number + 1) * self._seconds)} to go"


def _follow(run: subprocess.Popen[bytes], show: Callable[[str], None], forecast: Forecast) -> None:
    """Show what the run logs until it ends."""
    assert run.stdout is not None
    for line in run.stdout:
        entry = _LOG_LINE.match(_COLOURS.sub("", line.decode(errors="replace")))
        if not entry:
            continue
        text = entry["text"]
        if begins := _ROUND.match(text):
            text += f" {forecast.remaining(int(begins['number']), time.monotonic())}"
        show(text)
    run.wait()


def _estimate_round() -> float:
    """Return the seconds of a round, measured by starting a client: most of a round is that."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", CLIENT_STARTUP], check=False, capture_output=True)
    startup, parallel = time.monotonic() - began, min(len(SITES), os.cpu_count() or 1)
    return _POLLING + (1 + _OVERHEAD) * startup * len(SITES) / parallel


def _format_time(seconds: float) -> str:
    """Return a time as minutes and seconds.

    >>> _format_time(99.6)
    '1:40 min'
    """
    return f"{round(seconds) // 60}:{round(seconds) % 60:02d} min"
