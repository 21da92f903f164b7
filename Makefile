# `make run` opens the app, `make test` runs every test; both set up .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: run test check bench browser clean

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test,cluster]'
	$(BIN)/planner tables >/dev/null  # compiles the scheduler once, so that the first plan need not wait for it
	touch $(STAMP)

run: $(STAMP)
	$(BIN)/streamlit run app/main.py

# A system Chromium drives the browser tests. Where it is missing and cannot be installed, those tests skip and say so.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
	|| { command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] \
	     && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null; } \
	|| echo 'No Chromium found and none could be installed: the browser tests will be skipped.'

# Files of tests side by side, one process per processor, in the order of the tree: what takes longest begins first.
test: $(STAMP) browser
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)
	$(BIN)/python -m benchmarks.run

clean:
	rm -rf $(VENV) build *.egg-info
