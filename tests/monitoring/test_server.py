"""The web server: the page, what it refuses, and that nothing in a ledger can run in a browser."""

import base64
import hashlib
import http.client
import math
import re
import shutil
import socket
import time
from functools import partial
from html.parser import HTMLParser
from urllib.parse import urlsplit

import pytest

from fedtide.errors import InvalidInputError
from fedtide.flower._flwr import ask_superlink
from fedtide.flower.deployment.certificates import write_certificates
from fedtide.flower.ledger.ledger import Entry, Ledger
from fedtide.flower.ledger.ledger_maintenance import quarantine
from fedtide.monitoring.monitor import Monitor, MonitorSettings
from fedtide.monitoring.server import serve
from fedtide.monitoring.watch_page import render_page
from fedtide.participation.log.schema import REASONS

from .ledgers import draw_rounds, end_of, look_often, used, write

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "</title></style></script><b onclick='alert(3)'>",
    "{{ 7 * 7 }}{% raw %}",
    "javascript:alert(4)",
    "a&lt;b&#x27;",
    "‮gnp.txt",
)
"""Names of clients that are markup, templates, or text in the other direction."""


class Page(HTMLParser):
    """The elements, attributes and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text: list[str] = []
        self.cells: list[list[str]] = []
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        self._open.append(tag)
        if tag == "tr":
            self.cells.append([])
        if tag == "td" or ("scope", "row") in attrs:
            self.cells[-1].append("")

    def handle_endtag(self, tag):
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data):
        self.text.append(data)
        if self.cells and self.cells[-1] and {"td", "th"} & set(self._open):
            self.cells[-1][-1] += data


def get(address: str, path: str = "/", method: str = "GET") -> tuple[http.client.HTTPResponse, str]:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    connection.request(method, path)
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response, text


def open_monitor(url: str, **settings) -> Monitor:
    monitor = Monitor(url, MonitorSettings(**settings))
    monitor.refresh()
    return monitor


def show(url: str, now: float, find: str = "", **settings) -> Page:
    monitor = open_monitor(url, **settings)
    return Page(render_page(monitor, find, now))


def rows_of(page: Page) -> dict[str, list[str]]:
    """Return the cells of each client's row."""
    return {cells[0]: cells[1:] for cells in page.cells if len(cells) == 9}


def test_page_and_metrics_are_served_and_end_with_the_context(url):
    write(url, draw_rounds(5, 8))
    with serve(open_monitor(url), port=0) as server:
        response, page = get(server.url)
        assert response.status == 200
        assert response.headers["Content-Type"] == "text/html; charset=utf-8"
        assert "8 rounds have ended" in page
        response, metrics = get(server.url, "/metrics")
        assert response.headers["Content-Type"].startswith("text/plain; version=")
        assert 'fedtide_rounds_total{federation="north"} 8.0' in metrics
        host, port = server.server_address[:2]
        assert host == "127.0.0.1"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, port), timeout=5).close()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/secret", 404),
        ("GET", "/../../etc/passwd", 404),
        ("GET", "//[", 404),
        ("HEAD", "/metrics", 200),
        ("POST", "/", 501),
        ("GET", "/?find=" + "%3Cb%3E" * 500, 200),
        ("GET", "/?find=%00%ff&x=1", 200),
        ("GET", "/" + "a" * 70_000, 414),
    ],
)
def test_only_the_page_and_the_metrics_are_there(url, serving, method, path, status):
    write(url, draw_rounds(5, 4))
    response, text = get(serving(open_monitor(url)), path, method)
    assert response.status == status
    assert "<b><b>" not in text
    assert method != "HEAD" or not text


@pytest.mark.parametrize("header", ["Content-Length: 36", "Transfer-Encoding: chunked"])
def test_the_body_of_a_request_does_not_pass_for_another_request(header, url, serving):
    """Behind a proxy, its answer would go to whoever asks next over the same connection."""
    write(url, draw_rounds(5, 4))
    host, port = urlsplit(serving(open_monitor(url))).netloc.split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        body = "GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n"
        connection.sendall(f"GET /none HTTP/1.1\r\nHost: here\r\n{header}\r\n\r\n{body}".encode())
        answer = b"".join(iter(lambda: connection.recv(65_536), b""))
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"Connection: close" in answer


