# make train: set up and train, on a new machine. make test: set up and test. make help: list the targets.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
ARGS   ?=

# The driver's CUDA version selects the extra; without a driver, the CPU is used. CUDA_EXTRA= overrides the choice.
CUDA_VERSION := $(shell nvidia-smi 2>/dev/null | sed -n 's/.*CUDA[A-Za-z ]*Version: *\([0-9][0-9]*\).*/\1/p' | head -n 1)
ifeq ($(CUDA_VERSION),)
  CUDA_EXTRA ?=
else
  # CuPy has no builds for drivers older than CUDA 12: use the CPU.
  CUDA_EXTRA ?= $(if $(filter 12,$(CUDA_VERSION)),cuda12,$(if $(filter-out 8 9 10 11,$(CUDA_VERSION)),cuda13))
endif

# Without a GPU torch comes from this index, if it answers within 5 seconds: the default build has gigabytes of CUDA.
CPU_INDEX ?= https://download.pytorch.org/whl/cpu
ANSWERS := import signal, sys, urllib.request; signal.alarm(5); urllib.request.urlopen(sys.argv[1]).read(1)

comma := ,
EXTRA := $(if $(CUDA_EXTRA),$(comma)$(CUDA_EXTRA))
# DEV_EXTRA=compat also installs and tests libraries that need no adapter.
DEV_EXTRA ?=
DEV := dev$(EXTRA)$(if $(DEV_EXTRA),$(comma)$(DEV_EXTRA))
# The stamp's name contains the extras, so that a change of extras installs again.
USER_STAMP := $(VENV)/.installed$(subst $(comma),-,$(EXTRA))
DEV_STAMP  := $(VENV)/.installed-$(subst $(comma),-,$(DEV))
# The extra dev contains docs.
DOCS_STAMP := $(or $(wildcard $(DEV_STAMP)),$(VENV)/.installed-docs$(subst $(comma),-,$(EXTRA)))

# Tested versions; `make constraints` updates them, `make newest` ignores them.
CONSTRAINTS := --constraint constraints.txt

# Not --quiet: pip shows its progress.
PIP := $(BIN)/python -m pip install --disable-pip-version-check $(CONSTRAINTS)

define install
@echo 'Setting up $(VENV), once: the downloads take some minutes.'
$(if $(CUDA_VERSION),,$(install_cpu_torch))
$(PIP) torch --editable '$(1)'
endef

# Without dependencies, which come from the default index, in the tested versions.
define install_cpu_torch
@if ($(BIN)/python -c '$(ANSWERS)' $(CPU_INDEX)/torch/ || false) 2> /dev/null; then \
  echo 'No GPU: torch comes from $(CPU_INDEX), without CUDA.'; \
  $(PIP) --no-deps --index-url $(CPU_INDEX) torch || echo 'This failed: torch comes from the default index.'; \
else \
  echo '$(CPU_INDEX) does not answer: torch comes from the default index; for Linux this is gigabytes, with CUDA.'; \
fi
endef

.DEFAULT_GOAL := help
.PHONY: help train play tag test test-slow test-all test-gpu newest benchmarl mutants
.PHONY: ci check format pages notebooks docs links dist constraints clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## */make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

train: $(USER_STAMP)  ## set up for this machine, then train CartPole until it is solved
	$(BIN)/gpu-envs train CartPole-v1 $(if $(CUDA_EXTRA),,--preset cpu --device cpu) $(ARGS)
	@echo; echo 'make play writes a video of the run, replay.mp4, and a page for any browser, replay.html'

