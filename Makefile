# make train: everything, on a fresh machine. make test: the same for the tests. make help: the rest.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
ARGS   ?=

# The driver's CUDA version chooses the extra; without a driver the CPU does the work. CUDA_EXTRA= overrules it.
CUDA_VERSION := $(shell nvidia-smi 2>/dev/null | sed -n 's/.*CUDA[A-Za-z ]*Version: *\([0-9][0-9]*\).*/\1/p' | head -n 1)
ifeq ($(CUDA_VERSION),)
  CUDA_EXTRA ?=
  # A plain torch brings gigabytes of CUDA libraries that no driver here could use.
  TORCH := torch==2.13.0
else
  # A driver older than CUDA 12 runs nothing that CuPy still builds for: the CPU does the work.
  CUDA_EXTRA ?= $(if $(filter 12,$(CUDA_VERSION)),cuda12,$(if $(filter-out 8 9 10 11,$(CUDA_VERSION)),cuda13))
  TORCH := torch
endif

comma := ,
EXTRA := $(if $(CUDA_EXTRA),$(comma)$(CUDA_EXTRA))
# DEV_EXTRA=compat brings the libraries that need no adapter, to be tested too.
DEV_EXTRA ?=
DEV := dev$(EXTRA)$(if $(DEV_EXTRA),$(comma)$(DEV_EXTRA))
# A stamp's name says what was installed, so that another choice installs again.
USER_STAMP := $(VENV)/.installed$(subst $(comma),-,$(EXTRA))
DEV_STAMP  := $(VENV)/.installed-$(subst $(comma),-,$(DEV))

# The versions that were tested together; `make constraints` chooses anew. `make newest` does without.
CONSTRAINTS := --constraint constraints.txt

# Not --quiet: pip says what it fetches, and how far it is.
define install
@echo 'Setting up $(VENV), once: some minutes for what is fetched.'
$(BIN)/python -m pip install --disable-pip-version-check $(CONSTRAINTS) '$(TORCH)'
$(BIN)/python -m pip install --disable-pip-version-check $(CONSTRAINTS) --editable '$(1)'
endef

.DEFAULT_GOAL := help
.PHONY: help train play tag test test-slow test-all test-gpu newest mutants
.PHONY: check format pages docs links dist constraints clean

help:  ## what can be made
	@sed -n 's/^\([a-z-]*\):.*## */make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

train: $(USER_STAMP)  ## set up for this machine, then train CartPole until it is solved
	$(BIN)/gpu-envs train CartPole-v1 $(ARGS)
	@echo; echo 'make play: a video of it, replay.mp4, and a page for any browser, replay.html'

RUN ?= $(shell ls -td runs/*/ 2>/dev/null | head -n 1)

play: $(USER_STAMP)  ## a video and a page of the newest run, or of RUN=runs/...
	@test -n '$(RUN)' || { echo 'there is no run to show yet: make train' >&2; exit 1; }
	$(BIN)/gpu-envs play $(RUN) --video replay.mp4 --html replay.html $(ARGS)

tag: $(USER_STAMP)  ## train taggers, in seconds, a smaller game where there is no GPU, and show them in replay.html
ifeq ($(CUDA_EXTRA),)
	@echo 'There is no GPU here: a smaller game of tag is learnt, in about half a minute.'
	$(BIN)/gpu-envs train TagContinuous-v0 --preset small --device cpu
else
	@echo 'Taggers are trained for some seconds, then shown.'
	$(BIN)/gpu-envs train TagContinuous-v0 --preset taggers
endif
	$(MAKE) --no-print-directory play ARGS='--replicas 2 $(ARGS)'

PYTEST := $(BIN)/python -m pytest -n auto --dist worksteal

test: $(DEV_STAMP)  ## set up for development, then run the quick tests; ARGS="-k name" chooses among them
	@echo 'These tests take about four minutes on two cores; failures are named as they happen.'
	$(PYTEST) -m 'not slow' $(ARGS)
	@echo 'make test-all also runs the slow tests: every environment in every mode, training, other libraries, NVRTC.'

test-slow: $(DEV_STAMP)  ## run the tests that make test leaves out
	$(PYTEST) -m slow $(ARGS)

test-all: $(DEV_STAMP)  ## run every test: about a quarter of an hour on two cores
	$(PYTEST) $(ARGS)

# Not in .venv: an environment with CUDA, torch, CuPy and pytest is there already, and nothing is installed.
GPU_PROCESSES ?= $(shell $(PYTHON) -c 'import os; print(min(16, os.cpu_count() or 1))')

test-gpu:  ## run what needs a GPU, in the environment of PYTHON=/path/to/python; nothing is installed
	$(PYTHON) -m pytest -m cuda $(shell $(PYTHON) -c 'import xdist' 2>/dev/null && \
	  echo ' -n' $(GPU_PROCESSES) --dist worksteal) $(ARGS)

newest:  ## run every test with the newest version of each library, in .venv-newest
	$(MAKE) VENV=.venv-newest CONSTRAINTS= TORCH=torch test-all

mutants: $(DEV_STAMP)  ## measure how many small mistakes in the package the tests find: hours; ARGS="--seed 2"
	$(BIN)/python -m tests.mutants $(ARGS)

check: $(DEV_STAMP)  ## formatting, lint and types, and the Dockerfile
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/hadolint Dockerfile

format: $(DEV_STAMP)  ## format the Python files, and mend what ruff can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

SPHINX := $(BIN)/python -m sphinx -W -n --keep-going -q -d docs/_build/doctrees

pages: $(DEV_STAMP)  ## write into docs/ what follows from specs, results and the command line
	$(BIN)/python -m benchmarks.pages

docs: $(DEV_STAMP)  ## build the documentation's site, docs/_build/html, and follow its own links
	$(SPHINX) -b html docs docs/_build/html
	@echo 'docs/_build/html/index.html'

links: $(DEV_STAMP)  ## follow the documentation's links to other sites
	$(SPHINX) -b linkcheck docs docs/_build/links

dist: $(DEV_STAMP)  ## build the source distribution, and the wheel from it, into dist/, and check both
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*

# What the driver or the platform chooses is left out; what torch itself needs is named, since it is left out too.
UNCONSTRAINED := torch cupy-cuda12x cupy-cuda13x nvidia-cuda-nvrtc nvidia-cuda-nvrtc-cu12
TORCH_NEEDS   := filelock fsspec jinja2 networkx sympy

constraints: $(DEV_STAMP)  ## choose the newest versions that go together, into constraints.txt
	@mkdir -p build && printf '%s\n' $(UNCONSTRAINED) > build/unconstrained
	printf '%s\n' $(TORCH_NEEDS) | $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 \
	  --all-extras --no-header --no-annotate --excludes build/unconstrained --output-file constraints.txt pyproject.toml -

clean:  ## remove what was made here, the virtual environments included
	rm -rf $(VENV) .venv-newest build dist docs/_build *.egg-info .mypy_cache .ruff_cache .pytest_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'gpu_envs needs Python 3.11 or newer: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo 'Python lacks its venv module; on Debian and Ubuntu: apt install python3-venv' >&2; exit 1; }

$(USER_STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(call install,.[video$(EXTRA)])
	@touch $@

$(DEV_STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(call install,.[$(DEV)])
	@touch $@