def test_a_new_round_is_shown_and_a_ledger_without_rounds_waits(url, serving, monkeypatch):
    look_often(monkeypatch)
    write(url, [])
    address = serving(Monitor(url))
    assert "No rounds yet" in get(address)[1]
    assert "fedtide_ledger_up 1.0" in get(address, "/metrics")[1]
    write(url, [used(0, "ann")])
    end = time.monotonic() + 60
    while "1 round has ended" not in get(address)[1]:
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_port_in_use_is_refused(url, serving):
    write(url, [])
    port = urlsplit(serving(Monitor(url))).port
    with pytest.raises(InvalidInputError, match=rf"^port: {port} is in use at 127.0.0.1; "):
        serve(Monitor(url), port=port).__enter__()


def test_hostile_names_are_text(url):
    late = Entry(HOSTILE[1], "reported", None, end_of(2), 0, "malformed")
    write(url, [used(t, *HOSTILE) for t in range(2)], federation=HOSTILE[0])
    write(url, [[*used(2, HOSTILE[0]), late]], federation=HOSTILE[0])
    plain = show_plain(url)
    page = show(url, end_of(3), '"><script>alert(5)</script>')
    every = show(url, end_of(3))
    assert set(rows_of(every)) == set(HOSTILE)
    assert page.tags.count("script") == every.tags.count("script") == plain.tags.count("script")
    assert set(every.tags) == set(plain.tags)
    assert {name for name, _ in every.attributes} == {name for name, _ in plain.attributes}
    assert "".join(every.text).count("49") == "".join(every.text).count("0.49")


def show_plain(url: str) -> Page:
    """Return the page of a ledger like that in `url`, with harmless names."""
    other = url.replace("ledger.db", "plain.db")
    names = [f"site-{n}" for n in range(len(HOSTILE))]
    late = Entry(names[1], "reported", None, end_of(2), 0, "malformed")
    write(other, [used(t, *names) for t in range(2)])
    write(other, [[*used(2, names[0]), late]])
    return show(other, end_of(3))


def test_the_browser_may_run_and_load_nothing_but_the_page(url, serving):
    write(url, [used(0, *HOSTILE), used(1, HOSTILE[0])])
    response, text = get(serving(open_monitor(url)))
    policy = response.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for tag in ("script", "style"):
        inline = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = hashlib.sha256(inline[0].encode()).digest()
        assert f"{tag}-src 'sha256-{base64.b64encode(digest).decode()}'" in policy
    page = Page(text)
    loading = {"src", "href", "action", "data", "srcset", "poster", "background", "formaction"}
    addresses = [value for name, value in page.attributes if name in loading]
    assert addresses
    assert all(a == "/" or a.startswith("?") or a == "data:," for a in addresses)
    assert not any(name.startswith("on") or name == "style" for name, _ in page.attributes)
    assert "http" not in text.replace('http-equiv="refresh"', "")


def test_a_row_says_what_the_ledger_says_of_a_client(url):
    names = ["ann", "bob", "eve"]
    rounds = [used(t, *names) for t in range(6)]
    rounds += [[*used(6, "ann"), Entry("eve", "reported", None, end_of(6), None, "not finite")]]
    rounds += [[Entry("ann", "used", 1.0, end_of(7), 5)]]
    write(url, rounds)
    page = show(url, end_of(7) + 120)
    rows = rows_of(page)
    shares = {"ann": (6 / 3 + 2) / 8 * 3, "bob": (6 / 3) / 8 * 3, "eve": (6 / 3) / 8 * 3}
    for name in names:
        assert rows[name][2] == f"{shares[name]:.2f}"
    assert [rows[name][0] for name in names] == ["present", "away", "away"]
    assert rows["ann"][6:] == ["last round", ""]
    assert rows["bob"][6].startswith("2 rounds, ")
    assert rows["eve"][6:] == ["1 round, 2 min", "1"]
    assert [REASONS["not finite"], "1"] in page.cells


