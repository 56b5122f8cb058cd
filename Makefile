# `make demo` and `make check` need nothing but Python: each sets up .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# One process per core with one thread each, because most tests run many small operations.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 --dist worksteal

.PHONY: setup demo check lint types test clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable ".[dev]"
	touch $@

demo: setup
	$(BIN)/dmbp demo

check: lint types test

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup
	$(BIN)/pyright

test: setup
	$(PYTEST)

clean:
	rm -rf $(VENV) build dist dmbp-demo dmbp-out
