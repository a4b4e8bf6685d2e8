"""The deployment with Flower's own processes: SuperLink, SuperNodes, TLS, node keys, and kills."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import fedtide as ft
from fedtide.flower.ledger.ledger import read_ledger, read_rounds

from .certificates import make_node_key
from .local_federation import LocalFederation
from .processes import (
    APP,
    DEADLINE,
    METHODS,
    count_rounds,
    load_state,
    replay,
    rows,
    script,
    wait_until,
)

pytestmark = pytest.mark.flower

SITES = [f"site-{n}" for n in range(script.CLIENTS)]
COMPARED = ("fedau", "amplified", "amplified-scaffold")
"""Weights per client, a state around another, corrections; other tests run the other methods."""


def wait_for_end(run: subprocess.Popen) -> str:
    """Wait for a run to end and return its log."""
    return run.communicate(timeout=DEADLINE)[0].decode()


def model(folder: Path, method: str) -> np.ndarray:
    name = "state.inner.model" if method == "amplified" else "state.model"
    return load_state(folder, method).tensors[name].numpy()


def test_with_tls_and_node_keys_strangers_are_refused_and_models_equal_the_simulators(tmp_path):
    with LocalFederation(tmp_path / "federation", tls=True) as federation:
        federation.start_superlink(database=False)
        for number, name in enumerate(SITES):
            federation.register(name)
            federation.start_node(name, client=number)
        make_node_key(federation.folder / "stranger")  # and never registered
        stranger = federation.start_node("stranger", client=0)
        config = {"folder": tmp_path, "names": " ".join(SITES), "rounds": script.ROUNDS}
        config |= {"scripted": 1, "min_nodes": script.CLIENTS, "timeout": DEADLINE}
        said = wait_for_end(federation.submit(APP, methods=" ".join(COMPARED), **config))
        assert stranger.wait(timeout=DEADLINE) != 0
    matrices, centers = script.problem()
    q = script.PRESENT / np.maximum(script.PRESENT.sum(axis=1, keepdims=True), 1)
    for method in COMPARED:
        wanted = ft.simulate(
            problem=ft.problems.Quadratic(matrices=matrices, centers=centers),
            participation=ft.participation.Table(weights=q),
            algorithm=METHODS[method],
            local=ft.LocalTraining(steps=script.STEPS, lr=script.LR),
            rounds=script.ROUNDS,
            dtype="float64",
            trainer="reference",
        )
        assert (tmp_path / f"{method}.db").is_file(), said
        url = f"sqlite:///{tmp_path / method}.db"
        assert read_rounds(url)["round"].to_list() == list(range(script.ROUNDS)), said
        np.testing.assert_allclose(model(tmp_path, method), wanted.model, rtol=0, atol=1e-6)
        log = read_ledger(url)
        used = log.filter(stage="used").select("round", "client").rows()
        assert used == [(t, SITES[n]) for t, n in zip(*script.PRESENT.nonzero(), strict=True)]


def damage(path: Path) -> None:
    """Change a byte in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.write_bytes(content)


def used_since(path: Path, name: str, t: int) -> bool:
    return any(row.round >= t for row in rows(path, name, "used"))


@pytest.fixture
def federation(tmp_path) -> Iterator[LocalFederation]:
    with LocalFederation(tmp_path / "federation") as running:
        yield running
    assert running.processes() == []


def test_node_server_and_superlink_are_killed_and_the_federation_goes_on(federation, tmp_path):
    """Each is killed in the middle of a round; the SuperLink with the server app, as in a crash.

    At last the newest checkpoint is damaged, and its round is repeated.
    """
    rounds, path = 60, tmp_path / "mifa.db"
    config = {"methods": "mifa", "folder": tmp_path, "names": " ".join(SITES), "timeout": 8.0}

    superlink = federation.start_superlink()
    nodes = [federation.start_node(name, client=number) for number, name in enumerate(SITES)]
    federation.submit(APP, rounds=rounds, **config)
    wait_until(lambda: count_rounds(path) >= 2, "two rounds")
    nodes[1].kill()
    seen = count_rounds(path)
    wait_until(lambda: count_rounds(path) >= seen + 2, "rounds without the killed node")
    federation.start_node("site-1", client=1)
    back = count_rounds(path)
    wait_until(lambda: used_since(path, "site-1", back), "update of the node that came back")

    [server] = federation.processes("flwr-serverapp")
    os.kill(server, signal.SIGKILL)
    seen = count_rounds(path)
    federation.submit(APP, rounds=rounds, **config)
    wait_until(lambda: count_rounds(path) > seen, "round of the run that was submitted again")

    for process in [superlink.pid, *federation.processes("flwr-serverapp")]:
        os.kill(process, signal.SIGKILL)
    superlink.wait()
    last = count_rounds(path) + 2
    federation.start_superlink()
    wait_for_end(federation.submit(APP, rounds=last, **config))
    damage(max((tmp_path / "state-mifa").glob("*.safetensors")))
    said = wait_for_end(federation.submit(APP, rounds=last + 1, **config))

    assert f"Round {last} is removed from the ledger and repeated" in said
    assert read_rounds(f"sqlite:///{path}")["round"].to_list() == list(range(last + 1)), said
    wanted = replay("mifa", path, SITES, last + 1)
    np.testing.assert_allclose(model(tmp_path, "mifa"), wanted, rtol=1e-9)