def test_the_page_says_what_the_run_measures_and_how_long_it_may_go_on(url, tmp_path, monkeypatch):
    """The SuperLink is that of Flower's config.toml, as is its certificate."""
    write_certificates(tmp_path, "fl.example.org")
    config = (
        f'[superlink.page]\naddress = "127.0.0.1:1"\nroot-certificates = "{tmp_path}/local.pem"'
    )
    (tmp_path / "config.toml").write_text(config)
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    write(url, [used(t, "ann", "bob", step_weight=0.5, norm=2.25) for t in range(3)])
    ledger = Ledger(url, "north")
    ledger.record(1, "server", {"loss": 0.5})
    ledger.record(2, "server", {"loss": math.nan})
    ledger.record(2, "privacy", {"epsilon": 1.5})
    quarantine(url, "bob", begins=True)
    around = {"ask_superlink": partial(ask_superlink, "page")}
    page = show(url, time.time(), **around)
    assert ["epsilon, the largest of a client so far", "1.5", "2", "1.5 to 1.5"] in page.cells
    assert ["loss, by the server", "nan", "2", "0.5 to 0.5"] in page.cells
    assert ["certificate", "expires in 365 days", "", ""] in page.cells
    assert "No run is under way: the SuperLink says 'unknown'." in page.text
    [disk] = [cells[1] for cells in page.cells if cells[:1] == ["disk of the ledger"]]
    free = shutil.disk_usage(tmp_path).free / 1e9
    assert float(disk.split(" GB free")[0]) == pytest.approx(free, abs=1.0)
    assert rows_of(page)["bob"][0] == "quarantined"
    assert rows_of(page)["ann"][3:5] == ["0.5", "2.25"]
    assert "The certificate has expired 10 days ago." in "".join(
        show(url, time.time() + 375 * 86_400, **around).text
    )
    with pytest.raises(InvalidInputError, match=r"^superlink: 'nowhere' is not usable"):
        ask_superlink("nowhere")


def test_the_page_says_how_much_of_a_large_ledger_is_read(url, monkeypatch):
    write(url, draw_rounds(5, 8))
    monitor = Monitor(url)
    monkeypatch.setattr(monitor, "_batch", 3)
    monkeypatch.setattr(monitor._window, "add", stop_after(monitor, monitor._window.add))
    monitor.refresh()
    monitor.status = None
    assert "The ledger is being read: 3 of 8 rounds so far." in render_page(monitor, "", end_of(8))


def stop_after(monitor: Monitor, add):
    def stop(*arguments) -> None:
        add(*arguments)
        monitor.stop()

    return stop


def test_warnings_name_what_is_wrong(url):
    write(url, [used(t, "ann", "bob", "eve") for t in range(30)])
    write(url, [used(t, "ann", "bob") for t in range(30, 42)])
    calm = "".join(show(url, end_of(41) + 5).text)
    assert "Silent for longer than their habits explain: eve." in calm
    assert "No round has ended for" not in calm
    assert "No round has ended for 2.0 h" in "".join(show(url, end_of(41) + 7200).text)
    monitor = open_monitor(url)
    monitor.error = "ledger: <locked>"
    page = render_page(monitor, "", end_of(41))
    assert "The ledger cannot be read: ledger: &lt;locked&gt;" in page


def test_many_clients_make_a_short_page(url):
    write(url, [used(t, *(f"phone-{n}" for n in range(t, 3_000, 3))) for t in range(3)])
    monitor = open_monitor(url)
    text = render_page(monitor, "", end_of(3))
    assert len(text) < 200_000
    assert "100 of 3,000 clients" in text
    found = Page(render_page(monitor, "phone-2777", end_of(3)))
    assert list(rows_of(found)) == ["phone-2777"]
