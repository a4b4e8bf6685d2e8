"""Names that others wrote: of clients, groups, columns, methods and metrics, wherever they show."""

import re
from html.parser import HTMLParser

import polars as pl
import pytest
from typer.testing import CliRunner

from fedtide.cli.main import app
from fedtide.errors import InvalidInputError, first_line, printable

HOSTILE = [
    "site-a\n• all is well\n",
    "[bold]loud[/bold]",
    "[/]",
    "\x1b[2J\x1b[31mred",
    "\x1b]8;;https://example.org\x07click\x1b]8;;\x07",
    r"$\frac{",
    "a$b$c_{",
    "<script>alert(1)</script>",
    "\x9b31m",
    "\u202etxt.exe",
    "x" * 1_000_000,
]
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


class Page(HTMLParser):
    """The scripts and the texts of a page, as a browser sees them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts, self.texts = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        if tag == "script":
            self.scripts.append(tag)

    def handle_data(self, data):
        self.texts.append(data)


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    """Return what an audit prints and the page that it writes, with hostile names everywhere."""
    folder = tmp_path_factory.mktemp("audit")
    clients = [f"{name}{n}" for n, name in enumerate(HOSTILE)]
    rows = [(t, c) for t in range(60) for n, c in enumerate(clients) if t % (n + 1) == 0]
    rows = [(t, c) for t, c in rows if not (c == clients[0] and t > 25)]
    pl.DataFrame(rows, schema=["round", "client"], orient="row").write_parquet(folder / "l.parquet")
    columns = {"client": clients, r"$\frac{[bold]\x1b[2J": HOSTILE}
    pl.DataFrame(columns).write_parquet(folder / "r.parquet")
    arguments = ["audit", folder / "l.parquet", "--roster", folder / "r.parquet"]
    done = CliRunner().invoke(app, [*map(str, arguments), "--html", str(folder / "a.html")])
    assert done.exit_code == 0, done.output[-2000:]
    return done.output, (folder / "a.html").read_text(encoding="utf-8")


@pytest.mark.fuzz
def test_an_audit_of_hostile_names_prints_plain_text(audited):
    output, _ = audited
    assert not CONTROLS.search(output)
    assert not any(line.startswith("• all is well") for line in output.splitlines())
    assert "[bold]loud[/bold]" in output
    assert len(output) < 50_000


@pytest.mark.fuzz
def test_the_page_of_hostile_names_runs_nothing_and_draws_everything(audited):
    _, text = audited
    page = Page(text)
    assert not page.scripts
    assert r"$\frac{" in "".join(page.texts)


@pytest.mark.parametrize("name", HOSTILE)
def test_errors_and_first_lines_are_one_printable_line(name):
    for text in (str(InvalidInputError(f"client: {name}; give")), first_line(ValueError(name))):
        assert text.isprintable()
    assert len(first_line(ValueError(name))) <= 1000
    assert len(printable(name, most=80)) <= 80
