"""A check of the finished site: its links lead somewhere, and it loads nothing from elsewhere."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LOADED = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "srcset"}
_NOT_LOADED = {"canonical", "next", "prev"}  # relations of a <link> that only name a page


class _Page(HTMLParser):
    """The ids of a page, what it links to, and what it loads."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.add(values["href"])
        elif (name := _LOADED.get(tag)) in values and values.get("rel") not in _NOT_LOADED:
            self.loaded.add(values[name])


def broken_links(site: Path) -> list[str]:
    """Return a sentence for each link that leads nowhere and each address that a page loads."""
    pages = {file: _Page(file) for file in sorted(site.rglob("*.html"))}
    wrong = []
    for file, page in pages.items():
        place = file.relative_to(site)
        for address in sorted(page.links | page.loaded):
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                if address in page.loaded and parts.scheme != "data":
                    wrong.append(f"{place}: loads {address}")
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                wrong.append(f"{place}: no file {address}")
                continue
            ids = pages[target].ids if target in pages else {parts.fragment}
            if parts.fragment and unquote(parts.fragment) not in ids:
                wrong.append(f"{place}: no place {address}")
    return wrong
