# Every target needs nothing but Python: it sets up .venv first, with no more than it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO := $(VENV)/.demo
DOCS := $(VENV)/.docs
LOWEST := .venv-lowest
RELEASE := .venv-release
INSTALL := -m pip install --quiet --disable-pip-version-check --constraint
# One process per core with one thread each, because most tests run many small operations.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 --dist worksteal

.PHONY: setup demo docs check lint types test test-all test-lowest dist clean

setup: $(READY)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Files are compiled when they are first imported: most never are. Tests start many processes, and
# some machines keep no compiled files, so that for them all is compiled at once.
$(DEMO): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python $(INSTALL) constraints.txt --no-compile --editable ".[demo]"
	touch $@

$(READY): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python $(INSTALL) constraints.txt --editable ".[dev]"
	touch $(DEMO) $@

demo: $(DEMO)
	$(BIN)/dmbp demo

$(DOCS): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python $(INSTALL) constraints.txt --editable ".[docs]"
	touch $(DEMO) $@

# A warning is an error: every link leads somewhere, every name exists, every example runs.
docs: $(DOCS)
	$(BIN)/python -m sphinx --fail-on-warning --nitpicky --keep-going --quiet docs build/docs

check: lint types test

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/zizmor --offline --quiet .github

types: setup
	$(BIN)/pyright

# Without the slow tests, which repeat others on larger networks or take processes down.
test: setup
	$(PYTEST) -m "not slow"

test-all: setup
	$(PYTEST)

# The lowest versions that pyproject.toml promises. They use what newer packages call old, so that
# warnings about it do not fail.
test-lowest:
	$(PYTHON) -m venv --clear $(LOWEST)
	$(LOWEST)/bin/python $(INSTALL) constraints-lowest.txt --editable ".[demo,onnx,timm]" pytest pytest-xdist scipy
	$(LOWEST)/bin/python scripts/versions.py
	OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest --numprocesses 2 -W ignore::DeprecationWarning \
		$(or $(TESTS),tests/linear tests/attribution tests/cli)

dist:
	$(PYTHON) -m venv --clear $(RELEASE)
	$(RELEASE)/bin/python $(INSTALL) constraints.txt build check-wheel-contents twine
	PATH="$(CURDIR)/$(RELEASE)/bin:$$PATH" scripts/dist.sh

clean:
	rm -rf $(VENV) $(LOWEST) $(RELEASE) build dist dmbp-demo dmbp-out
