# Everything runs in .venv, which is made on first use.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint soak hunt clean

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[test]'
	touch $@

demo: .venv/installed  ## four peers on this machine train one model together
	$(BIN)/p2ptrain simulate pycode --peers 4

test: .venv/installed lint  ## the whole test suite and the linters
	$(BIN)/pytest -m "not soak and not hunt"

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

soak: .venv/installed  ## long random runs
	$(BIN)/pytest -m soak --timeout 3600

hunt: .venv/installed  ## the long hunt, and whether it finds p2ptrain broken on purpose
	$(BIN)/pytest -m hunt --timeout 21600 -s

clean:
	rm -rf .venv build dist
