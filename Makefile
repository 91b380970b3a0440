# make lab: set up and open the lesson.   make test: set up and run all tests.   Everything lives in .venv.
# The lab needs less than the tests, so each target installs only what it uses; all versions come from requirements.lock.
SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14 python; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock
# A plain path file: with the other kind of editable install, a script beside the clone would take the clone's own folder for the package.
EDITABLE = --config-settings editable_mode=compat --editable
LAB_SETTINGS = $(VENV)/share/jupyter/lab/settings
LAB_FLAGS = $(if $(filter 0,$(shell id -u)),--allow-root) --LabApp.default_url=/lab/tree/nbs/00_loop.ipynb

# Two processes for each core, because many tests wait; PROCESSES=0 runs all tests in one.
PROCESSES ?= auto
TESTS ?=

.PHONY: help lab test demo bench bench-peers notebooks figures site lock clean

help:
	@echo "make lab          set everything up and open JupyterLab at the first lesson"
	@echo "make test         set everything up and run all tests"
	@echo "make demo         the agent on the sample repo, without a browser"
	@echo "make notebooks    export the modules, clean the notebooks, write README.md"
	@echo "make figures      run the notebooks that have figures, and keep the pictures in them"
	@echo "make site         build the static site of the notebooks: build/site/index.html"
	@echo "make bench        measure against a bare loop (make bench-peers: also against other harnesses)"

$(BIN)/python:
	@if [ -z "$(PYTHON)" ]; then echo "Python 3.11 or newer is needed, and none was found: install one, or say make PYTHON=/path/to/python3.11"; exit 1; fi
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older than Python 3.11: install a newer one, or say make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "setting up $(VENV) with $(PYTHON); the first time takes a minute or two"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "$(PYTHON) cannot make a virtual environment: install its venv package (on Debian and Ubuntu: python3-venv)"; exit 1; }

$(VENV)/.base: $(BIN)/python requirements.lock pyproject.toml
	@$(INSTALL) $(EDITABLE) . && touch $@

$(VENV)/.lab: $(VENV)/.base scripts/lab_overrides.json
	@echo "installing JupyterLab, the charts and what the lessons use"
	@$(INSTALL) $(EDITABLE) '.[lab,mcp]'
	@mkdir -p $(LAB_SETTINGS) && cp scripts/lab_overrides.json $(LAB_SETTINGS)/overrides.json && touch $@

$(VENV)/.dev: $(VENV)/.lab
	@echo "installing what the tests need"
	@$(INSTALL) $(EDITABLE) '.[lab,mcp,dev]' && touch $@

$(VENV)/.site: $(VENV)/.base
	@echo "installing what the site is made with"
	@$(INSTALL) $(EDITABLE) '.[site]' && touch $@

lab: $(VENV)/.lab
	@$(BIN)/jupyter lab $(LAB_FLAGS)

test: $(VENV)/.dev
	@$(BIN)/python -m pytest --numprocesses $(PROCESSES) --maxprocesses 4 --dist loadfile --no-loadscope-reorder $(TESTS)

demo: $(VENV)/.base
	@$(BIN)/python scripts/demo.py

bench: $(VENV)/.dev
	@$(BIN)/python -m benchmarks

bench-peers: $(VENV)/.dev
	@$(BIN)/python -m benchmarks --peers

notebooks: $(VENV)/.dev
	@$(BIN)/python scripts/notebooks.py

figures: $(VENV)/.dev
	@$(BIN)/python scripts/notebooks.py --figures

site: $(VENV)/.site
	@$(BIN)/python scripts/build_site.py

lock: $(VENV)/.dev
	@$(INSTALL) uv
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-header --no-emit-index-url --all-extras pyproject.toml --output-file requirements.lock

clean:
	@rm -rf $(VENV) build dist *.egg-info
