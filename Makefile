# Two commands on a fresh machine, nothing before them:
#   make demo     the paper's experiment, small: eight schemes, a table and a page (results/report.html)
#   make test     the tests
#
# PYTHON       the interpreter that makes the environment     make test PYTHON=python3.12
# VENV         where the environment is, or one you have      make test VENV=~/envs/moe
# TORCH_INDEX  an index of your own choice for torch          make demo TORCH_INDEX=<address of a CPU or CUDA index>

PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
INSTALLED := $(VENV)/.equipoise-installed

.PHONY: install demo test test-all check format docs release-check bench bench-arena clean

install: $(INSTALLED)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# torch first and at its pinned version: another package's looser pin would pull gigabytes of CUDA libraries.
$(INSTALLED): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) --only-binary :all: torch
	$(PIP) --only-binary :all: --editable '.[dev]'
	@touch $@

demo: $(INSTALLED)
	$(BIN)/equipoise compare --out results

# Two workers with a thread each: most tests are many small operations, which two threads do no faster than one.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

test: $(INSTALLED)
	$(PYTEST) -m "not slow"

test-all: $(INSTALLED)
	$(PYTEST) -m slow

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The documents as a site, site/index.html; every broken link and unknown name is an error.
docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# Version, changelog, wheel and sdist, tried in a clean environment; nothing is uploaded.
release-check: $(INSTALLED)
	$(BIN)/python .ci/release_check.py $(if $(TORCH_INDEX),--torch-index $(TORCH_INDEX))

bench: $(INSTALLED)
	@for file in benchmarks/bench_*.py; do $(BIN)/python $$file || exit 1; done

bench-arena: $(INSTALLED)
	$(BIN)/python benchmarks/arena_full.py
	$(BIN)/python benchmarks/arena_full.py --tally-every 8
	$(BIN)/python benchmarks/arena_training.py
	$(BIN)/python benchmarks/arena_replay.py
	$(BIN)/python benchmarks/arena_throughput.py

clean:
	rm -rf $(VENV) dist build site .mypy_cache .ruff_cache .pytest_cache .hypothesis
