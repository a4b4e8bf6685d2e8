"""The build: assembles all pages in a folder, lets Zensical make the site, checks its links."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from site_builder.blocks import execute_notebook, execute_page
from site_builder.equations import latex_to_mathml
from site_builder.figures import inline_svg
from site_builder.hero import TITLE, draw_hero
from site_builder.keys import all_keys
from site_builder.links import broken_links
from site_builder.pages import (
    command_page,
    link_types,
    method_pages,
    process_pages,
    python_pages,
)
from site_builder.schema import experiment_schema

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
ROOT_PAGES = ("CHANGELOG", "CONTRIBUTING", "SECURITY")
"""Pages of the repository's root that are pages of the site, in lower case."""

_OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./([^)#]+)\)")
_INCLUDED = re.compile(r"^<!-- build: readme ([\w-]+) -->$", re.MULTILINE)
_MATH = re.compile(r"^```math\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HERO = "<!-- build: hero -->"


class BuildError(Exception):
    """A page that does not hold what it says, a warning, or a broken link."""


def build_site(out: Path, work: Path) -> None:
    """Build the site into the folder `out`; `work` is an empty folder for its parts.

    Raises:
        BuildError: a warning of the generator, or a broken link.
        AssertionError: a block of a page prints something else than the page says.
    """
    pages = {path: _finish(path, text) for path, text in _pages(work).items()}
    for path, text in pages.items():
        (work / "docs" / path).parent.mkdir(parents=True, exist_ok=True)
        (work / "docs" / path).write_text(text, encoding="utf-8")
    for folder in ("images", "assets"):
        shutil.copytree(DOCS / folder, work / "docs" / folder)
    schema = json.dumps(experiment_schema(), indent=1, ensure_ascii=False)
    (work / "docs" / "experiment.schema.json").write_text(schema, encoding="utf-8")
    (work / "mkdocs.yml").write_text(_settings(pages), encoding="utf-8")
    _generate(work)
    (work / "site" / "404.html").unlink()  # for servers; its links need the root of one
    if broken := broken_links(work / "site"):
        raise BuildError("\n".join(broken))
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(work / "site", out)


def executed_pages() -> list[Path]:
    """Return the pages whose Python blocks the build executes."""
    pages = (DOCS / "migrating.md", DOCS / "all-of-fedtide.md", ROOT / "README.md")
    return [*sorted((DOCS / "learn").glob("*.md")), *pages]


def _pages(work: Path) -> dict[str, str]:
    """Return the text of every page by its path; those to learn from are executed."""
    folder = work / "run"
    folder.mkdir()
    pages = {file.name: file.read_text(encoding="utf-8") for file in DOCS.glob("*.md")}
    pages |= {f"{name.lower()}.md": _root_page(name) for name in ROOT_PAGES}
    for file in executed_pages():
        name = file.relative_to(DOCS if file.is_relative_to(DOCS) else ROOT).as_posix()
        pages[name] = execute_page(file.read_text(encoding="utf-8"), name, folder)
    del pages["README.md"]  # other pages include its parts
    for file in sorted((DOCS / "notebooks").glob("*.ipynb")):
        pages[f"notebooks/{file.stem}.md"] = execute_notebook(file, folder)
    pages |= method_pages(pages["methods.md"]) | process_pages(folder) | python_pages()
    pages["command-line.md"] = command_page()
    pages["reference.md"] += all_keys()
    pages["methods.md"] = link_types(pages["methods.md"], "methods")
    pages["participation.md"] = link_types(pages["participation.md"], "participation")
    return pages


def _finish(path: str, text: str) -> str:
    """Return a page with the parts of the README that it includes, and with links of the site."""
    readme = _root_page("README")

    def included(mark: re.Match[str]) -> str:
        name = mark[1]
        return readme.partition(f"<!-- {name}: begin -->")[2].partition(f"<!-- {name}: end -->")[0]

    def outside(link: re.Match[str]) -> str:
        label, target = link.groups()
        if target.removesuffix(".md") in ROOT_PAGES:
            return f"[{label}]({target.lower()})"
        return label if label.strip("`") in target else f"{label} (`{target}` in the repository)"

    text = _INCLUDED.sub(included, text)
    text = _MATH.sub(lambda block: latex_to_mathml(" ".join(block[1].split())), text)
    if _HERO in text:
        text = text.replace(_HERO, inline_svg(draw_hero(), TITLE, "hero"))
    return text if "/" in path else _OUTSIDE.sub(outside, text)


def _root_page(name: str) -> str:
    """Return a page of the repository's root with links as from the folder docs."""
    text = (ROOT / f"{name}.md").read_text(encoding="utf-8")
    text = re.sub(r"\]\((?!https?:|#|docs/)", "](../", text)
    return re.sub(r"(\]\(|=\")docs/", r"\1", text)


def _settings(pages: dict[str, str]) -> str:
    """Return the settings of Zensical with the navigation of all pages."""
    text = (DOCS / "site_builder" / "mkdocs.yml").read_text(encoding="utf-8")
    text = text.replace("SOURCE", str(ROOT / "src"))
    before, _, nav = text.partition("nav:\n")
    named = set(re.findall(r"[\w/-]+\.md", nav))
    others = sorted(path for path in pages if "/" not in path and path not in named)
    tree = yaml.safe_load(nav)
    for section in tree:
        for title, entries in section.items():
            if title == "How to":
                entries += others  # a page that nothing else names is about a task
            section[title] = _filled(entries, list(pages))
    return f"{before}nav: {json.dumps(tree)}\n"


def _filled(entry: Any, pages: list[str]) -> Any:
    """Return a part of the navigation with the pages of a folder where it names the folder."""
    if isinstance(entry, list):
        return [_filled(part, pages) for part in entry]
    if isinstance(entry, dict):
        return {title: _filled(part, pages) for title, part in entry.items()}
    if not entry.isupper():
        return entry
    inside = [page for page in pages if page.startswith(f"{entry.lower()}/")]
    return ["methods.md", *inside] if entry == "METHODS" else inside


def _generate(work: Path) -> None:
    """Run Zensical on the pages; whatever it has to say beyond its steps is an error."""
    path = os.pathsep.join([str(DOCS), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", "mkdocs.yml"],
        cwd=work,
        env=os.environ | {"PYTHONPATH": path, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    said = list(_complaints(done.stdout + done.stderr))
    if done.returncode or said:
        raise BuildError("\n".join(said) or done.stdout + done.stderr)


def _complaints(output: str) -> Iterator[str]:
    output = re.sub("\x1b\\[[\\d;]*m", "", output).partition("Traceback")[0]
    for line in output.splitlines():
        if line.strip() and not line.startswith(("Build started", "Build finished", "No issues")):
            yield line
