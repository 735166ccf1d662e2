# make demo and make test do everything on a fresh machine: Linux, Python 3.10 or newer, a C++ compiler.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DATA ?=
SANITIZE := -fsanitize=address,undefined -fno-sanitize-recover=all
NATIVE := build/native

.PHONY: setup demo test bench format lint types native-test clean

setup: $(VENV)/.installed

# The package is installed editable, so only a change of the core or of the dependencies installs it again.
$(VENV)/.installed: pyproject.toml setup.py lazynet/_build.py $(shell find csrc -name '*.cc' -o -name '*.h' -o -name '*.def' -o -name '*.cu')
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

demo: setup
	$(BIN)/python -m lazynet.demo $(if $(DATA),--data '$(DATA)') $(ARGS)

test: setup
	$(BIN)/python -m pytest $(ARGS)

bench: setup
	$(BIN)/python -m benchmarks.compare $(ARGS)

format: setup
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format .
	find csrc -name '*.cc' -o -name '*.h' | xargs $(BIN)/clang-format -i

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	find csrc -name '*.cc' -o -name '*.h' | xargs $(BIN)/clang-format --dry-run -Werror

types: setup
	$(BIN)/mypy

# The core with its native tests, warnings as errors: all under AddressSanitizer and UndefinedBehaviorSanitizer,
# those with threads under ThreadSanitizer.
BLAS = "$$($(BIN)/python -c 'from lazynet._core import blas_path; print(blas_path())')" scipy_
native-test: setup
	$(MAKE) -f csrc/tests/native.mk FLAGS='-O1 -g -Wall -Wextra -Werror $(SANITIZE)' OUT=$(NATIVE)/address -j2
	$(MAKE) -f csrc/tests/native.mk FLAGS='-O1 -g -Wall -Wextra -Werror -fsanitize=thread' OUT=$(NATIVE)/thread -j2
	ASAN_OPTIONS=allocator_may_return_null=1 $(NATIVE)/address/test_buddy_allocator
	$(NATIVE)/address/test_core $(BLAS)
	$(NATIVE)/address/test_backends $(BLAS)
	$(NATIVE)/address/test_passes
	$(NATIVE)/address/test_gradient_plan
	$(NATIVE)/address/test_threads
	$(NATIVE)/thread/test_core $(BLAS)
	$(NATIVE)/thread/test_threads

clean:
	rm -rf $(VENV) build dist *.egg-info lazynet/_lib*.so lazynet/_lib.c .pytest_cache .hypothesis
