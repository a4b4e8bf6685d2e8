"""The recipe of docs/deploy.md: keys, the proxy, and a stranger who attacks a federation."""

import http.server
import json
import os
import socket
import sqlite3
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.client import HTTPSConnection
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key

from fedtide.flower.dev.certificates import make_node_key
from fedtide.flower.dev.local_federation import LocalFederation, free_port

from .processes import APP, DEADLINE, rows, wait_until
from .recipe import PROGRAMS, Recipe, commands_with, need

SERVER, SITE = (commands_with(f"--now {unit}") for unit in ("superlink", "supernode"))
REGISTER, _ = commands_with("register site-a.pub").splitlines()

CALLS = {
    "/v1/fleet/activate-node",
    "/v1/fleet/deactivate-node",
    "/v1/fleet/send-node-heartbeat",
    "/v1/fleet/pull-messages",
    "/v1/fleet/push-messages",
    "/v1/fleet/get-run",
    "/v1/fleet/get-fab",
    "/v1/fleet/push-object",
    "/v1/fleet/pull-object",
    "/v1/fleet/confirm-message-received",
}
"""What a SuperNode with a registered key calls."""


@pytest.fixture
def recipe(tmp_path) -> Iterator[Recipe]:
    with LocalFederation(tmp_path / "federation") as federation:
        yield Recipe(federation)


