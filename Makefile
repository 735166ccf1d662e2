# make demo and make test do everything on a fresh machine: Linux, Python 3.10 or newer, a C++ compiler.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DATA ?=
SANITIZE := -fsanitize=address,undefined -fno-sanitize-recover=all
NATIVE := build/native

.PHONY: setup demo test bench format lint types native-test cuda-check cuda-test cuda-test-address cuda-test-thread clean

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
	find csrc -name '*.cc' -o -name '*.h' -o -name '*.cu' | xargs $(BIN)/clang-format -i

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	find csrc -name '*.cc' -o -name '*.h' -o -name '*.cu' | xargs $(BIN)/clang-format --dry-run -Werror

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

# Every kernel through nvcc and NVRTC, for all architectures, where they are there; how many registers each takes.
cuda-check: setup
	$(BIN)/python csrc/cuda/check_compile.py --jobs 2 --report build/cuda/report.txt $(ARGS)

# The stand-in for CUDA on which the tests of the CUDA backend run: its own tests, plain and under sanitizers.
cuda-test:
	$(MAKE) -f csrc/cuda/emulator/emulator.mk OUT=build/emulator -j2 check

# Python tests of the CUDA backend with the core, the emulator and the kernels under AddressSanitizer and
# UndefinedBehaviorSanitizer, in a build of its own: make cuda-test-address ARGS='tests/test_cuda.py -k softmax'
ADDRESS := build/address
ADDRESS_LIBRARIES = $(shell g++ -print-file-name=libasan.so) $(shell g++ -print-file-name=libubsan.so)
$(ADDRESS)/.built: $(VENV)/.installed
	LAZYNET_CXXFLAGS='-O1 -g $(SANITIZE)' LAZYNET_UNITS=$(if $(filter x86_64,$(shell uname -m)),baseline,portable) \
	  $(BIN)/python setup.py -q build --build-base $(ADDRESS) --build-lib $(ADDRESS)/lib
	touch $@
cuda-test-address: $(ADDRESS)/.built
	find lazynet -name '*.py' -exec cp --parents --update {} $(ADDRESS)/lib ';'
	LAZYNET_EMULATOR_FLAGS='-O1 -g $(SANITIZE)' PYTHONPATH=$(ADDRESS)/lib LD_PRELOAD='$(ADDRESS_LIBRARIES)' \
	  ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 \
	  $(BIN)/pytest --import-mode=append $(or $(ARGS),tests/test_cuda.py)

# The same with kernels under ThreadSanitizer, every CUDA thread a thread: tiny launches, which is all that it can bear.
cuda-test-thread: setup
	LAZYNET_EMULATOR_FLAGS='-O1 -g -fsanitize=thread' LD_PRELOAD='$(shell g++ -print-file-name=libtsan.so)' \
	  TSAN_OPTIONS=exitcode=66 $(BIN)/pytest $(or $(ARGS),tests/test_cuda.py -k 'tiny and emulated')

clean:
	rm -rf $(VENV) build dist *.egg-info lazynet/_lib*.so lazynet/_lib.c .pytest_cache .hypothesis
