# `make` alone sets up a virtual environment and runs the tests.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin

.PHONY: test test-all lint bench docs install clean

test: $(VENV)/.ready
	$(BIN)/python -m pytest

test-all: $(VENV)/.ready
	$(BIN)/python -m pip install -q uv
	$(BIN)/python -m pytest -m ""

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.ready
	$(BIN)/python bench/startup.py
	$(BIN)/python bench/backends.py
	$(BIN)/python bench/gate.py

docs: $(VENV)/.ready
	$(BIN)/python -m pip install -q -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python scripts/release/make_docs.py

install: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
