# The recipes use one environment, .venv, made from requirements.lock (what the product needs) and, for tests and
# environments, requirements-dev.lock (the same versions and more), and from nothing else.
PYTHON ?= python3
BIN := .venv/bin
MAP ?= maps/smollm2
RUN ?= runs/toy-hilo

.DEFAULT_GOAL := help
.PHONY: help venv dev map rl system test bench lint lock clean

help: ## this list
	@sed -n 's/^\([a-z]*\):[^#]*## /\1\t/p' Makefile | expand -t 10

venv: .venv/done ## the environment in .venv, from requirements.lock

.venv/done: requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "jaxllm needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1)." >&2; \
		echo "Name another one: make venv PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) cannot make environments: install its venv package (Debian and Ubuntu: python3-venv)." >&2; exit 1; }
	@echo "Installing into .venv (once; a minute or two) ..."
	@begin=$$(date +%s); set -e; \
	$(PYTHON) -m venv --clear .venv; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements.lock; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .; \
	echo "install $$(( $$(date +%s) - begin )) s" | tee .venv/done

dev: .venv/dev ## the same with all extras: environments, tests, linters; from requirements-dev.lock

.venv/dev: .venv/done requirements-dev.lock
	@echo "Installing environments and tests into .venv (once; some minutes) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements-dev.lock
	@touch .venv/dev

map: venv ## what the neurons of SmolLM2 stand for: table, report, and where the time went
	@$(BIN)/jaxllm map smollm2 --out $(MAP) --control
	@echo "Before that, once: $$(cat .venv/done)"

rl: venv ## an agent that learns a game of several turns in two minutes, and its curves
	@$(BIN)/jaxllm train toy-hilo --out $(RUN)
	@$(BIN)/jaxllm plot $(RUN)

system: dev ## the browsers and the sandbox that tests need, installed where that is allowed
	@$(BIN)/python tests/system.py

test: dev system ## every test
	$(BIN)/python -m pytest -n 2 --dist loadscope

bench: dev ## every benchmark that this machine can run; benchmarks/README.md tells how to read them
	@set -e; for name in dispatch generate neuron_map clamp acts drift explore_search reward_throughput env_throughput rl_rollout rl_step; do echo "== $$name"; $(BIN)/python benchmarks/$$name.py; done

lint: dev ## style, format and types
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --no-cache --check .
	$(BIN)/mypy

COMPILE := PIP_CONFIG_FILE=/dev/null PIP_FIND_LINKS= CUSTOM_COMPILE_COMMAND="make lock" .venv-lock/bin/pip-compile --quiet \
	--all-build-deps --allow-unsafe --strip-extras --generate-hashes --no-emit-options \
	--no-emit-index-url --no-emit-find-links --no-emit-trusted-host

lock: ## both locks anew, from pyproject.toml
	$(PYTHON) -m venv --clear .venv-lock
	.venv-lock/bin/python -m pip install --quiet --disable-pip-version-check pip-tools
	$(COMPILE) --extra dev --extra envs --extra ray --output-file requirements-dev.lock pyproject.toml
	sed -n 's/^\([a-zA-Z0-9_.-]*==[^ ]*\) .*/\1/p' requirements-dev.lock > .venv-lock/versions.txt
	$(COMPILE) --constraint .venv-lock/versions.txt --output-file requirements.lock pyproject.toml
	rm -r .venv-lock

clean: ## removes .venv and what tools left behind, not maps
	rm -rf .venv .venv-lock build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
