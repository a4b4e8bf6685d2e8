"""The files in `deploy` satisfy their schemas and linters, and keep Control off the network."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).parents[1]
DEPLOY, UNITS = ROOT / "deploy", ROOT / "src/fedtide/flower/deployment/files"
PROGRAMS = Path(sys.executable).parent
MANIFESTS = {
    (file.name, manifest["kind"], manifest["metadata"]["name"]): manifest
    for file in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for manifest in yaml.safe_load_all(file.read_text())
}
COMPOSE = yaml.safe_load((DEPLOY / "docker/compose.yaml").read_text())
LATEST = kubernetes_validate.latest_version()
SERVICES = COMPOSE["services"]


def options(command: list[str]) -> dict[str, str]:
    """Return the options of a command, given as --name=value or --name value, without folders."""
    words: list[str] = []
    for word in command[1:]:
        words += word.split("=", 1) if word.startswith("--") else [word]
    pairs = zip(words, [*words[1:], "--"], strict=True)
    return {
        name: "" if value.startswith("--") else value.rpartition("/")[2]
        for name, value in pairs
        if name.startswith("--")
    }


def pods() -> dict[str, dict[str, Any]]:
    """Return the containers of each workload of Kubernetes by name."""
    return {
        name: {container["name"]: container for container in spec["containers"]}
        for (_, _, name), manifest in MANIFESTS.items()
        if (spec := manifest["spec"].get("template", {}).get("spec"))
    }


def in_each_way(program: str, service: str, pod: str) -> list[dict[str, str]]:
    """Return the options of a program of Flower in systemd's unit, the service and the Pod."""
    unit = (UNITS / f"{program}.service").read_text().replace("\\\n", "")
    commands = [
        shlex.split(re.search(r"ExecStart=(.*)", unit)[1]),
        SERVICES[service]["command"],
        pods()[pod][program]["command"],
    ]
    for command in commands:
        watchdog = ["python", "-P", "-m", "fedtide.flower.watchdog", f"flower-{program}"]
        assert [Path(command[0]).name, *command[1:5]] == watchdog
    return [options(command[4:]) for command in commands]


@pytest.mark.parametrize("name", MANIFESTS, ids=" ".join)
def test_manifests_satisfy_the_schema_of_kubernetes(name):
    kubernetes_validate.validate(MANIFESTS[name], LATEST, strict=True)


def test_the_superlink_listens_on_loopback_and_authenticates_nodes_in_each_way_to_deploy():
    unit, service, pod = in_each_way("superlink", "superlink", "fedtide-server")
    assert unit == service == pod
    assert unit == {
        "--host": "127.0.0.1",
        "--port": "8000",
        "--ssl-ca-certfile": "local.pem",
        "--ssl-certfile": "local.pem",
        "--ssl-keyfile": "local.key",
        "--enable-supernode-auth": "",
        "--disable-runtime-dependency-installation": "",
        "--database": "superlink.db",
    }


def test_a_site_checks_the_server_and_has_a_key_in_each_way_to_deploy():
    for found in in_each_way("supernode", "site-a", "fedtide-site"):
        assert found == {
            "--superlink": "fl.example.org:443",
            "--root-certificates": "ca.crt",
            "--auth-supernode-private-key": "key",
            "--node-config": "partition-id=0 num-partitions=3",
        }


def test_compose_publishes_only_nginx_and_local_dashboards():
    ports = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert ports.pop("nginx") == ["0.0.0.0:443:443"]
    assert all(port.startswith("127.0.0.1:") for [port] in ports.values())
    for name in ("superlink", "serverapp"):  # 127.0.0.1 is nginx's, too
        assert SERVICES[name]["network_mode"] == "service:nginx"


def test_compose_mounts_files_that_exist_or_that_the_commands_write():
    made = {"ca.crt", "key", "server.pem", "server.key", "local.pem", "local.key"}
    made |= {"config.toml", "fleet.conf"}
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            if source.startswith("./keys/"):
                assert Path(source).name in made
            elif source.startswith("."):
                assert (DEPLOY / "docker" / source).exists(), source
            else:
                assert source in COMPOSE["volumes"]


def test_kubernetes_exposes_nginx_to_all_and_metrics_to_prometheus_only():
    services = {
        m["metadata"]["name"]: m["spec"] for m in MANIFESTS.values() if m["kind"] == "Service"
    }
    assert {name: [p["targetPort"] for p in spec["ports"]] for name, spec in services.items()} == {
        "fleet": ["fleet"],
        "metrics": ["metrics", "run"],
    }
    assert services["metrics"]["type"] == "ClusterIP"
    policies = {name: m for (_, kind, name), m in MANIFESTS.items() if kind == "NetworkPolicy"}
    assert policies["fedtide-site"]["spec"]["ingress"] == []
    everyone = [r for r in policies["fedtide-server"]["spec"]["ingress"] if "from" not in r]
    assert [port["port"] for rule in everyone for port in rule["ports"]] == ["fleet"]


def run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=DEPLOY)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.process
def test_hadolint_accepts_the_dockerfile():
    run(PROGRAMS / "hadolint", "docker/Dockerfile")


@pytest.mark.process
def test_yamllint_accepts_compose_file_and_manifests():
    run(PROGRAMS / "yamllint", "--strict", "docker", "kubernetes")  # rules: deploy/.yamllint


@pytest.mark.process
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_systemd_accepts_the_units(tmp_path):
    for unit in UNITS.glob("*.service"):
        program = tmp_path / re.search(r"ExecStart=/opt/fedtide/bin/(\S+)", unit.read_text())[1]
        program.touch(mode=0o755)
        installed = unit.read_text().replace("/opt/fedtide/bin", str(tmp_path))
        (tmp_path / unit.name).write_text(installed)
        run("systemd-analyze", "verify", tmp_path / unit.name)