RUN ?= $(shell ls -td runs/*/ 2>/dev/null | head -n 1)

play: $(USER_STAMP)  ## write a video and a page of the newest run, or of RUN=runs/...
	@test -n '$(RUN)' || { echo 'there is no run yet: make train' >&2; exit 1; }
	$(BIN)/gpu-envs play $(RUN) --video replay.mp4 --html replay.html $(ARGS)

tag: $(USER_STAMP)  ## train taggers in seconds, without a GPU in a smaller game, and show them in replay.html
ifeq ($(CUDA_EXTRA),)
	@echo 'No GPU: training a smaller game of tag, in about ten seconds.'
	$(BIN)/gpu-envs train TagContinuous-v0 --preset small --device cpu
else
	@echo 'Training taggers for some seconds.'
	$(BIN)/gpu-envs train TagContinuous-v0 --preset taggers
endif
	$(MAKE) --no-print-directory play ARGS='--replicas 2 $(ARGS)'

PYTEST := $(BIN)/python -m pytest -n auto --dist worksteal

test: $(DEV_STAMP)  ## set up for development, then run the quick tests; ARGS="-k name" selects some
	@echo 'These tests take about four minutes on two cores.'
	$(PYTEST) -m 'not slow' $(ARGS)
	@echo 'make test-all also runs the slow tests: every environment in every mode, training, other libraries, NVRTC.'

test-slow: $(DEV_STAMP)  ## run the tests that make test leaves out
	$(PYTEST) -m slow $(ARGS)

test-all: $(DEV_STAMP)  ## run every test: about a quarter of an hour on two cores
	$(PYTEST) $(ARGS)

# Not in .venv: uses an existing environment with CUDA, torch, CuPy and pytest.
GPU_PROCESSES ?= $(shell $(PYTHON) -c 'import os; print(min(16, os.cpu_count() or 1))')

test-gpu:  ## run the tests that need a GPU, in the environment of PYTHON=/path/to/python, without installing
	$(PYTHON) -m pytest -m cuda $(shell $(PYTHON) -c 'import xdist' 2>/dev/null && \
	  echo ' -n' $(GPU_PROCESSES) --dist worksteal) $(ARGS)

newest:  ## run every test with the newest version of each library, in .venv-newest
	$(MAKE) VENV=.venv-newest CONSTRAINTS= test-all

benchmarl:  ## test BenchMARL's algorithms, in .venv-benchmarl, as it needs an older TorchRL
	$(MAKE) VENV=.venv-benchmarl CONSTRAINTS= CUDA_EXTRA= .venv-benchmarl/.installed
	.venv-benchmarl/bin/python -m pip install --quiet --disable-pip-version-check benchmarl pytest
	.venv-benchmarl/bin/python -m pytest tests/adapters/test_benchmarl.py $(ARGS)

mutants: $(DEV_STAMP)  ## run mutation testing, which takes hours; ARGS="--seed 2"
	$(BIN)/python -m tests.mutants $(ARGS)

ci:  ## run all checks before a merge, about half an hour on two cores
	.ci/run

check: $(DEV_STAMP)  ## check formatting, lint, types, the Dockerfile and the workflows
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/hadolint Dockerfile
	$(BIN)/zizmor --offline --pedantic --quiet .github
	$(SCHEMA).github-workflows .github/workflows/*.yml
	$(SCHEMA).github-issue-forms $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))
	$(SCHEMA).github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(SCHEMA).dependabot .github/dependabot.yml
	$(SCHEMA).readthedocs .readthedocs.yaml

SCHEMA := $(BIN)/check-jsonschema --quiet --builtin-schema vendor

format: $(DEV_STAMP)  ## format the Python files, and apply the fixes of ruff
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

SPHINX := $(BIN)/python -m sphinx -W -n --keep-going -q -d docs/_build/doctrees

pages: $(DEV_STAMP)  ## update the generated parts of docs/, from specs, results and the command line
	$(BIN)/python -m benchmarks.pages

notebooks: $(DEV_STAMP)  ## run the notebooks of examples/, and store their outputs
	$(BIN)/python -m benchmarks.notebooks

docs: $(DOCS_STAMP)  ## build the documentation, docs/_build/html, and check its internal links
	$(SPHINX) -b html docs docs/_build/html
	@echo 'docs/_build/html/index.html'

links: $(DEV_STAMP)  ## check the documentation's links to other sites
	$(SPHINX) -b linkcheck docs docs/_build/links

dist: $(DEV_STAMP)  ## build the source distribution and the wheel into dist/, and check both
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*

# Packages that the driver or the platform determines are not pinned; torch's dependencies are, as torch is not.
UNCONSTRAINED := torch cupy-cuda12x cupy-cuda13x nvidia-cuda-nvrtc nvidia-cuda-nvrtc-cu12
TORCH_NEEDS   := filelock fsspec jinja2 networkx sympy

constraints: $(DEV_STAMP)  ## update constraints.txt to the newest compatible versions
	@mkdir -p build && printf '%s\n' $(UNCONSTRAINED) > build/unconstrained
	printf '%s\n' $(TORCH_NEEDS) | $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 \
	  --all-extras --no-header --no-annotate --excludes build/unconstrained --output-file constraints.txt pyproject.toml -

clean:  ## remove all built files and the virtual environments
	rm -rf $(VENV) .venv-newest .venv-benchmarl build dist docs/_build *.egg-info .mypy_cache .ruff_cache .pytest_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'gpu_envs needs Python 3.11 or newer: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo 'Python has no venv module; on Debian and Ubuntu: apt install python3-venv' >&2; exit 1; }

$(USER_STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(call install,.[video$(EXTRA)])
	@touch $@

$(filter-out $(DEV_STAMP),$(DOCS_STAMP)): $(USER_STAMP)
	$(PIP) --editable '.[docs]'
	@touch $@

$(DEV_STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(call install,.[$(DEV)])
	@touch $@