def listens(address: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((address, port)) == 0


def trust(certificate: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=certificate)


# Keys and certificates


@pytest.mark.process
@pytest.mark.skipif(need("openssl"), reason="needs openssl")
def test_the_servers_certificates_are_for_their_names_and_nobody_else_can_read_the_keys(recipe):
    recipe.run(SERVER)
    read = {
        path.name: x509.load_pem_x509_certificate(path.read_bytes())
        for path in (
            recipe.deploy / "ca.crt",
            recipe.etc / "flower/server.pem",
            recipe.home / "local.pem",
        )
    }
    read["server.pem"].verify_directly_issued_by(read["ca.crt"])
    for name in ("server.pem", "local.pem"):
        names = read[name].extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert "localhost" in names.get_values_for_type(x509.DNSName)
    keys = (recipe.deploy / "ca.key", recipe.etc / "flower/server.key", recipe.home / "local.key")
    for key, certificate in zip(keys, read.values(), strict=True):
        private = load_pem_private_key(key.read_bytes(), None)
        assert private.public_key() == certificate.public_key()
        assert not key.stat().st_mode & 0o077
    assert not (recipe.home / "server.key").exists()  # apps can read what is there
    assert not list(recipe.home.glob("ca*"))


@pytest.mark.process
@pytest.mark.skipif(need("ssh-keygen"), reason="needs ssh-keygen")
def test_the_key_of_a_site_has_the_curve_that_flower_accepts(recipe):
    (recipe.deploy / "ca.crt").touch()
    recipe.run(SITE)
    key = load_ssh_private_key((recipe.home / "site-a").read_bytes(), None)
    assert key.curve.name == "secp384r1"
    assert (recipe.deploy / "site-a.pub").is_file()


# The proxy, before a server that tells what it gets


class Echo(http.server.BaseHTTPRequestHandler):
    """Answers with the request line and the size of the body."""

    def do_POST(self):
        size = len(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        body = f"{self.requestline} {size}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_POST

    def log_message(self, *arguments):
        pass


@pytest.fixture
def echo(recipe) -> Iterator[Recipe]:
    """Return a recipe whose nginx stands before an `Echo` in place of the SuperLink."""
    recipe.run(SERVER)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", recipe.federation.port), Echo)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(recipe.home / "local.pem", recipe.home / "local.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    recipe.start_nginx()
    wait_until(lambda: listens("127.0.0.1", recipe.port), "nginx")
    yield recipe
    server.shutdown()
    server.server_close()


def send(recipe: Recipe, line: str, headers: str = "Content-Length: 0", body: bytes = b"") -> bytes:
    """Return the response to a request, as it came."""
    with (
        socket.create_connection(("localhost", recipe.port)) as plain,
        trust(recipe.deploy / "ca.crt").wrap_socket(plain, server_hostname="localhost") as stream,
    ):
        head = f"{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n\r\n"
        stream.sendall(head.encode() + body)
        answer = b""
        while b"</html>" not in answer and (part := stream.recv(65536)):
            answer += part  # after a refusal, nginx waits for the rest of the body
    return answer


@pytest.mark.process
@pytest.mark.skipif(need("nginx"), reason="needs nginx")
def test_the_proxy_passes_ten_paths_on_however_a_path_is_written(echo):
    for path in sorted(CALLS):
        assert send(echo, f"POST {path}").endswith(f"POST {path} HTTP/1.1 0".encode())
    written = [
        "/v1/control/list-nodes",
        "/v1/runtime/acquire-task",
        "/v1/fleet/register-node",
        "/v1/fleet/unregister-node",
        "/v1/fleet/../control/list-nodes",
        "/v1/fleet/pull-messages/../../control/list-nodes",
        "/v1/fleet/pull-messages/..%2f..%2fcontrol/list-nodes",
        "/v1/control/list-nodes/..%2f..%2ffleet/pull-messages",
        "/v1/control/list-nodes#/../../fleet/pull-messages",
        "/v1/control/list-nodes?/v1/fleet/pull-messages",
        "/v1/fleet/pull-messages?/../../control/list-nodes",
        "/v1/fleet/pull-messages%0a",
        "/v1/fleet/pull-messages%0d%0aX:y",
        "/v1/fleet/pull-messages;/../../control/list-nodes",
        "//v1//control//list-nodes",
        "/v1/%63ontrol/list-nodes",
        "/V1/CONTROL/list-nodes",
        "https://localhost/v1/control/list-nodes",
        f"https://127.0.0.1:{echo.federation.port}/v1/control/list-nodes",
        "/health",
        "/docs",
        "/openapi.json",
        "/",
    ]
    for path in written:
        answer = send(echo, f"POST {path}")
        if answer.startswith(b"HTTP/1.1 200 "):  # then as one of the ten
            assert answer.rpartition(b"\r\n")[2] == b"POST /v1/fleet/pull-messages HTTP/1.1 0"
        else:
            assert answer.startswith((b"HTTP/1.1 404 ", b"HTTP/1.1 400 ")), path


@pytest.mark.process
@pytest.mark.skipif(need("nginx"), reason="needs nginx")
def test_the_proxy_refuses_other_methods_second_requests_and_large_bodies(echo):
    call, hidden = "POST /v1/fleet/push-object", b"POST /v1/control/list-nodes HTTP/1.1\r\n\r\n"
    assert send(echo, "GET /v1/fleet/get-run").startswith(b"HTTP/1.1 403 ")
    assert send(echo, "PUT /v1/fleet/get-run").startswith(b"HTTP/1.1 403 ")
    both = "Content-Length: 4\r\nTransfer-Encoding: chunked"
    assert send(echo, call, both, b"0\r\n\r\n" + hidden).startswith(b"HTTP/1.1 400 ")
    assert send(echo, call, f"Content-Length: {33 * 2**20}").startswith(b"HTTP/1.1 413 ")
    largest = send(echo, call, f"Content-Length: {6 * 10**6}", b"\0" * 6 * 10**6)
    assert largest.endswith(b"HTTP/1.1 6000000")


# A federation


def answer_of(port: int, certificate: Path, method: str, path: str, body: bytes = b"") -> str:
    """Return the status and the body of an answer."""
    connection = HTTPSConnection("localhost", port, context=trust(certificate), timeout=60)
    connection.request(method, path, body, {"Content-Type": "application/protobuf"})
    response = connection.getresponse()
    text = f"{response.status} {response.read().decode(errors='replace')}"
    connection.close()
    return text


def start_flwr(home: Path, *words: str) -> subprocess.Popen[str]:
    """Start `flwr` with a configuration of one's own."""
    environment = os.environ | {"FLWR_HOME": str(home), "FLWR_DISABLE_UPDATE_CHECK": "1"}
    return subprocess.Popen(
        [f"{PROGRAMS}/flwr", *words],
        env=environment | {"FLWR_TELEMETRY_ENABLED": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def register(recipe: Recipe, key: str, name: str) -> subprocess.CompletedProcess[str]:
    """Register a site's key with the command of the page."""
    command = REGISTER.replace("site-a.pub", f"{key}.pub").replace("site-a", name)
    return subprocess.run(
        ["sh", "-ec", command],
        cwd=recipe.deploy,
        env=recipe.federation._environment(),
        capture_output=True,
        text=True,
        check=False,
    )


def select(recipe: Recipe, query: str) -> list[tuple]:
    with sqlite3.connect(f"file:{recipe.home / 'superlink.db'}?mode=ro", uri=True) as database:
        return sorted(database.execute(query).fetchall())


@pytest.mark.flower
@pytest.mark.skipif(need("nginx"), reason="needs nginx")
def test_a_stranger_with_the_address_and_the_certificate_is_refused_and_a_site_trains(recipe):
    """site-a trains; site-b runs only apps that its trusted entity has signed."""
    recipe.run(SERVER)
    superlink = recipe.start_unit("superlink")
    recipe.start_nginx()
    for site in ("site-a", "site-b"):
        recipe.run(SITE.replace("site-a", site))
    wait_until(lambda: listens("127.0.0.1", recipe.federation.port), "SuperLink")
    assert not listens("127.0.0.2", recipe.federation.port)
    for site in ("site-a", "site-b"):
        assert register(recipe, site, site).returncode == 0
    trusted = recipe.folder / "trusted.yaml"
    signer = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"
    trusted.write_text(f"fpk_reviewer: {signer}\n")
    only_trusted = ("--trusted-entities", str(trusted))
    for site, client, more in (("site-a", 0, ()), ("site-b", 1, only_trusted)):
        config = ("--node-config", f"client={client}", "--port", str(free_port()))
        recipe.start_unit("supernode", site, *config, *more)
    ledger = recipe.folder / "fedavg.db"
    config = f"folder='{recipe.folder}' names='site-a site-b' rounds=1 min-nodes=2"
    run = start_flwr(recipe.home, "run", str(APP), "ours", "--stream", "--run-config", config)
    wait_until(lambda: select(recipe, "SELECT 1 FROM run"), "run")
    nodes = select(recipe, "SELECT node_id, name FROM node")

    home = recipe.folder / "stranger"
    home.mkdir()
    make_node_key(home / "key")
    authority = recipe.deploy / "ca.crt"
    home.joinpath("config.toml").write_text(
        f'[superlink.victim]\naddress = "localhost:{recipe.port}"\n'
        f'root-certificates = "{authority}"\n'
    )
    attacks = [
        ("supernode", "list", "victim"),
        ("run", str(APP), "victim"),
        ("supernode", "unregister", str(nodes[0][0] % 2**64), "victim"),
        ("supernode", "register", str(home / "key.pub"), "victim", "--name", "site-a"),
    ]
    for attack in [start_flwr(home, *words) for words in attacks]:
        said, _ = attack.communicate(timeout=DEADLINE)
        assert attack.returncode != 0, said
        assert "404" in said
    inside = (recipe.federation.port, recipe.home / "local.pem")
    listing = answer_of(*inside, "GET", "/openapi.json").partition(" ")[2]
    paths = set(json.loads(listing)["paths"])
    assert paths >= CALLS | {"/v1/control/list-nodes", "/v1/runtime/acquire-task"}
    for path in paths:
        refused = answer_of(recipe.port, authority, "POST", path).startswith("404 ")
        assert refused == (path not in CALLS), path
    assert answer_of(*inside, "POST", "/v1/control/list-nodes").startswith("200 ")  # unguarded

    said, _ = run.communicate(timeout=DEADLINE)
    stages = {row.client: row.stage for row in rows(ledger)}
    assert (stages["site-a"], stages["site-b"] == "used") == ("used", False), said
    assert "reply of site-b not used: error 7: The FAB could not be verified" in said
    taken = register(recipe, str(home / "key"), "site-a")
    assert taken.returncode == 2
    assert "name: 'site-a' is taken" in taken.stderr
    assert select(recipe, "SELECT node_id, name FROM node") == nodes
    assert len(select(recipe, "SELECT run_id FROM run")) == 1
    assert superlink.poll() is None
