# Two commands: `make demo` runs a real experiment to its verdict, `make test` passes the tests.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := PYTHONWARNINGS=ignore $(BIN)/python -m pip --disable-pip-version-check -q
LIKEWISE_HOME ?= $(CURDIR)/.likewise
JOBS ?= 2
export LIKEWISE_HOME
export PIP_ROOT_USER_ACTION := ignore

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-gdn up test check bench mutants format apt clean

help: ## Show what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(VENV)/.base: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed, $$($(PYTHON) --version) was found: make PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt -e .
	@command -v ctest >/dev/null || $(PIP) install -c constraints.txt cmake
	@touch $@

$(VENV)/.dev: $(VENV)/.base
	$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@

$(VENV)/.gpu: $(VENV)/.base
	$(PIP) install -c constraints.txt -e '.[gpu]'
	@touch $@

$(VENV)/.test: $(VENV)/.base
	$(PIP) install -c constraints.txt -e '.[gpu,dev,pg-test]'
	@touch $@ $(VENV)/.dev $(VENV)/.gpu

$(VENV)/.bench: $(VENV)/.test
	$(PIP) install -c constraints.txt -e '.[bench]'
	@touch $@

setup: $(VENV)/.base ## Install what the service, the workers and the runner need, no torch

demo: $(VENV)/.base ## Run a real A/B experiment to its verdict and serve the dashboard
	@$(BIN)/likewise demo

demo-gdn: $(VENV)/.gpu ## The same on the Gated DeltaNet suite, with torch and Triton
	@$(BIN)/likewise demo --suite gdn

up: $(VENV)/.base ## Run broker, dashboard and workers
	@$(BIN)/likewise up

apt:
	@if [ "$(CI)" = true ] || [ "$(LIKEWISE_APT)" = 1 ]; then \
		command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; }; \
	fi

test: $(VENV)/.test apt ## Install everything and run the tests, seconds per folder at the end
	@$(BIN)/python -m pytest -q -n $(JOBS) --dist loadgroup tests

check: $(VENV)/.dev ## Lint, types, import contracts, migration drift
	@$(BIN)/ruff check --output-format concise .
	@$(BIN)/ruff format --check -q .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m tests.migration_drift

bench: $(VENV)/.bench ## Print the benchmarks' tables
	@$(BIN)/python -m benchmarks

mutants: $(VENV)/.test ## Change the statistics at random and see whether the tests notice
	@$(BIN)/python -m benchmarks.mutants

format: $(VENV)/.dev ## Format and fix
	@$(BIN)/ruff check --fix -q . ; $(BIN)/ruff format -q .

clean: ## Remove what was made here, the state folder included
	rm -rf $(VENV) .likewise .mypy_cache .ruff_cache .pytest_cache
