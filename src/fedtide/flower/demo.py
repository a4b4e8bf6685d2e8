"""A federation to look at: real processes on this machine, and what their ledger says."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from fedtide.errors import BadInput
from fedtide.flower.loopback import Loopback
from fedtide.participation.ledger import read_rounds

EVERY = {"site-0": 1, "site-1": 1, "site-2": 2, "site-3": 3, "site-4": 4}
"""In every how many rounds each site takes part; they hold two of the ten digits each."""

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
        BadInput: the federation does not start, or ends before its last round.
    """
    ledger = f"sqlite:///{folder.resolve() / 'ledger.db'}"
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
        _follow(run, say)
    ended = len(read_rounds(ledger)) if (folder / "ledger.db").is_file() else 0
    if ended < rounds:
        raise BadInput(f"flower: it ended after {ended} of {rounds} rounds; see the logs")
    return ledger


def example() -> Path:
    """Return the folder of the Flower app that the demonstration runs."""
    packed = Path(__file__).parent / "example"
    return packed if packed.is_dir() else Path(__file__).parents[3] / "examples" / "flower"


def _follow(run: subprocess.Popen[bytes], say: Callable[[str], None]) -> None:
    """Say what the run logs, until it ends."""
    assert run.stdout is not None
    for line in run.stdout:
        found = _SHOWN.match(_COLOURS.sub("", line.decode(errors="replace")))
        if found:
            say(found["text"])
    run.wait()
