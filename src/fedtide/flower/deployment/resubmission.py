"""Keeps a run going: submits it to a SuperLink again after every stop, until it has completed.

Flower marks a run as failed when its server app or the SuperLink has ended, and starts none again.
With the same run configuration, and so the same `state` and `ledger`, a new run continues it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from fedtide.flower._flwr import RUN_FAILED, run_status

_POLL, _PAUSE = 5.0, 30.0  # seconds between two looks, and before the next submission
_FLWR = str(Path(sys.executable).parent / "flwr")


def run_until_completed(
    app: Path, superlink: str, run_config: Path, report: Callable[[str], None]
) -> str:
    """Submit a run until one completes or an operator stops it, and return its last status.

    The logs of the runs go to this process's output. If it is interrupted, it stops the run.

    Args:
        app: the folder of the Flower app.
        superlink: the name of a connection in Flower's config.toml.
        run_config: a TOML file with settings of the app.
        report: called with the status of the run every few seconds: Flower's, such as "pending" or
            "running"; "unknown" while the SuperLink does not answer.
    """
    while True:
        status = _submit_and_follow(app, superlink, run_config, report)
        report(status)
        if status != RUN_FAILED:
            return status
        time.sleep(_PAUSE)


def _submit_and_follow(
    app: Path, superlink: str, run_config: Path, report: Callable[[str], None]
) -> str:
    while run_status(superlink, 0) == "unknown":  # it refuses nothing, it has not started
        report("unknown")
        time.sleep(_POLL)
    submit = [_FLWR, "run", str(app), superlink, "--run-config", str(run_config)]
    done = subprocess.run([*submit, "--format", "json"], stdout=subprocess.PIPE, check=False)
    try:
        run = str(json.loads(done.stdout)["run-id"])
    except (ValueError, KeyError):  # Flower refuses the app or its configuration
        print(done.stdout.decode(errors="replace"), file=sys.stderr, flush=True)
        return RUN_FAILED
    log = subprocess.Popen([_FLWR, "log", run, superlink, "--stream"])
    try:
        while not (status := run_status(superlink, int(run))).startswith("finished"):
            report(status)
            time.sleep(_POLL)
    except BaseException:
        subprocess.run([_FLWR, "stop", run, superlink], check=False)
        raise
    finally:
        log.terminate()
        log.wait()
    return status


def export_status(host: str, port: int) -> Callable[[str], None]:
    """Serve metrics on the run for Prometheus, and return a function that takes its status."""
    from prometheus_client import Counter, Gauge, start_http_server

    start_http_server(port, host)
    current = Gauge("fedtide_run", "1: the present status of the run", ["status"])
    failed = Counter("fedtide_failed_runs", "runs that have failed, or were not accepted")

    def report(status: str) -> None:
        current.clear()
        current.labels(status).set(1)
        failed.inc(status == RUN_FAILED)

    return report
