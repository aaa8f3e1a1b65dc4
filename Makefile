# Every target sets up what it needs; `make test` and `make demo` work on a fresh clone.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
TORCH := $(VENV)/torch

# The shorter run: any Python 3.12 that starts, on PATH or installed by pyenv, with the newest JAX and egglog. It takes what
# these can change: the import, reading JAX's programs, egglog's search and its results to the letter, JAX's transformations,
# Pallas, Triton, and the ways in and out.
PYTHON312 := $(shell for p in python3.12 $(HOME)/.pyenv/versions/3.12*/bin/python3.12; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 12))' >/dev/null 2>&1 && { echo $$p; break; }; done)
VENV312 := .venv-3.12
READY312 := $(VENV312)/ready
VENVDIST := .venv-dist
VENVLOWEST := .venv-lowest
SHORTER := $(addprefix tests/, test_packaging.py test_graph.py test_read.py test_primitives.py test_expansion.py test_control.py \
	test_rules.py test_golden.py test_cache.py test_jit.py test_updates.py test_writers.py backends frontends/test_onnx.py)

export JAX_PLATFORMS ?= cpu
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: help demo test setup lint format check test-3.12 test-lowest dist-test bench clean

help:
	@echo "make demo    GPT-2 small to checked Triton and Pallas kernels, in demo-out/"
	@echo "make test    lint, types and tests; a shorter run on Python 3.12 where there is one"
	@echo "make lint    ruff and mypy      make format   rewrite in the house style"
	@echo "make dist-test    sdist and wheel, installed      make test-lowest   with the lowest versions"
	@echo "make bench   the benchmarks     make clean    remove everything that was made"

$(READY): pyproject.toml
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]' </dev/null
	@touch $@

# PyTorch's tests need a build for the CPU; where only one with CUDA is to be had (several GB), they are skipped.
$(TORCH): $(READY)
	@if $(BIN)/python -m pip install --quiet --dry-run --report $@.json '.[test-torch]' </dev/null 2>/dev/null \
	&& ! grep -q '"name": "\(nvidia\|triton-cuda\|cuda\)' $@.json; \
	then $(BIN)/python -m pip install --quiet --editable '.[test-torch]' </dev/null; \
	else echo "no build of torch for the CPU found for this Python: the tests of PyTorch are skipped"; fi
	@touch $@

$(READY312): pyproject.toml
	$(PYTHON312) -m venv --clear $(VENV312)
	$(VENV312)/bin/python -m pip install --quiet --editable '.[dev]' </dev/null
	@touch $@

demo: $(READY)
	$(BIN)/python -m examples.gpt2

test: setup check test-3.12

# One environment is made while the other is used.
setup: $(READY)
	@$(MAKE) --no-print-directory -j 2 lint $(if $(PYTHON312),$(READY312))

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: $(READY) $(TORCH)
	$(BIN)/python -m pytest -q -n 2 -m "not nightly"

ifeq ($(PYTHON312),)
test-3.12:
	@echo "no Python 3.12 found: the shorter run with the newest jax and egglog is skipped"
else
test-3.12: $(READY312)
	@$(VENV312)/bin/python -c 'import egglog, importlib.metadata as m, sys; \
	print("Python", sys.version.split()[0], "jax", m.version("jax"), "egglog", m.version("egglog"))'
	$(VENV312)/bin/python -m pytest -q -n 2 -m "not slow and not nightly" $(SHORTER)
endif

# The sdist, the wheel that it makes, and that wheel in an environment of its own, outside of the tree.
dist-test: $(READY)
	rm -rf dist $(VENVDIST)
	$(BIN)/python -c 'from setuptools import build_meta; build_meta.build_sdist("dist")'
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist dist/*.tar.gz </dev/null
	$(PYTHON) -m venv $(VENVDIST)
	$(VENVDIST)/bin/python -m pip install --quiet dist/*.whl </dev/null
	$(VENVDIST)/bin/python -P tests/installed.py $(VENVDIST)
	cd $(VENVDIST) && bin/eqsat --version

# The lowest version of each dependency that pyproject.toml allows.
test-lowest:
	$(PYTHON) -m venv --clear $(VENVLOWEST)
	$(VENVLOWEST)/bin/python tests/lowest.py > $(VENVLOWEST)/lowest.txt
	$(VENVLOWEST)/bin/python -m pip install --quiet --editable '.[dev]' --constraint $(VENVLOWEST)/lowest.txt </dev/null
	$(VENVLOWEST)/bin/python -m pytest -q -n 2 -m "not slow and not nightly" $(SHORTER)

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) $(VENV312) $(VENVDIST) $(VENVLOWEST) demo-out build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
