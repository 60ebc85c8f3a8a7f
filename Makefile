# One command each; `make help` prints them.
.DEFAULT_GOAL := help
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help
help: ## Print this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

.PHONY: setup
setup: ## Virtual environment from the lock file (idempotent; the other commands call it)
	@scripts/setup

.PHONY: demo
demo: setup ## Start the platform, ask one chat question, have one long job solved, check its figures
	@$(BIN)/dualtrack-standalone demo

.PHONY: run
run: setup ## Start the platform on this machine and keep it up (Ctrl-C ends it)
	@$(BIN)/dualtrack-standalone run

.PHONY: test
test: setup ## Lint, types, import contracts, then all tests on real RabbitMQ, PostgreSQL and S3
	@scripts/test

.PHONY: lint
lint: setup ## Lint, format check, types, import contracts
	@scripts/test --lint

.PHONY: test-unit
test-unit: setup ## Unit tests only (no server, a few seconds)
	@$(BIN)/python -m pytest tests/unit -q

.PHONY: format
format: setup ## Format the code and apply safe fixes
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

SEED ?= 1
.PHONY: chaos
chaos: setup ## Break everything at every point, then at random, and print the fault matrix (SEED=n; a quarter of an hour on two idle cores)
	@scripts/install-rabbitmq || docker info >/dev/null
	@$(BIN)/python -m dualtrack.testing.chaos --seed $(SEED) --json .chaos.json $(CHAOS)

.PHONY: chaos-short
chaos-short: setup ## A part of it, in some minutes (SEED=n)
	@scripts/install-rabbitmq || docker info >/dev/null
	@$(BIN)/python -m dualtrack.testing.chaos --short --seed $(SEED) --json .chaos.json $(CHAOS)

.PHONY: sandbox-escapes
sandbox-escapes: setup ## Try every known way out of a sandbox behind every rung of this machine, print the table (ESCAPES="--rungs a,b --all --json FILE")
	@$(BIN)/python -m dualtrack.testing.escapes $(ESCAPES)

.PHONY: sandbox-hostile
sandbox-hostile: setup ## Ten minutes of bombs, floods, orphans and killed executors beside ordinary work; nothing may be left (HOSTILE="--minutes n --seed n")
	@$(BIN)/python -m dualtrack.testing.hostile $(HOSTILE)

.PHONY: e2e-compose
e2e-compose: setup ## Build and start the compose stack, use it, break it, tear it down (needs Docker)
	@scripts/e2e-compose

.PHONY: env
env: ## Write .env for the compose stack, with random passwords (never overwrites)
	@scripts/make-env

.PHONY: bench
bench: setup ## List the benchmarks and how to run one
	@$(BIN)/python -m benchmarks

.PHONY: bench-steps
bench-steps: setup ## Cost of a step beside DBOS, LangGraph and Celery (installed into .venv-bench)
	@UV_PROJECT_ENVIRONMENT=.venv-bench $(BIN)/uv sync --frozen --only-group peers --quiet --python $(BIN)/python
	@$(BIN)/python -m benchmarks.steps

.PHONY: bench-workspaces
bench-workspaces: setup ## Saving and restoring workspaces of 10, 1,000 and 50,000 files beside tar, cp and a walk
	@$(BIN)/python -m benchmarks.workspaces

.PHONY: bench-sandbox
bench-sandbox: setup ## Claim to first output, cold starts and leaks of every sandbox rung here, beside a bare python3
	@$(BIN)/python -m benchmarks.sandbox

TEMPLATES := shared/dualtrack/sandbox/template_files
.PHONY: lock-templates
lock-templates: setup ## Pin the packages of built-in sandbox templates anew, with hashes
	@for name in $(basename $(notdir $(wildcard $(TEMPLATES)/*.in))); do \
	  { echo "# Packages of the template $$name, for any Python from 3.11 on. Made by \`make lock-templates\`; never edited by hand."; \
	    $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --only-binary :all: \
	      $(TEMPLATES)/$$name.in; } >$(TEMPLATES)/$$name.new && mv $(TEMPLATES)/$$name.new $(TEMPLATES)/$$name.txt || exit 1; done

.PHONY: docs
docs: setup ## Write the generated pages (lifecycle, settings) anew
	@$(BIN)/python scripts/lifecycle_doc.py && $(BIN)/python scripts/settings_doc.py

.PHONY: clean
clean: ## Remove the virtual environment and caches (data in .dualtrack stays)
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
