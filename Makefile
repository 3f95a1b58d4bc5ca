# One command each; `make help` lists them. Works from any directory with `make -C`.

# Python 3.11 to 3.13 that makes the environment.
PYTHON ?= python3
# Installed before everything else, and pinned: on Linux an unpinned torch is a CUDA build of several
# gigabytes. Where 2.13.0 itself comes as a CUDA build, point TORCH_INDEX at an index of CPU builds.
TORCH ?= torch==2.13.0
TORCH_INDEX ?=

VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
MODEL := .cache/models/SmolLM2-135M-Instruct
QUESTION := What is the capital of France?

# The lowest transformers that pyproject.toml admits; read there and nowhere else.
LOWEST_VENV := .venv-lowest
LOWEST_TESTS ?= tests/models tests/parallel tests/test_demo.py

# Its kernels are interpreted and compiled without a GPU; all but triton comes from the main environment.
CUDA := plugins/cuda_backend
CUDA_VENV := $(CUDA)/.venv

# core-engine-tpu has an environment of its own: torch_xla fits torch 2.9 alone, and has no wheels past Python 3.12.
TPU := plugins/tpu_backend
TPU_VENV := $(TPU)/.venv
TPU_PYTHON ?= $(PYTHON)

# Test processes: as many as there are cores, but not more. A file's tests stay together, and files keep their
# order: those with few tests, which would come last, take the longest.
TEST_PROCESSES ?= 4
PYTEST := -m pytest --numprocesses=auto --maxprocesses=$(TEST_PROCESSES) --dist=loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-lowest test-cuda test-tpu check docs bench build model reference clean distclean

help: ## List the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/ready model ## Answer a question with SmolLM2-135M on the CPU
	$(BIN)/core-engine chat $(MODEL) --backend cpu --temperature 0 --prompt "$(QUESTION)"

test: test-lowest ## Run all tests, the real-model ones included
	$(BIN)/python $(PYTEST)

test-lowest: $(LOWEST_VENV)/ready model ## Run the model tests with the lowest supported transformers
	$(LOWEST_VENV)/bin/python $(PYTEST) $(LOWEST_TESTS)

test-cuda: $(CUDA_VENV)/ready ## Run the tests of core-engine-cuda that need no GPU
	cd $(CUDA) && .venv/bin/python $(PYTEST)
	cd $(CUDA) && .venv/bin/python -m pytest tests/gpu

test-tpu: $(TPU_VENV)/ready model ## Run the tests of core-engine-tpu, its graphs on the CPU
	cd $(TPU) && PJRT_DEVICE=CPU .venv/bin/python $(PYTEST)

check: $(VENV)/ready ## Lint, formatting, types, generated reference pages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy examples/sim_accelerator/src
	$(BIN)/mypy plugins/tpu_backend/src
	$(BIN)/mypy plugins/cuda_backend/src
	$(BIN)/python scripts/write_reference.py --check

docs: $(VENV)/docs-ready reference ## Build the documentation into docs/_build; warnings are errors
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -b html docs docs/_build/html
	@echo "docs: open docs/_build/html/index.html"

reference: $(VENV)/ready ## Rewrite the reference pages that are generated from the source
	$(BIN)/python scripts/write_reference.py

bench: $(VENV)/ready model ## Measure throughput, latency and the distance to transformers' generate
	$(BIN)/core-engine bench throughput $(MODEL) --input-len 128 --output-len 128 --num-prompts 64
	$(BIN)/core-engine bench latency $(MODEL) --input-len 16 --output-len 128 --num-prompts 8
	$(BIN)/python benchmarks/versus_transformers.py $(MODEL)
	$(BIN)/python benchmarks/drafts.py $(MODEL)

build: $(VENV)/ready ## Build the sdists and wheels of core-engine and its plugins into dist/
	$(BIN)/python -m build --no-isolation --outdir dist .
	$(BIN)/python -m build --no-isolation --outdir dist $(TPU)
	$(BIN)/python -m build --no-isolation --outdir dist $(CUDA)

model: $(VENV)/ready ## Bring SmolLM2-135M-Instruct into .cache/models
	@test -d $(MODEL) || $(BIN)/python scripts/get_demo_model.py > /dev/null

clean: ## Remove what builds and tools left behind; keeps environments and the model
	rm -rf build dist docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis

distclean: clean ## Remove environments and the model too
	rm -rf $(VENV) $(LOWEST_VENV) $(CUDA_VENV) $(TPU_VENV) .cache

$(VENV)/ready: pyproject.toml
	@$(PYTHON) -c 'import sys; (3, 11) <= sys.version_info[:2] <= (3, 13) or sys.exit( \
	    f"core-engine needs Python 3.11 to 3.13; $(PYTHON) is {sys.version.split()[0]}. Try: make PYTHON=python3.11")'
	@echo "Making the environment in $(VENV): some minutes the first time"
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) "$(TORCH)"
	$(PIP_INSTALL) --editable ".[dev]"
	@touch $@

$(VENV)/docs-ready: $(VENV)/ready
	$(PIP_INSTALL) --editable ".[docs]"
	@touch $@

# Shares everything with the main environment but transformers and what that version needs otherwise.
$(LOWEST_VENV)/ready: $(VENV)/ready scripts/shared_environment.py
	$(BIN)/python scripts/shared_environment.py $(LOWEST_VENV) lowest:transformers
	@touch $@

$(CUDA_VENV)/ready: $(VENV)/ready $(CUDA)/pyproject.toml scripts/shared_environment.py
	$(BIN)/python scripts/shared_environment.py $(CUDA_VENV) "./$(CUDA)[testing]"
	@touch $@

# Its torch is a build for CUDA, of several gigabytes; there is no other of that version.
$(TPU_VENV)/ready: pyproject.toml $(TPU)/pyproject.toml
	@$(TPU_PYTHON) -c 'import sys; (3, 11) <= sys.version_info[:2] <= (3, 12) or sys.exit( \
	    f"torch_xla needs Python 3.11 or 3.12; $(TPU_PYTHON) is {sys.version.split()[0]}. Try: make TPU_PYTHON=python3.11")'
	@echo "Making the environment in $(TPU_VENV): some minutes the first time"
	$(TPU_PYTHON) -m venv $(TPU_VENV)
	$(TPU_VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
	    --editable . --editable "$(TPU)[compile-check,testing]"
	@touch $@
