# Two commands: `make demo` and `make test`. Each sets up what it needs; a second run does no needless work.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUST := Cargo.toml Cargo.lock $(shell find rust -name '*.rs' -o -name Cargo.toml)
export CARGO_TERM_QUIET ?= true
export PIP_QUIET ?= 1

.PHONY: demo test lint long docs clients mutants clean

demo: $(VENV)/.built
	$(BIN)/dpsql demo

test: lint
	cargo test --release --workspace --exclude dpsql-python
	$(BIN)/pytest -n 2 --dist worksteal -m "not long"

lint: $(VENV)/.built
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest dpsql._native
	$(BIN)/lint-imports --no-cache
	cargo fmt --all --check
	cargo clippy --release --workspace --all-targets -- -D warnings

# Statistical and soak tests that take longer than a coffee.
long: $(VENV)/.built
	$(BIN)/pytest -n 2 --dist worksteal -m long

# Mistakes in what has to be right, one at a time: the tests that are named for each must find it.
mutants: $(VENV)/.built
	cargo build --release --package dpsql-python --features mutants,pyo3/extension-module --target-dir target/mutants
	$(BIN)/python tests/mutants.py target/mutants/release/lib_native.so

# The pages of docs/ as a site in site/; their generated parts are written anew.
docs: $(VENV)/.built $(VENV)/.docs
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

$(VENV)/.docs: pyproject.toml $(VENV)/.tools
	$(BIN)/python -m pip install --quiet --group docs
	touch $@

# Other people's clients and suites: JupySQL, marimo, SQLAlchemy's own suite, and the dialect under SQLAlchemy 1.4.
clients: $(VENV)/.built
	$(BIN)/python -m pip install --quiet --group clients
	$(BIN)/pytest tests/clients/test_notebooks.py
	$(BIN)/python -m pip install --quiet --upgrade --target $(VENV)/sqlalchemy14 'sqlalchemy<2'
	PYTHONPATH=$(VENV)/sqlalchemy14 $(BIN)/pytest tests/test_sqlalchemy.py
	cd tests/clients/dialect && ../../../$(BIN)/pytest --dburi dpsqlsuite:// test_suite.py

$(VENV)/.tools: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("dpsql needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --group dev
	touch $@

$(VENV)/.built: $(VENV)/.tools $(RUST)
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/maturin develop --release --quiet
	touch $@

clean:
	rm -rf $(VENV) target site dpsql/_native*.so
