.PHONY: build demo test mutants sanitize bench lint

PYTHON := .venv/bin/python

.venv/ready: requirements-dev.txt requirements-headers.txt
	python3 -m venv .venv
	$(PYTHON) -m pip install -q -r requirements-dev.txt
	$(PYTHON) -m pip install -q --no-deps -r requirements-headers.txt
	touch $@

build: .venv/ready
	$(PYTHON) -m pip install -q --no-build-isolation --no-deps -e .

# The decoder runs on the CPU, and the CUDA kernels take minutes to compile.
demo: export DFLASH_CUDA := OFF
demo: build
	$(PYTHON) -m dflash_ops generate "$$(cat bench/prompts/edit.txt)" --draft-len 12 --compare

test: export DFLASH_PTXRUN := ON
test: build
	$(PYTHON) -m pytest -q -n auto --maxprocesses 4 --dist worksteal

mutants: .venv/ready
	$(PYTHON) tools/mutants.py

sanitize: .venv/ready
	$(PYTHON) tools/sanitize.py

bench: build
	$(PYTHON) bench/run.py

lint: .venv/ready
	PATH="$(CURDIR)/.venv/bin:$$PATH" pre-commit run --all-files --show-diff-on-failure
