.PHONY: build test mutants bench lint

PYTHON := .venv/bin/python

.venv/ready: requirements-dev.txt
	python3 -m venv .venv
	$(PYTHON) -m pip install -q -r requirements-dev.txt
	touch $@

build: .venv/ready
	$(PYTHON) -m pip install -q --no-build-isolation --no-deps -e .

test: build
	$(PYTHON) -m pytest -q

mutants: .venv/ready
	$(PYTHON) tools/mutants.py

bench: build
	$(PYTHON) bench/run.py

lint: .venv/ready
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	find csrc tools -name '*.h' -o -name '*.cuh' -o -name '*.cpp' -o -name '*.cu' | xargs .venv/bin/clang-format --dry-run -Werror
