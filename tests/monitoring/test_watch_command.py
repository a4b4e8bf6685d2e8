"""The command `fedtide watch`."""

import os
import re
import signal
import subprocess
import sys
import urllib.request

import pytest
from typer.testing import CliRunner

from fedtide.cli.main import app
from fedtide.errors import InvalidInputError

from .ledgers import write


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "ledger: no database .*missing.db'; "),
        (["--window", "1"], "window: 1 is not "),
        (["--clients", "0"], "clients: 0 is not "),
    ],
)
def test_what_cannot_be_watched_is_said_in_a_sentence(tmp_path, options, message):
    url = f"sqlite:///{tmp_path / 'missing.db'}"
    with pytest.raises(InvalidInputError, match=f"^{message}"):
        CliRunner().invoke(app, ["watch", url, *options], catch_exceptions=False)


@pytest.mark.process
def test_it_serves_until_ctrl_c(url):
    write(url, [])
    command = [sys.executable, "-c", "from fedtide.cli.entry import main; main()"]
    with subprocess.Popen(
        [*command, "watch", url, "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        assert process.stdout is not None
        try:
            said = process.stdout.readline()
            address = re.search(r"http://127\.0\.0\.1:\d+/", said)
            assert address is not None, said
            with urllib.request.urlopen(address[0] + "metrics", timeout=120) as response:
                assert b"fedtide_ledger_up 1.0" in response.read()
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=120)
        finally:
            process.kill()
    assert (process.returncode, errors) == (0, "")
