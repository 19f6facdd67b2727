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

# Not --quiet: pip says what it fetches, and how far it is.
define install
@echo 'Setting up $(VENV), once: some minutes for what is fetched.'
$(BIN)/python -m pip install --disable-pip-version-check '$(TORCH)'
$(BIN)/python -m pip install --disable-pip-version-check --editable '$(1)'
endef

.DEFAULT_GOAL := help
.PHONY: help train play tag test check format pages docs links dist clean

help:  ## what can be made
	@sed -n 's/^\([a-z]*\):.*## */make \1\t/p' $(MAKEFILE_LIST) | expand -t 16

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

test: $(DEV_STAMP)  ## set up for development, then run the tests; ARGS="-k name" chooses among them
	@$(BIN)/python -c 'import os; n = os.cpu_count() or 1; \
	  print(f"All tests take about {48 // n + 1} minutes on {n} cores; failures are named as they come.")'
	$(BIN)/python -m pytest -n auto --dist worksteal $(ARGS)

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

clean:  ## remove what was made here, the virtual environment included
	rm -rf $(VENV) build dist docs/_build *.egg-info .mypy_cache .ruff_cache .pytest_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'gpu_envs needs Python 3.11 or newer: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo 'Python lacks its venv module; on Debian and Ubuntu: apt install python3-venv' >&2; exit 1; }

$(USER_STAMP): pyproject.toml | $(BIN)/python
	$(call install,.[video$(EXTRA)])
	@touch $@

$(DEV_STAMP): pyproject.toml | $(BIN)/python
	$(call install,.[$(DEV)])
	@touch $@
