"""The recipe of docs/deploy-tls.md: files, the proxy, and a federation that a stranger attacks."""

import http.server
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPSConnection
from pathlib import Path

import httpx
import numpy as np
import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.proto.fleet_pb2 import ActivateNodeRequest, RegisterNodeFleetRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

import fedtide as ft
from fedtide.flower.demo import example_app, free_port, listens
from fedtide.flower.ledger.ledger import read_ledger

from .processes import (
    APP,
    DEADLINE,
    PROGRAMS,
    LocalFederation,
    count_rounds,
    model_of,
    script,
    wait_until,
)
from .recipe import SERVER, SITE, SITES, Recipe, needs

FATAL = {"activate-node", "send-node-heartbeat", "pull-messages", "get-run", "get-fab"}
"""Calls whose failure with 500 ends a SuperNode's connection or its heartbeat."""

OTHERS = {
    "deactivate-node",
    "push-messages",
    "push-object",
    "pull-object",
    "confirm-message-received",
}
CALLS = {f"/v1/fleet/{call}" for call in FATAL | OTHERS}
"""What a SuperNode with a registered key calls."""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> Iterator[Recipe]:
    """Return the recipe with its keys made."""
    with LocalFederation(tmp_path_factory.mktemp("recipe")) as federation:
        recipe = Recipe(federation)
        recipe.run(SERVER)
        yield recipe


def trust(certificate: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=certificate)


@pytest.mark.process
def test_a_renewal_keeps_the_authority_which_sites_have_and_only_owners_read_keys(recipe):
    authority, server = recipe.work / "server/ca.crt", recipe.etc / "flower/server.pem"
    kept, replaced = authority.read_bytes(), server.read_bytes()
    recipe.run(SERVER[-2:])
    assert authority.read_bytes() == kept
    assert server.read_bytes() != replaced
    verify = "openssl verify -x509_strict -purpose sslserver -verify_hostname localhost"
    status, said = recipe.command(f"{verify} -CAfile {authority} {server}")
    assert status == 0, said
    keys = recipe.work / "server/ca.key", recipe.etc / "flower/server.key"
    assert not any(key.stat().st_mode & 0o077 for key in (*keys, recipe.home / "local.key"))
    assert not {"ca.key", "server.key"} & set(os.listdir(recipe.home))  # apps read what is there


