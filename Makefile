# Each target does its own set-up on a machine that has python3 and make (and, for apt-get, root or sudo).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-vllm lint format lock bench bench-peers coldstart scale overload clean

demo: $(READY)
	$(BIN)/gateway demo $(ARGS)

test: $(READY) servers
	$(BIN)/python -m pytest $(ARGS)

test-vllm: $(READY)
	$(BIN)/python -m loadtests.vllm install
	$(BIN)/python -m pytest -m vllm tests/conformance $(ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Resolves the newest versions that pyproject.toml allows, with the hash of every file.
lock: $(READY)
	$(BIN)/uv pip compile pyproject.toml --all-extras --universal --generate-hashes --no-header --upgrade -o requirements.lock

bench: $(READY)
	$(BIN)/python -m loadtests.bench $(ARGS)
	$(BIN)/python -m loadtests.micro

bench-peers: $(READY)
	$(BIN)/python -m loadtests.bench --peers $(ARGS)

coldstart: $(READY)
	$(BIN)/python -m loadtests.fleet coldstart $(ARGS)

scale: $(READY)
	$(BIN)/python -m loadtests.fleet scale $(ARGS)

overload: $(READY)
	$(BIN)/python -m loadtests.overload $(ARGS)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info build dist

.PHONY: servers
servers:
	@command -v redis-server >/dev/null || deploy/apt-install redis-server
	@command -v promtool >/dev/null || deploy/apt-install prometheus

# uv checks every downloaded file against the hashes of the lock file; uv itself is checked by pip.
$(READY): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || deploy/apt-install python3-venv
	$(PYTHON) -m venv $(VENV)
	awk '/^uv==/ {found = 1} found {print} found && !/\\$$/ {exit}' requirements.lock > $(VENV)/uv.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(VENV)/uv.lock
	$(BIN)/uv pip install --quiet --compile-bytecode -c requirements.lock -e '.[test,loadtests]'
	touch $(READY)
