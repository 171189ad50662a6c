# Medevac's everyday commands. `make` lists them.

PYTHON ?= python3
VENV   ?= .venv
JOBS   ?= 2
BIN    := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help setup env-demo env-dev check lint format types layers spelling generated changes \
        test test-fast soak bench gpu-check demo slurm-playground docs fmt clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

setup: env-dev  ## make .venv with the package (editable) and all tools in it

env-demo:
	@tools/setup $(PYTHON) $(VENV) demo

env-dev:
	@tools/setup $(PYTHON) $(VENV) dev,demo

slurm-playground: env-dev  ## a Slurm cluster on this machine with a training job to hurt, until Ctrl-C
	@$(BIN)/python tools/slurm_playground $(PLAY_ARGS)

demo: env-demo  ## a real training job survives an ECC storm, on this machine (DEMO_ARGS="--seed 7")
	@$(BIN)/python examples/demo.py $(DEMO_ARGS)

check: lint format types layers spelling generated changes  ## everything that needs no run: style, types, layers, docs

lint: env-dev
	$(BIN)/ruff check

format: env-dev
	$(BIN)/ruff format --check

types: env-dev
	$(BIN)/mypy

layers: env-dev
	$(BIN)/lint-imports --no-logo

spelling: env-dev
	$(BIN)/codespell

generated: env-dev
	$(BIN)/python tools/gen_docs.py --check

changes: env-dev
	@$(BIN)/python tools/changelog.py --check

test: env-dev  ## all tests: first the quick ones, then those that start processes
	@tools/services
	@$(BIN)/python tools/run_tests.py --jobs $(JOBS) $(TEST_ARGS)

test-fast: env-dev  ## only the quick ones
	@$(BIN)/python tools/run_tests.py --jobs $(JOBS) --only quick $(TEST_ARGS)

soak: env-dev  ## the long ones: many seeds for real, thousands of generated cases
	@HYPOTHESIS_PROFILE=soak $(BIN)/python tools/run_tests.py --jobs 1 --only soak $(TEST_ARGS)

bench: env-dev  ## each benchmark, one JSON object a line
	@set -e; for script in $(sort $(wildcard benchmarks/*.py)); do $(BIN)/python $$script --json $(BENCH_ARGS); done

gpu-check: env-dev  ## what needs a GPU; says so where there is none
	@$(BIN)/python benchmarks/torch_gpu.py

docs: env-dev  ## write the generated pages again
	$(BIN)/python tools/gen_docs.py

fmt: env-dev  ## let ruff put things in order
	$(BIN)/ruff check --fix --exit-zero
	$(BIN)/ruff format

clean:  ## remove .venv and all that was built
	rm -rf $(VENV) build dist demo-out .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
