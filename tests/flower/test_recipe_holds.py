"""The recipe of docs/deploy.md when a site that has a key attacks it, or a part of it fails."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from .local_federation import free_port
from .processes import APP, DEADLINE, rows, wait_until
from .recipe import SITE, Recipe, needs, register, select, start

pytestmark = [pytest.mark.flower, needs("nginx")]

HOSTILE = Path(__file__).with_name("hostile_node.py")


def start_site(recipe: Recipe, site: str, client: int) -> subprocess.Popen[bytes]:
    options = ("--node-config", f"client={client}", "--port", str(free_port()))
    return recipe.start_unit("supernode", site, *options)


def admit(recipe: Recipe, *sites: str) -> None:
    """Make and register the keys of sites."""
    for site in sites:
        recipe.run(SITE.replace("site-a", site))
        assert register(recipe, site, site)[0] == 0


def online(recipe: Recipe) -> list[str]:
    """Return the sites that the SuperLink takes for online."""
    query = "SELECT name FROM node WHERE status = 'online' AND online_until > unixepoch()"
    return [name for (name,) in select(recipe, query)]


def test_a_reply_that_announces_14_000_objects_costs_its_sender_the_update_alone(recipe):
    """It locked the SuperLink's database for eight seconds, which ended runs and other sites.

    The updates of the honest site have 12 MB.
    """
    recipe.start_server()
    admit(recipe, "site-a", "site-b")
    start_site(recipe, "site-a", 0)
    options = ["--superlink", f"localhost:{recipe.port}", "--node-config", "client=1"]
    options += ["--root-certificates", str(recipe.home / "ca.crt")]
    options += ["--auth-supernode-private-key", str(recipe.home / "site-b")]
    options += ["--port", str(free_port())]
    recipe.federation._start("site-b", "python", str(HOSTILE), "tree", *options)
    wait_until(lambda: online(recipe) == ["site-a", "site-b"], "sites")
    superexecs = recipe.federation.processes("flower-superexec")
    config = f"folder='{recipe.folder}' names='site-a site-b' ballast=1500000 timeout=15.0 rounds="
    ledger = recipe.folder / "fedavg.db"
    for rounds in (3, 5):  # a second submission, which is not left pending either
        run = start(recipe, f'flwr run {APP} ours --stream --run-config "{config}{rounds}"')
        said, _ = run.communicate(timeout=DEADLINE)
        used = [row.round for row in rows(ledger, "site-a", "used")]
        assert used == list(range(rounds)), said
    assert rows(ledger, "site-b", "selected")
    assert rows(ledger, "site-b", "used reported") == []
    assert "413" in (recipe.folder / "site-b.log").read_text()
    assert online(recipe) == ["site-a", "site-b"]
    assert recipe.federation.processes("flower-superexec") == superexecs


def test_a_superlink_whose_superexec_has_died_ends_so_that_it_is_restarted(recipe):
    """It lived on, and every later run stayed pending."""
    recipe.start_server()
    started = recipe.federation._started
    [superlink] = [one for one in started if any("flower-superlink" in word for word in one.args)]
    [superexec] = recipe.federation.processes("flower-superexec")
    os.kill(superexec, signal.SIGKILL)
    assert superlink.wait(timeout=60) == 1


@pytest.mark.parametrize("call", ["pull-messages", "send-node-heartbeat"])
def test_a_site_that_can_no_longer_come_online_ends_so_that_it_is_restarted(recipe, call):
    """It lived on, offline."""
    recipe.start_server()
    admit(recipe, "site-a")
    site = start_site(recipe, "site-a", 0)
    wait_until(lambda: online(recipe) == ["site-a"], "site")
    configuration = recipe.etc / "nginx/conf.d/fleet.conf"
    configuration.write_text(configuration.read_text().replace(f"{call}|", ""))
    [nginx] = [one for one in recipe.federation._started if "nginx" in one.args[0]]
    nginx.send_signal(signal.SIGHUP)  # reads its configuration again
    assert site.wait(timeout=120) == 1
