# Two commands do everything on a machine with Python 3.11 or newer, pip, make and gcc:
#   make demo    install and run the main job
#   make test    install and run every check
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test bench clean

demo: .venv/installed
	$(BIN)/fedtide run examples/digits.yaml

test: .venv/installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder --durations 25

bench: .venv/installed-dev
	$(BIN)/python benchmarks/page.py

.venv/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt -e .
	touch $@

.venv/installed-dev: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev,partitioners,flower,ray,mlflow]'
	touch $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
