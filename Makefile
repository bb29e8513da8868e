# make demo | test | lint | venv | clean
#
# What is installed is in .venv, except that on Debian-like Linux OpenBLAS and, for the tests, a C++
# compiler are installed with apt when they are missing and that is permitted. The demo keeps the
# default pair and what it measures in ~/.cache/dflash-mlx.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=

# The first Python that is new enough: macOS's own python3 is often older.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

ifeq ($(shell uname -s),Linux)
HAS_OPENBLAS := $(BIN)/python -c 'import ctypes; ctypes.CDLL("libopenblas.so.0")' 2>/dev/null
# MLX's CPU wheel for Linux links a reference BLAS; OpenBLAS, loaded before it, takes its place and
# multiplies matrices many times faster.
RUN = $$($(HAS_OPENBLAS) && echo env LD_PRELOAD=libopenblas.so.0)
else
HAS_OPENBLAS := true
RUN =
endif

OPENBLAS_PACKAGE := libopenblas0-pthread
# The tests of Metal kernels compile them as C++.
HAS_COMPILER := command -v g++ >/dev/null || command -v clang++ >/dev/null
COMPILER_PACKAGE := g++

# apt_install(package): installs it where there is apt and the right to use it; never an error.
define apt_install
if command -v apt-get >/dev/null; then \
	install="env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $(1)"; \
	if [ "$$(id -u)" = 0 ]; then as_root=; \
	elif sudo -n true 2>/dev/null; then as_root="sudo -n"; \
	else as_root=no; fi; \
	if [ "$$as_root" != no ]; then \
		echo "Installing $(1) …"; \
		$$as_root $$install </dev/null >/dev/null 2>&1 || \
		{ $$as_root apt-get update </dev/null >/dev/null 2>&1; \
		  $$as_root $$install </dev/null; } || true; \
	fi; \
fi
endef

.PHONY: demo test lint venv openblas compiler clean

demo: venv openblas
	$(RUN) $(BIN)/dflash-mlx generate \
		--prompt "Write a Python function that returns the n-th Fibonacci number."

test: venv openblas compiler
	$(RUN) $(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

lint: venv
	$(BIN)/ruff check
	$(BIN)/ruff format --check

venv: $(STAMP)

$(STAMP): pyproject.toml
	@if [ -z "$(PYTHON)" ]; then \
		echo "No Python 3.11 or newer was found; install one, or run make PYTHON=/path/to/python3." >&2; \
		exit 1; \
	fi
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "$(PYTHON) is missing or older than 3.11; run make PYTHON=/path/to/python3." >&2; \
		exit 1; }
	@$(PYTHON) -m venv $(VENV) || { \
		echo "Creating $(VENV) failed (on Debian: apt install python3-venv)." >&2; exit 1; }
	$(BIN)/python -m pip install --disable-pip-version-check -e '.[test]'
	@touch $@

# Never an error: without OpenBLAS everything works, slower.
openblas: venv
	@if $(HAS_OPENBLAS); then exit 0; fi; \
	$(call apt_install,$(OPENBLAS_PACKAGE)); \
	$(HAS_OPENBLAS) || echo "OpenBLAS is missing, so the CPU backend will be slow." \
		"On Debian or Ubuntu: sudo apt install $(OPENBLAS_PACKAGE)" >&2

# No error here either: the tests that need a compiler fail and say so.
compiler:
	@if $(HAS_COMPILER); then exit 0; fi; \
	$(call apt_install,$(COMPILER_PACKAGE)); \
	$(HAS_COMPILER) || echo "No C++ compiler was found, so the tests of the Metal kernels will fail." \
		"On Debian or Ubuntu: sudo apt install $(COMPILER_PACKAGE); on macOS: xcode-select --install" >&2

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache
	find dflash_mlx convert cli tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
