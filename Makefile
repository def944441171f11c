# The CPU environment lives in .venv; everything runs from it.
PYTHON ?= $(firstword $(shell command -v python3.11 python3.12 python3.13 python3))
PORT ?= 8888
BIN := .venv/bin

# Threads that wait are to sleep: spinning ones slow everything down several times over where cores are busy.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: env test demo lab lab-gpu docs lint lines clean

env: .venv/project.stamp

test: env
	$(BIN)/python -m pytest

demo: env
	$(BIN)/python data/demo/investigate.py

docs: env
	$(BIN)/python -c "from eagle3lib.findings.catalogue import markdown; print(markdown(), end='')" > docs/findings.md

lint: env
	$(BIN)/ruff check .

lines: env
	$(BIN)/python benchmarks/lines.py

# Bound to this machine and guarded by a token: reach it from elsewhere through the tunnel.
lab: env
	@$(MAKE) --no-print-directory lab-gpu LAB=$(BIN)/jupyter

# The same where an environment is already active, as on the GPU box.
LAB ?= jupyter
lab-gpu:
	@token=$${JUPYTER_TOKEN:-$$(python3 -c 'import secrets; print(secrets.token_hex(24))')}; \
	    echo "From your machine:  ssh -N -L $(PORT):127.0.0.1:$(PORT) $$(id -un)@$$(hostname)"; \
	    echo "then open           http://127.0.0.1:$(PORT)/lab?token=$$token"; \
	    JUPYTER_TOKEN=$$token exec $(LAB) lab --no-browser --allow-root \
	        --ip=127.0.0.1 --port=$(PORT) --ServerApp.port_retries=0

clean:
	rm -rf .venv .cache .pytest_cache .ruff_cache .hypothesis papermill_runs/*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# uv where it is installed, pip otherwise: the same packages, sooner.
UV := $(shell command -v uv)
INSTALL := $(if $(UV),$(UV) pip install --python $(BIN)/python,$(BIN)/pip install --no-compile) --quiet --no-deps

# What PyPI has of torch for Linux is a CUDA build, useless here without 3 GB more; PyTorch's own index has the CPU build.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

# --no-deps: the lock is complete, so nothing is resolved. Compiled apart from pip, on all cores and without what is
# never imported; uncompiled, each start of SGLang costs twice as much. Files for other Pythons do not compile.
.venv/packages.stamp: requirements/cpu.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
	    { echo "$(PYTHON) is not Python 3.11 to 3.13, which requirements/cpu.txt is for: make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "Installing the CPU environment into .venv: about 3 GB, one to two minutes."
	$(if $(UV),$(UV) venv --quiet --seed --python $(PYTHON) .venv,$(PYTHON) -m venv .venv && $(BIN)/pip install --quiet --upgrade pip)
	@PIP_RETRIES=1 PIP_TIMEOUT=15 UV_HTTP_TIMEOUT=15 $(INSTALL) --index-url $(TORCH_INDEX) \
	    "$$(grep '^torch==' requirements/cpu.txt)" 2>/dev/null || true
	$(INSTALL) -r requirements/cpu.txt
	@$(BIN)/python -m compileall -qq -j 0 -x '/(tests|multimodal_gen)/' .venv/lib || true
	@$(BIN)/python -c 'import torch' || \
	    { echo "The package index gave a CUDA build of torch, and $(TORCH_INDEX) could not be reached."; \
	      echo "Give an index that has a CPU build: make clean, and then TORCH_INDEX=... make"; exit 1; }
	@touch $@

.venv/project.stamp: .venv/packages.stamp pyproject.toml $(shell find sglang_cpu -type f -not -name '*.pyc')
	$(INSTALL) --no-build-isolation --force-reinstall ./sglang_cpu --editable .
	@touch $@
