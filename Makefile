# Everything runs in a virtual environment of this checkout; the first target that needs it makes it.
# PYTHON chooses the interpreter (3.11 or newer), as in `make test PYTHON=python3.12`.

PYTHON ?= python3
VENV ?= .venv
DIR ?= ../shared/cases
OUT ?= demo-output
ARGS ?=

RUN := $(VENV)/bin/python
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test bench notebooks cases lint types clean

help: ## Show these lines
	@echo "make TARGET [PYTHON=python3.12] [ARGS=...]"
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY) ## Run the tour headless; writes HTML, plots, journal, script and JUnit to demo-output/ (OUT=...)
	@$(RUN) -m demo --out "$(OUT)" $(ARGS)

test: $(READY) ## Run the tests (ARGS="tests/contracts -k name" for a part of them)
	@$(RUN) -m pytest $(ARGS)

bench: $(READY) ## Run every benchmark and print its ratios
	@$(RUN) -m bench $(ARGS)

notebooks: $(READY) ## Run every notebook top to bottom and keep an HTML copy of each in demo-output/notebooks/
	@$(RUN) -m demo.notebooks --out "$(OUT)/notebooks" $(ARGS)

cases: $(READY) ## Run every case folder found in DIR (DIR=../shared/cases)
	@$(RUN) -m workbench cases "$(DIR)" $(ARGS)

lint: $(READY) ## Check format and style
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .

types: $(READY) ## Check types
	@$(RUN) -m pyright

clean: ## Remove what the targets above made
	rm -rf "$(VENV)" "$(OUT)" build dist *.egg-info

# torch goes first: dependants would otherwise choose a version by themselves. The stamp is written last, so that a
# set-up cut short is done again, and it is older than pyproject.toml whenever a dependency changed.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "expected Python 3.11 or newer; found: $$($(PYTHON) --version 2>&1 | tail -n 1);" \
	       "choose another with: make PYTHON=/path/to/python3.12" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "this Python cannot make virtual environments;" \
	       "on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 2; }
	@echo "setting up $(VENV), once; this takes some minutes" >&2
	@test -x "$(RUN)" || $(PYTHON) -m venv "$(VENV)"
	@$(RUN) -m pip install --quiet torch==2.13.0
	@$(RUN) -m pip install --quiet --editable '.[dev]'
	@touch "$@"
