"""Kills of a node, the server app and the SuperLink in a federation of Flower's own processes."""

import os
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

from fedtide.flower.ledger.ledger import read_rounds

from .processes import DEADLINE, LocalFederation, count_rounds, model_of, rows, script, wait_until

pytestmark = pytest.mark.flower

SITES = [f"site-{n}" for n in range(script.CLIENTS)]


def wait_for_end(run: subprocess.Popen) -> str:
    """Wait for a run to end and return its log."""
    return run.communicate(timeout=DEADLINE)[0].decode()


def damage(path: Path) -> None:
    """Change a byte in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.write_bytes(content)


def replay(path: Path, rounds: int) -> np.ndarray:
    """Return the model of MIFA, written out, for the updates used in a ledger."""
    used = [row for row in rows(path) if row.stage == "used"]
    history, memory = [np.zeros(3)], np.zeros((len(SITES), 3))
    for t in range(rounds):
        for row in used:
            if row.round == t:
                client = SITES.index(row.client)
                memory[client] = script.update_of(client, history[row.asked])
        history.append(history[-1] + memory.mean(axis=0))
    return history[-1]


def test_node_server_and_superlink_are_killed_and_the_federation_goes_on(tmp_path):
    """Each is killed in the middle of a round; the SuperLink with the server app, as in a crash.

    At last the newest checkpoint is damaged, and its round is repeated.
    """
    rounds, path = 60, tmp_path / "mifa.db"
    config = {"methods": "mifa", "folder": tmp_path, "names": " ".join(SITES), "timeout": 8.0}

    def is_used_since(name: str, t: int) -> bool:
        return any(r.round >= t and (r.client, r.stage) == (name, "used") for r in rows(path))

    with LocalFederation(tmp_path / "federation") as federation:
        superlink = federation.start_superlink()
        nodes = [federation.start_node(name, number) for number, name in enumerate(SITES)]
        federation.submit(rounds=rounds, **config)
        wait_until(lambda: count_rounds(path) >= 2, "two rounds")
        nodes[1].kill()
        seen = count_rounds(path)
        wait_until(lambda: count_rounds(path) >= seen + 2, "rounds without the killed node")
        federation.start_node("site-1", 1)
        back = count_rounds(path)
        wait_until(lambda: is_used_since("site-1", back), "update of the node that came back")

        [server] = federation.processes("flwr-serverapp")
        os.kill(server, signal.SIGKILL)
        seen = count_rounds(path)
        federation.submit(rounds=rounds, **config)
        wait_until(lambda: count_rounds(path) > seen, "round of the run that was submitted again")

        for process in [superlink.pid, *federation.processes("flwr-serverapp")]:
            os.kill(process, signal.SIGKILL)
        superlink.wait()
        last = count_rounds(path) + 2
        federation.start_superlink()
        wait_for_end(federation.submit(rounds=last, **config))
        damage(max((tmp_path / "state-mifa").glob("*.safetensors")))
        said = wait_for_end(federation.submit(rounds=last + 1, **config))
    assert federation.processes() == []
    assert f"Round {last} is removed from the ledger and repeated" in said
    assert read_rounds(f"sqlite:///{path}")["round"].to_list() == list(range(last + 1)), said
    np.testing.assert_allclose(model_of(tmp_path, "mifa"), replay(path, last + 1), rtol=1e-9)