@pytest.mark.process
def test_a_check_of_a_site_says_what_is_wrong_with_it(tmp_path):
    (tmp_path / "site.toml").write_text(f'server = "127.0.0.1:{free_port()}"\nnode-config = ""\n')
    (tmp_path / "requirements.txt").write_text("fedtide[flower]==0.0.1\nflwr==1.42.0\n")
    for name in ("ca.crt", "key"):
        (tmp_path / name).touch()
    shutil.copytree(example_app(), tmp_path / "app")
    command = [str(PROGRAMS / "fedtide"), "flower", "check", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    failed = [line.split()[:2] for line in done.stdout.splitlines()]
    checks = ("versions:", "server:", "key:", "training:")
    assert failed == [["FAILED", check] for check in checks]
    assert "0.0.1 on the server" in done.stdout
    assert "'partition-id'" in done.stdout


# The proxy, before a server that tells what it gets


class Echo(http.server.BaseHTTPRequestHandler):
    """Answers with the request line and the size of the body, or with what a header asks for."""

    def do_POST(self):
        size = len(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        body = f"{self.requestline} {size}".encode()
        self.send_response(int(self.headers.get("Answer", 200)))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_POST

    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def echo(recipe) -> Iterator[Recipe]:
    """Return the recipe with nginx before an `Echo` in place of the SuperLink."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", recipe.federation.port), Echo)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(recipe.home / "local.pem", recipe.home / "local.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    recipe.start_nginx()
    yield recipe
    server.shutdown()
    server.server_close()


@contextmanager
def connect(recipe: Recipe) -> Iterator[ssl.SSLSocket]:
    """Yield a connection to the proxy."""
    with (
        socket.create_connection(("localhost", recipe.port)) as plain,
        trust(recipe.work / "server" / "ca.crt").wrap_socket(
            plain, server_hostname="localhost"
        ) as stream,
    ):
        yield stream


def send(recipe: Recipe, line: str, headers: str = "Content-Length: 0", body: bytes = b"") -> bytes:
    """Return the response to a request, as it came."""
    with connect(recipe) as stream:
        head = f"{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n\r\n"
        stream.sendall(head.encode() + body)
        answer = b""
        while b"</html>" not in answer and (part := stream.recv(65536)):
            answer += part  # after a refusal, nginx waits for the rest of the body
    return answer


@pytest.mark.process
@needs("nginx")
def test_the_proxy_passes_ten_paths_on_however_a_path_is_written(echo):
    for path in sorted(CALLS):
        assert send(echo, f"POST {path}").endswith(f"POST {path} HTTP/1.1 0".encode())
    written = [
        "/v1/control/list-nodes",
        "/v1/fleet/register-node",
        "/v1/fleet/pull-messages/../../control/list-nodes",
        "/v1/fleet/pull-messages/..%2f..%2fcontrol/list-nodes",
        "/v1/control/list-nodes/..%2f..%2ffleet/pull-messages",
        "/v1/fleet/pull-messages?/../../control/list-nodes",
        "/v1/fleet/pull-messages%0a",
        "/v1/fleet/pull-messages;/../../control/list-nodes",
        "//v1//control//list-nodes",
        "/v1/%63ontrol/list-nodes",
        f"https://127.0.0.1:{echo.federation.port}/v1/control/list-nodes",
        "/health",
        "/",
    ]
    for path in written:
        answer = send(echo, f"POST {path}")
        if answer.startswith(b"HTTP/1.1 200 "):  # then as one of the ten
            assert answer.rpartition(b"\r\n")[2] == b"POST /v1/fleet/pull-messages HTTP/1.1 0"
        else:
            assert answer.startswith((b"HTTP/1.1 404 ", b"HTTP/1.1 400 ")), path


@pytest.mark.process
@needs("nginx")
def test_the_proxy_refuses_other_methods_second_requests_and_large_bodies(echo):
    call, hidden = "POST /v1/fleet/push-object", b"POST /v1/control/list-nodes HTTP/1.1\r\n\r\n"
    assert send(echo, "GET /v1/fleet/get-run").startswith(b"HTTP/1.1 403 ")
    assert send(echo, "PUT /v1/fleet/get-run").startswith(b"HTTP/1.1 403 ")
    both = "Content-Length: 4\r\nTransfer-Encoding: chunked"
    assert send(echo, call, both, b"0\r\n\r\n" + hidden).startswith(b"HTTP/1.1 400 ")
    assert send(echo, call, f"Content-Length: {2**24 + 1}").startswith(b"HTTP/1.1 413 ")
    largest = send(echo, call, f"Content-Length: {6 * 10**6}", b"\0" * 6 * 10**6)
    assert largest.endswith(b"HTTP/1.1 6000000")
    announced = send(echo, "POST /v1/fleet/push-messages", f"Content-Length: {2**17 + 1}")
    assert announced.startswith(b"HTTP/1.1 413 ")  # a tree of 1,900 objects


@pytest.mark.process
@needs("nginx")
def test_a_failure_of_the_superlink_is_passed_on_as_one_after_which_supernodes_call_again(echo):
    """After a 500 to one of these calls, a SuperNode is offline for good."""
    for call in CALLS:
        answer = send(echo, f"POST {call}", "Content-Length: 0\r\nAnswer: 500")
        fatal = call.rpartition("/")[2] in FATAL
        assert answer.startswith(b"HTTP/1.1 503 " if fatal else b"HTTP/1.1 500 "), call
        refused = send(echo, f"POST {call}", "Content-Length: 0\r\nAnswer: 401")
        assert refused.startswith(b"HTTP/1.1 401 "), call


# A federation


def answer_of(port: int, certificate: Path, method: str, path: str) -> str:
    """Return the status and the body of an answer to an empty request."""
    connection = HTTPSConnection("localhost", port, context=trust(certificate), timeout=DEADLINE)
    connection.request(method, path, headers={"Content-Type": "application/protobuf"})
    response = connection.getresponse()
    text = f"{response.status} {response.read().decode(errors='replace')}"
    connection.close()
    return text


def start_federation(recipe: Recipe, sites: list[str]) -> list[subprocess.Popen[bytes]]:
    """Start the server and the sites, and return the SuperLink, nginx and the SuperNodes."""
    superlink = recipe.start_unit("superlink")
    wait_until(lambda: listens(recipe.federation.port), "SuperLink")
    programs = [superlink, recipe.start_nginx()]
    recipe.run([SITES])
    for number, site in enumerate(sites):
        said = recipe.run(SITE, site)
        assert said.count("ok  ") == 4, said
        config = ("--node-config", f"client={number}", "--port", str(free_port()))
        programs.append(recipe.start_unit("supernode", site, *config))
    return programs


def status_of(recipe: Recipe, key: Path, call: str, request: object) -> int:
    """Return the status of a SuperNode's call through the proxy, signed with a key."""
    private = load_ssh_private_key(key.read_bytes(), None)
    signer = NodeAuthHttpInterceptor(private, private.public_key())
    server = (f"localhost:{recipe.port}", False, (recipe.work / "server" / "ca.crt").read_bytes())
    with FleetHttpClient.from_server_address(*server, [signer]) as client:
        try:
            getattr(client, call)(request)
        except httpx.HTTPStatusError as error:
            return error.response.status_code
    return 200


def impersonate(recipe: Recipe, stranger: Path, nodes: dict[str, int]) -> None:
    """Call as a node whose key one does not have; only a node's own key speaks for it."""

    def beat(key: Path, site: str) -> int:
        request = SendNodeHeartbeatRequest(node=Node(node_id=nodes[site]), heartbeat_interval=30)
        return status_of(recipe, key, "SendNodeHeartbeat", request)

    assert beat(recipe.home / "site-a/key", "site-a") == 200
    assert beat(recipe.home / "site-a/key", "site-b") == 401
    assert beat(stranger, "site-a") == 401
    public = load_ssh_private_key(stranger.read_bytes(), None).public_key()
    key = {"public_key": public_key_to_bytes(public)}
    activate = ActivateNodeRequest(**key, heartbeat_interval=30)
    assert 400 <= status_of(recipe, stranger, "ActivateNode", activate) < 500
    register_node = RegisterNodeFleetRequest(**key)
    assert status_of(recipe, stranger, "RegisterNode", register_node) == 404


def attack(recipe: Recipe, home: Path, nodes: dict[str, int]) -> None:
    """Do what a stranger with the address and ca.crt can do."""
    authority = recipe.work / "server" / "ca.crt"
    home.joinpath("config.toml").write_text(
        f'[superlink.victim]\naddress = "localhost:{recipe.port}"\n'
        f'root-certificates = "{authority}"\n'
    )
    for command in (f"flwr run {APP}", f"flwr supernode unregister {nodes['site-a']}"):
        status, said = recipe.command(f"{command} victim", home)
        assert status != 0, said
        assert "404" in said
    inside = (recipe.federation.port, recipe.home / "local.pem")
    routes = json.loads(answer_of(*inside, "GET", "/openapi.json").partition(" ")[2])["paths"]
    assert set(routes) >= CALLS | {"/v1/control/list-nodes", "/v1/runtime/acquire-task"}
    for path in routes:
        refused = answer_of(recipe.port, authority, "POST", path).startswith("404 ")
        assert refused == (path not in CALLS), path
    impersonate(recipe, home / "key", nodes)
    # why all this: nothing but the proxy guards Control
    assert answer_of(*inside, "POST", "/v1/control/list-nodes").startswith("200 ")


def simulated(method: str) -> np.ndarray:
    matrices, centers = script.problem()
    q = script.PRESENT / np.maximum(script.PRESENT.sum(axis=1, keepdims=True), 1)
    return ft.simulate(
        problem=ft.problems.Quadratic(matrices=matrices, centers=centers),
        participation=ft.participation.Table(weights=q),
        algorithm=script.METHODS[method],
        local=ft.LocalTraining(steps=script.STEPS, lr=script.LR),
        rounds=script.ROUNDS,
        dtype="float64",
        trainer="reference",
    ).model


def metrics_of(recipe: Recipe) -> str:
    return httpx.get(f"http://127.0.0.1:{recipe.metrics}/metrics").text


def start_run(recipe: Recipe, folder: Path) -> None:
    """Start the run of the test app, whose client needs no PyTorch, in place of the example's."""
    shutil.rmtree(recipe.home / "app")
    shutil.copytree(APP, recipe.home / "app")
    (recipe.home / "run.toml").write_text(
        f'folder = "{folder}"\nnames = "site-a site-b"\nmethods = "{" ".join(script.METHODS)}"\n'
        f"rounds = {script.ROUNDS}\nscripted = 1\nmin-nodes = 2\ntimeout = {DEADLINE}\n"
    )
    recipe.start_unit("federation")


@pytest.mark.flower
@needs("nginx")
def test_the_server_is_killed_a_stranger_attacks_and_the_federation_trains_as_if_not(tmp_path):
    """The models are the simulator's; then a part of each program is taken away."""
    sites = ["site-a", "site-b"]
    with LocalFederation(tmp_path / "federation") as federation:
        recipe = Recipe(federation)
        recipe.run(SERVER)
        superlink, nginx, *supernodes = start_federation(recipe, sites)
        nodes = recipe.select("SELECT name, node_id FROM node")
        start_run(recipe, tmp_path)
        wait_until(lambda: count_rounds(tmp_path / "mifa.db") > 0, "round")
        for process in [superlink.pid, *federation.processes("flwr-serverapp")]:
            os.kill(process, signal.SIGKILL)
        superlink.wait()
        superlink = recipe.start_unit("superlink")
        wait_until(lambda: len(recipe.select("SELECT run_id FROM run")) == 2, "second run")
        home = tmp_path / "stranger"
        home.mkdir()
        recipe.command(f"ssh-keygen -q -t ecdsa -b 384 -N '' -f {home}/key")
        attack(recipe, home, {name: node_id % 2**64 for name, node_id in nodes})
        completed = 'fedtide_run{status="finished:completed"} 1.0'
        wait_until(lambda: completed in metrics_of(recipe), "completed run")
        assert "fedtide_failed_runs_total 1.0" in metrics_of(recipe)
        said = (federation.folder / "federation.log").read_text(encoding="utf-8")
        for method in script.METHODS:
            found, wanted = model_of(tmp_path, method), simulated(method)
            np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6, err_msg=said)
            used = read_ledger(f"sqlite:///{tmp_path / method}.db").filter(stage="used")
            came = [(t, sites[n]) for t, n in zip(*script.PRESENT.nonzero(), strict=True)]
            assert used.select("round", "client").rows() == came
        status, refusal = recipe.command(f"fedtide flower register {home}/key.pub site-a")
        assert status == 2
        assert "name: 'site-a' is taken" in refusal
        assert recipe.select("SELECT name, node_id FROM node") == nodes
        configurations = recipe.select("SELECT override_config FROM run")
        first, second = (json.loads(text) for [text] in configurations)
        assert first == second

        configuration = recipe.etc / "nginx/conf.d/fleet.conf"
        configuration.write_text(configuration.read_text().replace("pull-messages|", ""))
        nginx.send_signal(signal.SIGHUP)  # reads its configuration again
        assert supernodes[0].wait(timeout=120) == 1
        command = ["ps", "-o", "pid=", "--ppid", str(superlink.pid)]
        children = {int(n) for n in subprocess.check_output(command).split()}
        [superexec] = children & {*federation.processes("flower-superexec")}
        os.kill(superexec, signal.SIGKILL)
        assert superlink.wait(timeout=60) == 1
