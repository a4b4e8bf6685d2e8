"""The files in `deploy` satisfy their schemas and linters, and keep Control off the network."""

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

DEPLOY = Path(__file__).parents[1] / "deploy"
PROGRAMS = Path(sys.executable).parent
MANIFESTS = {
    (file.name, manifest["kind"], manifest["metadata"]["name"]): manifest
    for file in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for manifest in yaml.safe_load_all(file.read_text())
}
COMPOSE = yaml.safe_load((DEPLOY / "docker/compose.yaml").read_text())
SERVICES = COMPOSE["services"]
LOOPBACK = {"--host": "127.0.0.1", "--port": "8000"}


def options(command: list[str]) -> dict[str, str]:
    """Return the options of a command, given as --name=value or --name value."""
    words = [part for word in command[1:] for part in word.split("=", 1)]
    pairs = zip(words, [*words[1:], "--"], strict=True)
    return {a: "" if b.startswith("--") else b for a, b in pairs if a.startswith("--")}


def superlinks() -> dict[str, dict[str, str]]:
    """Return the options of the SuperLink in each way to deploy."""
    unit = (DEPLOY / "systemd/superlink.service").read_text().replace("\\\n", "")
    [server] = [m for m in MANIFESTS.values() if m["kind"] == "StatefulSet"]
    containers = {c["name"]: c for c in server["spec"]["template"]["spec"]["containers"]}
    return {
        "systemd": options(re.search(r"ExecStart=(.*)", unit)[1].split()),
        "compose": options(SERVICES["superlink"]["command"]),
        "kubernetes": options(containers["superlink"]["command"]),
    }


@pytest.mark.parametrize("name", MANIFESTS, ids=" ".join)
def test_manifests_satisfy_the_schema_of_kubernetes(name):
    kubernetes_validate.validate(MANIFESTS[name], "1.37", strict=True)


@pytest.mark.parametrize("way", ["systemd", "compose", "kubernetes"])
def test_the_superlink_listens_on_loopback_and_authenticates_nodes(way):
    found = superlinks()[way]
    assert found.items() >= LOOPBACK.items()
    assert "--enable-supernode-auth" in found
    assert "--insecure" not in found
    files = {
        name: Path(value).name
        for name, value in found.items()
        if value.endswith((".pem", ".key", ".db"))
    }
    assert files == {
        "--ssl-ca-certfile": "local.pem",
        "--ssl-certfile": "local.pem",
        "--ssl-keyfile": "local.key",
        "--database": "superlink.db",
    }


def test_every_image_has_a_version_and_ours_has_the_packages():
    images = [service["image"] for service in SERVICES.values()]
    for manifest in MANIFESTS.values():
        pod = manifest["spec"].get("template", {"spec": {"containers": []}})
        images += [container["image"] for container in pod["spec"]["containers"]]
    assert all(re.search(r":v?\d", image) for image in images)
    own = {image for image in images if image.startswith("fedtide")}
    assert own == {f"fedtide:{version('fedtide')}"}


def test_compose_publishes_only_nginx_and_local_dashboards():
    ports = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert ports.pop("nginx") == ["0.0.0.0:443:443"]
    assert all(port.startswith("127.0.0.1:") for [port] in ports.values())
    for name in ("superlink", "serverapp"):  # 127.0.0.1 is nginx's, too
        assert SERVICES[name]["network_mode"] == "service:nginx"


def test_sites_of_compose_reach_no_other_service_than_nginx():
    sites = {name for name in SERVICES if name.startswith("site-")}
    assert len(sites) == 3
    on = {name: set(service.get("networks", [])) for name, service in SERVICES.items()}
    assert {name for name, networks in on.items() if "fleet" in networks} == sites | {"nginx"}
    assert all(on[site] == {"fleet"} for site in sites)


def test_compose_mounts_files_that_exist_or_that_the_page_makes():
    page = (DEPLOY.parent / "docs/deploy.md").read_text()
    made = {"ca.crt", "server.pem", "server.key", "local.pem", "local.key"}
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            if source.startswith("./keys/"):
                name = Path(source).name
                assert name in made or f"keys/{name}" in page
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
        "metrics": ["metrics"],
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
@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None and "CI" not in os.environ, reason="needs systemd"
)
def test_systemd_accepts_the_units(tmp_path):
    for unit in (DEPLOY / "systemd").glob("*.service"):
        program = tmp_path / re.search(r"ExecStart=/opt/fedtide/bin/(\S+)", unit.read_text())[1]
        program.touch(mode=0o755)
        installed = unit.read_text().replace("/opt/fedtide/bin", str(tmp_path))
        (tmp_path / unit.name).write_text(installed)
        run("systemd-analyze", "verify", tmp_path / unit.name)
