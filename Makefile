# Thin on purpose: what a target does is in the `outbox` command, in pytest or in requirements/install.py.
# `make demo` and `make test` need Linux, Python 3.11 or newer with venv, and make. Nothing else.

PYTHON ?= python3
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest
# Test processes. Most tests wait for a server or for another process, so five of them fit on two cores; those without
# servers compute, so one of them does.
WORKERS ?= 5
PARALLEL := --numprocesses $(WORKERS) --dist loadgroup
UNIT_PARALLEL := --numprocesses auto --maxprocesses $(WORKERS) --dist loadgroup
# Each with servers of its own that its tests kill; most of their time is waiting for a server that starts or is away.
FAULT_WORKERS ?= 3
# Fewer for Spark, each with a Java and a PostgreSQL of its own and some 4 GB; a file's tests share a session.
SPARK_WORKERS ?= 3
SOURCES := outbox relay/outbox_relay local/outbox_local migrations spark_etl tests requirements $(dir $(firstword $(wildcard bench/*.py)))
# Tests start hundreds of Python processes and rewrite the assertions of two hundred files: compile each file once.
unexport PYTHONDONTWRITEBYTECODE
# More options for the command behind a target: make demo ARGS=--help
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help venv venv-run venv-test demo shop test check types features faults browser versions mutants burn-in bench scale spark docs lock build clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: venv-test ## Make .venv from the lock file (every other target does it by itself)

venv-run:
	@$(PYTHON) requirements/install.py run

venv-test:
	@$(PYTHON) requirements/install.py test

demo: venv-run ## Real flights from Postgres to Kafka on real local servers, proven at the end
	@$(BIN)/outbox demo $(ARGS)

shop: venv-run ## The e-commerce example: three consumer groups, failures, and a page, proven at the end
	@$(BIN)/outbox shop $(ARGS)

test: venv-test ## All tests but faults, scale, Spark, browser and bench: units and real servers
	@$(PYTEST) tests --ignore=tests/faults -m "not scale and not spark and not browser" $(PARALLEL) $(ARGS)

check: venv-test ## Format, lint, types and the tests without servers, in half a minute
	@$(BIN)/ruff format --check --quiet . || { echo "ruff format . puts the files above in order"; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(MAKE) --no-print-directory types
	@$(PYTEST) tests/unit -m "not deep" $(UNIT_PARALLEL) $(ARGS)

types: venv-test ## Check the types
	@$(BIN)/mypy $(SOURCES)

features: venv-test ## Which rows of docs/features.md are proven, and by which tests
	@$(BIN)/python -m tests.support.features $(ARGS)

faults: venv-test ## Kill, pause and cut every part, look for lost messages (TIER=quick: the short ones)
	@$(PYTEST) tests/faults $(if $(filter quick,$(TIER)),-m "not long") --numprocesses $(FAULT_WORKERS) --dist loadgroup $(ARGS)

browser: venv-test ## The console in a real Chromium, with the rules of accessibility (needs Debian's chromium, or Chrome)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/browser.txt
	@$(PYTEST) tests/browser -m browser $(ARGS)

versions: venv-test ## The way of a message on PostgreSQL 14, 16, 17 and 18 (`make test`: 14 and 18)
	@OUTBOX_TEST_POSTGRES=14,16,17,18 $(PYTEST) tests/acceptance/test_postgres_versions.py $(ARGS)

mutants: venv-test ## Take away each guard of tests/mutants.toml, and see a test fail (minutes)
	@$(BIN)/python -m tests.support.mutants $(ARGS)

burn-in: venv-test ## The gate's tests N times, in random order, next to a second load
	@$(BIN)/python -m tests.support.burn_in --runs $(or $(N),10) $(ARGS)

bench: venv-test ## Measure what the README states (minutes)
	@$(BIN)/python -m bench $(ARGS)

scale: venv-test ## Backlogs of 200,000 and 1,000,000 messages (minutes)
	@$(PYTEST) tests -m scale $(ARGS)

spark: venv-test ## The export to a warehouse, by Spark on this machine (TIER=gate: what CI runs, in minutes)
	@$(PYTEST) tests/spark tests/acceptance/test_warehouse.py -m "spark$(if $(filter gate,$(TIER)), and gate)" \
		--numprocesses auto --maxprocesses $(SPARK_WORKERS) --dist loadfile $(ARGS)

LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --custom-compile-command 'make lock' $(ARGS)
lock: venv-test ## Write the lock files anew: make lock ARGS=--upgrade
	@cd requirements && ../$(LOCK) installer.in -o installer.txt
	@cd requirements && ../$(LOCK) build.in -o build.txt
	@cd requirements && ../$(LOCK) ../pyproject.toml --extra demo --extra shop -c build.txt -o run.txt
	@cd requirements && ../$(LOCK) ../pyproject.toml --extra console --extra consumer -c build.txt -c run.txt -o service.txt
	@cd requirements && ../$(LOCK) ../pyproject.toml --extra demo --extra shop --extra etl --extra django --extra asyncpg --extra encryption --extra schema-registry -c build.txt -c run.txt test.in -o test.txt
	@cd requirements && ../$(LOCK) browser.in -c test.txt -o browser.txt
	@cd requirements && ../$(LOCK) ../pyproject.toml --extra relay --extra consumer --extra etl -c build.txt -c test.txt -o etl.txt

docs: venv-test ## Build the documentation site into build/docs; a broken link fails it
	@$(BIN)/sphinx-build --fresh-env --fail-on-warning --keep-going --quiet -b html docs build/docs

build: venv-test ## Build the wheel into dist/
	@$(BIN)/python -m build --no-isolation --outdir dist

clean: ## Remove what was made here, except a running local stack
	@rm -rf .venv dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
