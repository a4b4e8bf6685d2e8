"""The whole site, built once and read by a real browser."""

import json

import pytest

from fedtide.algorithms import ALGORITHMS
from fedtide.participation import PROCESSES
from site_builder.build import DOCS, build_site

from .browser import CHROMIUM, browser_tab

RESULTS = "[...document.activeElement.shadowRoot.querySelectorAll('a')].map(one => one.href)"


NO_SEARCH = "Object.defineProperty(window, 'Worker', {value: class {postMessage() {}}})"


def pages_to_read(site):
    """Every page, and two of each kind that one template makes."""
    pages = sorted(site.rglob("*.html"))
    for kind in ("methods", "participation", "python"):
        same = [page for page in pages if page.parent == site / kind]
        pages = [page for page in pages if page not in same[2:]]
    return pages


def check_pages(site, tab):
    """Every page opens without a complaint and loads nothing but files of the site."""
    # Each page would build the index of the search, which takes longer than all else.
    stub = tab.call("Page.addScriptToEvaluateOnNewDocument", source=NO_SEARCH)["identifier"]
    for page in pages_to_read(site):
        tab.open(page)
        assert tab.evaluate("document.querySelector('h1').innerText"), page
        assert tab.errors == [], page
        elsewhere = [one for one in tab.requests if not one.startswith(("file:", "data:"))]
        assert elsewhere == [], page
    tab.call("Page.removeScriptToEvaluateOnNewDocument", identifier=stub)


def check_search(site, tab):
    """The search finds the page that explains a word."""
    tab.open(site / "index.html")
    tab.evaluate("document.querySelector('button.md-search__button').click()")
    tab.wait_for("document.activeElement.shadowRoot?.querySelector('input') != null")
    tab.call("Input.insertText", text="cutoff")
    tab.wait_for(f"{RESULTS}.length > 0")
    found = tab.evaluate(RESULTS)
    assert any(address.endswith("learn/fedau.html#the-cutoff") for address in found)
    assert tab.errors == []


def check_themes(site, tab):
    """The text of figures and equations has the colour of the theme."""
    tab.open(site / "methods" / "fedau.html")
    colours = []
    for number, scheme in enumerate(("default", "slate")):
        tab.evaluate(f"document.getElementById('__palette_{number}').click()")
        tab.wait_for(f"document.body.dataset.mdColorScheme == '{scheme}'")
        colours += [
            tab.evaluate(f"getComputedStyle(document.querySelector('{part}')).{what}")
            for part, what in ((".equation math", "color"), ("figure.drawn svg", "fill"))
        ]
    light, dark = colours[:2], colours[2:]
    assert len(set(light)) == len(set(dark)) == 1
    assert light != dark


def check_widths(site, tab):
    """No page is wider than a narrow window: what is wide scrolls within the page."""
    for name in ("index", "methods", "methods/fedau", "learn/measuring", "reference"):
        tab.call(
            "Emulation.setDeviceMetricsOverride",
            width=400,
            height=800,
            deviceScaleFactor=1,
            mobile=True,
        )
        tab.open(site / f"{name}.html")
        assert tab.evaluate("document.documentElement.scrollWidth") <= 400, name


@pytest.mark.process
def test_the_site_builds_without_a_warning_and_a_browser_reads_it(tmp_path, monkeypatch):
    # A warning of the generator, a broken link, or a block of a page that prints something else
    # than the page says ends the build.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    site, work = tmp_path / "site", tmp_path / "work"
    work.mkdir()
    build_site(site, work)

    assert all((site / "methods" / f"{name}.html").exists() for name in ALGORITHMS)
    assert all((site / "participation" / f"{name}.html").exists() for name in PROCESSES)
    assert all((site / f"{page.stem}.html").exists() for page in DOCS.glob("*.md"))
    assert len(list((site / "notebooks").glob("*.html"))) == 3
    assert "Matplotlib v" not in (site / "search.json").read_text(encoding="utf-8")  # of figures
    assert json.loads((site / "experiment.schema.json").read_text(encoding="utf-8"))["properties"]
    if CHROMIUM is None:
        pytest.skip("the site was built, but no browser is installed (chromium) to read it")
    with browser_tab(tmp_path / "profile") as tab:
        check_pages(site, tab)
        check_search(site, tab)
        check_themes(site, tab)
        check_widths(site, tab)
