"""`fedtide flower demo`: it ends well, and leaves no process behind even if interrupted."""

import importlib
import re
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from fedtide.cli.flower import demo_command
from fedtide.errors import InvalidInputError
from fedtide.flower import FedTide, initial_arrays
from fedtide.flower.dev.demo import METHOD, SITES, compare_methods, describe_remaining, example_app
from fedtide.flower.dev.process_guard import find_processes
from fedtide.flower.ledger.ledger import read_ledger

from .fake_grid import FakeGrid, Node
from .processes import DEADLINE, is_running, wait_until

FEDTIDE = [sys.executable, "-c", "from fedtide.cli.main import main; main()"]


def left_behind(folder: Path) -> dict[int, str]:
    """Return the processes that belong to the demo in this folder."""
    return find_processes(f"FEDTIDE_LOCAL_FEDERATION={folder.resolve()}")


@pytest.mark.flower
def test_a_federation_with_tls_runs_and_is_audited(tmp_path):
    out = tmp_path / "demo"
    command = [*FEDTIDE, "flower", "demo", "--rounds", "2", "--tls", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("rounds: 2, of a few ")
    assert "whose model" in done.stdout
    assert re.findall(r"(\w+), (?:this federation|simulated) .*%", done.stdout) == [
        *("FedAU", "FedAvg", "FedAU", "MIFA"),
    ]
    log = read_ledger(f"sqlite:///{out / 'ledger.db'}")
    first = log.filter(round=0)
    assert first["client"].to_list() == [f"site-{n}" for n in range(5)]
    assert set(first["stage"]) == {"used"}
    assert left_behind(out) == {}


@pytest.mark.flower
@pytest.mark.usefixtures("hangups_end_processes")
@pytest.mark.parametrize("name", ["SIGINT", "SIGHUP", "SIGKILL"])
def test_a_demo_that_is_ended_leaves_no_process(tmp_path, name):
    """Killed, it is in the middle of a round."""
    out, number, killed = tmp_path / "demo", getattr(signal, name), name == "SIGKILL"
    command = [*FEDTIDE, "flower", "demo", "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def is_ready() -> bool:
        assert process.poll() is None
        ready = out / ("ledger.db" if killed else "site-2.log")
        return ready.is_file()

    try:
        wait_until(is_ready, "processes")
        started = left_behind(out)
    finally:
        process.send_signal(number)
    assert len(started) > (12 if killed else 3)
    assert process.wait(timeout=300) == (-number if killed else 130)
    wait_until(lambda: not any(map(is_running, started)), "end of all processes", seconds=60)
    assert left_behind(out) == {}


def test_the_forecast_follows_the_rounds_that_have_ended():
    assert describe_remaining(2, rounds=12, elapsed=7.0) == "1:17 min to go"
    assert describe_remaining(3, rounds=12, elapsed=40.0) == "3:20 min to go"


def test_the_demo_finds_its_app():
    assert (example_app() / "pyproject.toml").is_file()


def test_an_existing_output_folder_is_refused(tmp_path):
    with pytest.raises(InvalidInputError, match=r"^out: .* exists; "):
        demo_command(out=tmp_path)


def test_windows_is_refused_in_a_sentence(tmp_path, monkeypatch):
    monkeypatch.delattr(signal, "SIGHUP", raising=False)
    with pytest.raises(InvalidInputError, match="flower: the demo needs Linux or macOS"):
        demo_command(out=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_no_line_of_a_log_stops_the_demo_or_controls_the_terminal(tmp_path, monkeypatch, capsys):
    def log_lines(folder, rounds, tls, show):
        show("reply of [/site] not used: [bold]it[/bold] sent \x1b[2J")
        raise InvalidInputError("flower: it ended; see the logs")

    monkeypatch.setattr("fedtide.flower.dev.demo.run_demo", log_lines)
    with pytest.raises(InvalidInputError, match=r"^flower: it ended"):
        demo_command(out=tmp_path / "new")
    printed = capsys.readouterr().out
    assert "reply of [/site] not used: [bold]it[/bold] sent" in printed
    assert "\x1b" not in printed


def test_the_apps_method_bounds_a_site_and_its_rounds_may_stay_on_the_server(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(example_app()))
    app = importlib.import_module("server_app")
    for name in ("task", "server_app"):
        del sys.modules[name]
    assert app.bounded(METHOD.inner) == METHOD
    (tmp_path / "rounds").write_text("950\n")
    assert int(app.rounds_from(str(tmp_path / "rounds"))) == 950
    assert not app.rounds_from("")


def test_the_comparison_is_of_this_model_and_of_models_for_the_same_participation(
    tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(str(example_app()))
    task, app = importlib.import_module("task"), importlib.import_module("client_app").app
    for name in ("task", "client_app"):  # other tests import other modules by these names
        del sys.modules[name]
    monkeypatch.setattr(task, "digits", cache(task.digits))
    nodes = {
        7 + n: Node(app, {"name": name, "every": every, "partition-id": n, "num-partitions": 5})
        for n, (name, every) in enumerate(SITES.items())
    }
    grid = FakeGrid(nodes)
    ledger = f"sqlite:///{tmp_path / 'ledger.db'}"
    strategy = FedTide(METHOD, clients=5, state=tmp_path / "state", ledger=ledger, clock=grid.clock)
    result = strategy.start(grid, initial_arrays(task.model()), num_rounds=12, timeout=60)

    own, *simulated = compare_methods(tmp_path)
    network = task.model()
    network.load_state_dict(result.arrays.to_torch_state_dict())
    images, labels = task.test_set()
    correct = (network(images).argmax(1) == labels).numpy()
    by_site = {f"site-{n}": correct[np.isin(labels, [2 * n, 2 * n + 1])].mean() for n in range(5)}
    assert own.method == "Clipped FedAU, this federation"
    assert own.accuracy == pytest.approx(correct.mean())
    assert own.worst_accuracy == pytest.approx(min(by_site.values()))
    assert by_site[own.worst_client] == min(by_site.values())
    compared = [outcome.method.split(",")[0] for outcome in simulated]
    assert compared == ["FedAvg", "Clipped FedAU", "MIFA"]
    fedavg, fedau, mifa = (outcome.accuracy for outcome in simulated)
    assert fedau == pytest.approx(own.accuracy, abs=0.05)  # other minibatches
    assert fedavg < fedau
    assert mifa > fedau + 0.1
