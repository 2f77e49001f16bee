# make demo    installs stairwell and compares Feedback, a Staircase and a Transformer on one task
# make test    installs stairwell with its development tools and runs all checks
# make quick   the invariants and some tests of every package, within minutes
# make slow    the tests that take minutes
# make docs    builds the documentation site in build/site
# make wheel   builds the source distribution and the wheel in dist
#
# TORCH=... installs another torch, such as one for your GPU; VENV=... uses another folder.

PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
BIN := $(VENV)/bin

.PHONY: demo test quick slow docs wheel clean

$(VENV)/installed: pyproject.toml $(wildcard setup.py) $(wildcard stairwell/fast/csrc/*)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "stairwell needs Python 3.11 or newer: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$(TORCH)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	@touch $@

demo: $(VENV)/installed
	$(BIN)/stairwell reproduce demo

test: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n auto

quick: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/python -m pytest -n auto -m "quick and not slow"

slow: $(VENV)/installed
	$(BIN)/python -m pytest -m slow

docs: $(VENV)/installed
	$(BIN)/mkdocs build --quiet --strict

wheel: $(VENV)/installed
	$(BIN)/python -m build --outdir dist .

clean:
	rm -rf $(VENV) build dist *.egg-info
