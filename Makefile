# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# A process a core, each with one thread: most tests are many small operations.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 --dist worksteal

.PHONY: setup demo test check clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable ".[demo,dev,onnx,parquet,ray,timm,transformers]"
	touch $@

demo: setup
	$(BIN)/dmbp demo

test: setup
	$(PYTEST)

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(PYTEST)

clean:
	rm -rf $(VENV) build dist dmbp-demo dmbp-out
