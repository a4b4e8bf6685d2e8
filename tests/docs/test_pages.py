"""The generated parts of the documentation, and the blocks of its pages."""

import doctest
import inspect
import json
import re
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import jsonschema
import pytest
import yaml

import fedtide
from site_builder import docstrings, equations
from site_builder.blocks import execute_page
from site_builder.build import ROOT, executed_pages
from site_builder.links import broken_links
from site_builder.pages import python_pages
from site_builder.schema import experiment_schema

EXAMPLES = sorted(Path(fedtide.__file__).parent.glob("examples/*.yaml"))


@pytest.fixture(scope="module")
def schema():
    definition = experiment_schema()
    jsonschema.Draft202012Validator.check_schema(definition)
    return jsonschema.Draft202012Validator(json.loads(json.dumps(definition)))


@pytest.fixture
def experiment():
    return yaml.safe_load((EXAMPLES[0].parent / "digits.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("module", [equations, docstrings])
def test_the_examples_of_the_builder_hold(module):
    assert doctest.testmod(module).failed == 0


def test_every_docstring_becomes_markdown():
    """Griffe drops an extension that fails, and shows docstrings as they are from there on."""
    for path in python_pages().values():
        for name in re.findall(r"::: (\S+)", path):
            module, _, member = name.rpartition(".")
            docstrings.to_markdown(inspect.getdoc(getattr(import_module(module), member)) or "")


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_the_schema_accepts_the_bundled_experiments(schema, file):
    schema.validate(yaml.safe_load(file.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("algorithm", {"type": "fedau", "cutof": 50}),
        ("algorithm", {"type": "amplified", "period": 50, "factor": 2, "inner": {"type": "none"}}),
        ("algorithm", {"type": "amplified", "factor": 2}),
        ("rounds", "many"),
        ("round", 10),
        ("local", {"lr": 0.1, "optimizer": "sdg"}),
    ],
    ids=["key", "inner", "missing", "number", "top", "choice"],
)
def test_the_schema_refuses_what_an_experiment_file_must_not_hold(schema, experiment, key, value):
    schema.validate(experiment)
    with pytest.raises(jsonschema.ValidationError):
        schema.validate(experiment | {key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("privacy", {"type": "gaussian", "clip": 0.3, "noise_multiplier": 1.0, "delta": 1e-5}),
        ("participation", {"type": "bernoulli", "rates": "uniform-by-class"}),
        ("participation", {"type": "bernoulli", "rates": {"ann": 0.3}}),
        ("problem", {"type": "supervised", "train": "a.csv", "partition": None}),
    ],
)
def test_the_schema_accepts_what_an_experiment_file_may_hold(schema, experiment, key, value):
    schema.validate(experiment | {key: value})


def test_the_schema_takes_classes_of_ones_own(schema, experiment):
    schema.validate(experiment | {"algorithm": {"type": "bounded:Bounded", "bound": 1.0}})
    schema.validate(experiment | {"algorithm": "bounded:Bounded"})


def test_a_block_that_prints_something_else_is_an_error(tmp_path):
    page = "```python\nprint(1 + 1)\n```\n\n```text\n2\n```\n"
    assert execute_page(page, "page", tmp_path) == page
    with pytest.raises(AssertionError, match="page says\n3"):
        execute_page(page.replace("\n2\n", "\n3\n"), "page", tmp_path)


def test_links_that_lead_nowhere_and_addresses_elsewhere_are_found(tmp_path):
    (tmp_path / "a.html").write_text(
        '<p id="here"><a href="#here"><a href="b.html"><a href="#gone"><a href="https://x.org">'
        '<img src="https://x.org/a.png"><script src="a.js"></script>'
    )
    assert broken_links(tmp_path) == [
        "a.html: no place #gone",
        "a.html: no file a.js",
        "a.html: no file b.html",
        "a.html: loads https://x.org/a.png",
    ]


def test_the_links_of_the_readme_lead_to_files_of_the_repository():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = re.findall(r"(?:\]\(|src(?:set)?=\")(?!https?:)([^)#\"]+)", text)
    assert len(targets) > 20
    assert [target for target in targets if not (ROOT / target).exists()] == []


@pytest.fixture
def load_benchmark(monkeypatch):
    """Return a function that imports a script of the benchmarks.

    By its path, because tests may have a folder of its name.
    """
    folder = ROOT / "benchmarks"
    monkeypatch.syspath_prepend(folder)

    def load(name):
        spec = spec_from_file_location(f"benchmarks.{name}", folder / f"{name}.py")
        script = module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, script)
        spec.loader.exec_module(script)
        return script

    return load


def test_the_results_of_the_readme_are_those_of_the_record(load_benchmark):
    examples = load_benchmark("examples")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for lines in (examples.rare_text(), examples.digits_text(), examples.fashion_text()):
        assert "\n".join(lines) in text


def test_the_tables_of_auto_are_those_of_the_records(load_benchmark):
    page = (ROOT / "docs" / "auto-evidence.md").read_text(encoding="utf-8")
    assert load_benchmark("auto").render(page) == page


def test_the_tables_of_privacy_are_those_of_the_record(load_benchmark):
    privacy = load_benchmark("privacy")
    page = (ROOT / "docs" / "privacy-evidence.md").read_text(encoding="utf-8")
    assert privacy.render(privacy.load_shown()) in page


def test_the_table_of_the_absence_attack_is_that_of_the_record(load_benchmark):
    absence = load_benchmark("absence")
    record = json.loads(absence.RECORD.read_text(encoding="utf-8"))
    assert absence.table(record) in absence.PAGE.read_text(encoding="utf-8")
    for run in record:  # the attack works, and what the recipe does holds it
        accuracy = {name: one["accuracy"] for name, one in run["figures"].items()}
        assert (accuracy["FedAU, K = 50"] < 0.2) == run["attacked"]
        assert accuracy["clipped, β = 0.5, K = 50"] > 0.93


def test_the_readme_fits_a_page_with_ten_lines_of_python():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    block = text.partition("```python\n")[2].partition("```")[0]
    assert len(text.splitlines()) < 130
    assert len(block.strip().splitlines()) == 10
    assert {"README.md", "migrating.md", "fedau.md"} <= {file.name for file in executed_pages()}
