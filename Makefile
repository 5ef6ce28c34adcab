# make run    trains the example and shows what a remedy against unlike clients is worth
# make test   runs the tests
# make docs   builds the documentation as a site in build/site; fails on a broken link or an unknown name
# make pins   asks the package registry whether the pinned versions fit together, on every Python
# make lint   formats nothing, checks everything
# make clean  removes what the others made
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
WORKERS ?= 2
# what pip is told besides when it installs torch, for a build that is not the registry's own
TORCH ?=

.PHONY: run test docs pins lint format clean
.DEFAULT_GOAL := run

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Motley needs Python 3.11 or later; name one: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch $(TORCH)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

run: $(VENV)/.run
	$(BIN)/motley run digits seeds=3 --compare method=fedavg

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

$(VENV)/.docs: $(VENV)/.run
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

docs: $(VENV)/.docs
	$(BIN)/mkdocs build --strict --quiet

pins: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(WORKERS) -m registry tests/packaging

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
