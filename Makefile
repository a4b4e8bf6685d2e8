# Two commands do everything on a machine with Python 3.11 or newer, pip and make (gcc compiles long runs):
#   make demo    install and run the main job
#   make test    install, then lint, check types and run the fast tests
# make docs builds the documentation into site/. make test-all also runs the slower tests, by marker (see pyproject.toml).
PYTHON ?= python3
BIN := .venv/bin

# Tests start hundreds of processes; without the caches of modules each compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

MARKED := statistical or compile or process or flower or ray or fuzz

.PHONY: demo test lint types fast test-marked test-all coverage bench docs clean

demo: .venv/installed
	$(BIN)/fedtide run rare-clients

# The type checker has one process, and runs beside the tests.
test: lint
	$(MAKE) --no-print-directory --jobs 2 types fast

lint: .venv/installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: .venv/installed-dev
	$(BIN)/mypy

fast: .venv/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal --durations 25 -m 'not ($(MARKED))'

# Three at once, as those with real federations wait most of the time.
test-marked: .venv/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 3 --dist worksteal --durations 40 -m '$(MARKED)'

test-all: test test-marked

coverage: .venv/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal -m 'not ($(MARKED))' --cov --cov-report=term:skip-covered --cov-report=html

# The peers are on the path of this command only.
bench: .venv/installed-peers
	PYTHONPATH="$(CURDIR)/.venv/peers" $(BIN)/python benchmarks/page.py

docs: .venv/installed-docs
	cd docs && OMP_NUM_THREADS=1 ../$(BIN)/python -m site_builder ../site

# Python compiles a module when it is first imported; to compile all of them takes pip two minutes, so
# only the libraries that nearly every process imports are compiled here.
.venv/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --no-compile -c constraints.txt -e .
	$(BIN)/python -c 'import fedtide.cli.run, matplotlib.figure, torch._dynamo'
	touch $@

.venv/installed-dev: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --no-compile -c constraints.txt -e '.[dev,docs,partitioners,flower,watch,ray,mlflow]'
	$(BIN)/python -c 'import datasets, dp_accounting, flwr.supernode.cli, hypothesis.stateful, matplotlib.pyplot, mlflow, prometheus_client, ray, scipy.stats, sklearn.linear_model, torch._inductor.compile_fx'
	touch $@

.venv/installed-peers: .venv/installed-dev benchmarks/requirements.txt
	rm -rf .venv/peers
	$(BIN)/pip install --quiet --no-compile --no-deps --target .venv/peers -r benchmarks/requirements.txt
	touch $@

.venv/installed-docs: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --no-compile -c constraints.txt -e '.[docs,flower,watch]'
	touch $@

clean:
	rm -rf .venv site htmlcov .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis
