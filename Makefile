# Every target installs what it needs, once: into .venv, web/node_modules and src/backlight.
# Stamps in .venv say what is installed; a change of what they depend on installs again.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

PYTHON ?= python3
PY := .venv/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --no-input
INSTALL := $(PIP) install -q -c constraints.txt
BUILD_FILES := pyproject.toml setup.py constraints.txt $(wildcard build_support/*.py)
KERNEL := $(wildcard src/backlight/reduce/*.c src/backlight/reduce/*.h)

.PHONY: help demo test lint format web bench bench-jax bench-peers bench-viewer bench-store bench-diagnosis clean chromium bench-lab test-notebook

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' Makefile

demo: .venv/installed-run web ## train the demo's networks, record them and open the viewer
	@.venv/bin/backlight demo

test: .venv/installed-dev web chromium ## run all tests: the page's, doctests, Python's
	@$(PY) -m build_support.node npm run test
	@OMP_NUM_THREADS=1 $(PY) -m pytest -n auto --dist loadfile

test-notebook: .venv/installed-dev web chromium ## run real notebooks in a real browser: JupyterLab, marimo
	@$(INSTALL) ipykernel jupyterlab marimo
	@$(PY) -m pytest tests/notebooks.py

lint: .venv/installed-dev ## check style and types, change nothing
	@$(PY) -m ruff check
	@$(PY) -m ruff format --check
	@$(PY) -m mypy
	@$(PY) -m build_support.node npm run check
	@$(PY) -m build_support.node npm run lint

format: .venv/installed-dev ## bring the code into its style
	@$(PY) -m ruff check --fix-only
	@$(PY) -m ruff format
	@$(PY) -m build_support.node npm run format

web: .venv/tools ## build the page into the package, if its sources changed
	@$(PY) -m build_support.front_end

bench: .venv/installed-dev ## measure what recording costs
	@$(PY) benchmarks/run.py

bench-jax: .venv/installed-dev ## measure what recording costs a small GPT in Flax
	@$(PY) benchmarks/jax_run.py

bench-peers: .venv/installed-dev ## measure what other tools cost on the same loops
	-@scripts/ensure-program dot graphviz "TorchExplorer"
	@$(PY) benchmarks/peers.py

bench-viewer: .venv/installed-dev web chromium ## measure what the page costs a browser
	@$(PY) benchmarks/viewer_graph.py
	@$(PY) benchmarks/viewer_peer.py
	@$(PY) benchmarks/viewer_plots.py
	@$(PY) benchmarks/viewer_live.py

bench-store: .venv/installed-dev ## measure how fast large runs are read (18 GB of disk, half an hour)
	@$(PY) benchmarks/store.py $(if $(ROOT),--root $(ROOT))

bench-diagnosis: .venv/installed-dev ## measure how often diagnosis is right, and what it costs (7 GB of disk)
	@OMP_NUM_THREADS=1 $(PY) benchmarks/diagnosis.py
	@$(PY) benchmarks/diagnosis_cost.py

bench-lab: .venv/installed-dev ## measure how fast the lab answers
	@$(PY) benchmarks/lab.py

clean: ## remove what was built; .venv and web/node_modules stay
	rm -rf build dist src/*.egg-info src/backlight/serve/static src/backlight/reduce/_kernel*.so
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache .venv/installed-*
	find src tests build_support benchmarks -name __pycache__ -prune -exec rm -rf {} +

chromium:
	@scripts/ensure-program chromium chromium "the browser tests"

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Backlight needs Python 3.10 or newer: set PYTHON to one.")'
	@$(PYTHON) -m venv .venv

# The page's tests and checks need Node at any time, so where there is none it lives in .venv.
.venv/tools: $(BUILD_FILES) | .venv/bin/python
	@$(INSTALL) setuptools $$($(PY) -m build_support.node needs)
	@touch $@

.venv/installed-run: EXTRAS := torch
.venv/installed-dev: EXTRAS := torch,dev
.venv/installed-run .venv/installed-dev: .venv/tools $(KERNEL)
	@echo "installing Backlight and what it needs ($(EXTRAS)) into .venv"
	@rm -f src/backlight/reduce/_kernel*.so
	@$(INSTALL) --no-build-isolation -e '.[$(EXTRAS)]'
	@compgen -G 'src/backlight/reduce/_kernel*.so' > /dev/null || \
		echo "The C kernel was not built, so recording is slower; '$(PY) setup.py build_ext --force' says why."
	@touch $@
