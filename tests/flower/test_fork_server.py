"""A fork server runs Flower's client processes as if each had been started on its own."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedtide.flower import fork_server

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not fork_server.IS_SUPPORTED, reason="forks need Linux"),
]

SERVER = """
import json, os, sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from fedtide.flower import fork_server


def report():
    seen = {"pid": os.getpid(), "parent": os.getppid(), "arguments": sys.argv[1:]}
    seen |= {"folder": os.getcwd(), "stdin": sys.stdin.read(), "draw": np.random.rand()}
    seen |= {"name": Path("/proc/self/comm").read_text().strip()}
    print(json.dumps(seen | {"variable": os.environ.get("VARIABLE"), "home": os.environ["HOME"]}))
    sys.exit(3 if "fail" in sys.argv else 0)


fork_server.entry_points = lambda **names: [SimpleNamespace(load=lambda: report)]
run = fork_server.serve(Path(sys.argv[1]), sys.stdin.fileno(), [])
sys.exit(run and run())
"""


@pytest.fixture
def programs(tmp_path) -> Path:
    """Return the folder of the program; its path is longer than that of a socket may be."""
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    fork_server.install_programs(folder, ["flwr-clientapp"])
    return folder


@pytest.fixture
def server(programs):
    """Start a server of processes that report what they see."""
    command = [sys.executable, "-P", "-c", SERVER, str(programs)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        wait_for(lambda: (programs / "socket").exists())
        yield process
        process.kill()


def wait_for(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def run(programs: Path, *arguments: str, **options) -> str:
    """Run the program, and return what it and its fork print."""
    command = [str(programs / "flwr-clientapp"), *arguments]
    options = {"input": "text", "stderr": subprocess.STDOUT} | options
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, **options)
    return done.stdout


def test_a_fork_has_arguments_environment_folder_and_streams_of_the_program(
    server, programs, tmp_path
):
    environment = {"HOME": "/nowhere", "PATH": os.environ["PATH"], "VARIABLE": "a\udcff\nb'"}
    seen = json.loads(run(programs, "--token", "it's a", "", env=environment, cwd=tmp_path))
    assert seen.pop("parent") == server.pid
    assert seen.pop("pid") != server.pid
    assert 0 <= seen.pop("draw") < 1
    assert seen == {
        "arguments": ["--token", "it's a", ""],
        "folder": str(tmp_path),
        "stdin": "text",
        "name": "flwr-clientapp",
        "variable": "a\udcff\nb'",
        "home": "/nowhere",
    }


def test_forks_are_new_processes_that_draw_different_numbers_and_are_not_left_over(
    server, programs
):
    reports = [json.loads(run(programs, "fail")) for _ in range(3)]
    assert len({seen["pid"] for seen in reports}) == 3
    assert len({seen["draw"] for seen in reports}) == 3
    assert [seen["variable"] for seen in reports] == [None] * 3
    wait_for(lambda: not any(Path(f"/proc/{seen['pid']}").exists() for seen in reports))
    assert server.poll() is None


def test_a_program_that_dies_while_it_asks_does_not_stop_the_server(server, programs, monkeypatch):
    monkeypatch.chdir(programs)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect("socket")
    assert json.loads(run(programs))["parent"] == server.pid


def test_the_server_ends_with_its_lifeline(server):
    server.stdin.close()
    assert server.wait(timeout=30) == 0


def put_in_place_of_flowers(own: str, programs: Path) -> None:
    """Let a program stand for the one of Flower that runs without the server."""
    program = programs / "flwr-clientapp"
    text, flowers = program.read_text(), str(Path(sys.executable).parent / "flwr-clientapp")
    assert flowers in text
    program.write_text(text.replace(flowers, own))


@pytest.mark.parametrize("how", ["never started", "killed"])
def test_without_the_server_flowers_own_program_runs(how, programs, tmp_path, request):
    if how == "killed":
        server = request.getfixturevalue("server")
        server.kill()
        server.wait()
    put_in_place_of_flowers("/usr/bin/env", programs)
    told = run(
        programs, "sh", "-c", "echo $VARIABLE; pwd; cat", env={"VARIABLE": "v"}, cwd=tmp_path
    )
    assert told.split() == ["v", str(tmp_path), "text"]


def test_dependencies_are_installed_by_flowers_own_program(server, programs):
    """The server has other versions loaded."""
    put_in_place_of_flowers("/bin/echo", programs)
    assert run(programs, "--allow-runtime-dependency-installation").split() == [
        "--allow-runtime-dependency-installation"
    ]


def test_a_command_keeps_its_process_and_finds_the_program_until_it_ends(tmp_path):
    """The server ends with the command, and not by the signals that are sent to both."""
    command = "import os, shutil; print(os.getpid(), shutil.which('flwr-clientapp')); input()"
    wrapped = [sys.executable, "-P", "-m", "fedtide.flower.fork_server", sys.executable, "-c"]
    with subprocess.Popen(
        [*wrapped, command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        text=True,
        start_new_session=True,
    ) as process:
        pid, program = process.stdout.readline().split()
        folder = Path(program).parent
        wait_for(lambda: (folder / "socket").exists())
        os.killpg(process.pid, signal.SIGTERM)
    assert int(pid) == process.pid
    assert process.returncode == -signal.SIGTERM
    assert folder.parent == tmp_path
    wait_for(lambda: not folder.exists())
