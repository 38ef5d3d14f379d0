# The front door. `make demo` and `make test` do their own set-up on a fresh machine; the logic is in scripts/.
.DEFAULT_GOAL := help
.PHONY: help demo test build wheel check fmt lint unit e2e sim golden bench soak gpu lock clean

PYTHON ?= python3
# Handed to the tool behind a target: make e2e ARGS="-k wheel -x"
ARGS ?=
SUITE ?=
DB ?=

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: build ## build, then train something distributed and show where to look
	@test ! -e build/demo/master.db || .venv/bin/instep down --db build/demo/master.db
	@rm -rf build/demo
	@.venv/bin/instep demo --keep build/demo $(ARGS)

test: ## everything CI runs, fastest first; DB=postgres: what has a database, on PostgreSQL
	@DB=$(DB) $(PYTHON) scripts/test.py all

build: ## target/quick/instep, and a .venv with torch and instep
	@$(PYTHON) scripts/build.py build

wheel: ## the wheel that users install, in dist/: optimised, for old systems too
	@$(PYTHON) scripts/build.py wheel

check: ## lint and unit: the quick part of `make test`
	@$(PYTHON) scripts/test.py check

fmt: ## format Rust and Python
	@$(PYTHON) scripts/test.py fmt

lint: ## formatting, clippy, docs, ruff, mypy
	@$(PYTHON) scripts/test.py lint

unit: ## Rust tests, house rules included (ARGS go to cargo)
	@$(PYTHON) scripts/test.py unit $(ARGS)

e2e: ## build, then the tests of tests/ with real torch (ARGS go to pytest)
	@$(PYTHON) scripts/test.py e2e $(ARGS)

sim: ## simulations of the decisions under a virtual clock; SEED=... replays one
	@$(PYTHON) scripts/test.py sim $(ARGS)

golden: build ## record torchrun's behaviour again, for tests/compat to compare with
	@.venv/bin/python tests/compat/record.py $(ARGS)

bench: ## run bench/*.py of the optimised build against the stock tools; prints JSON
	@$(PYTHON) scripts/build.py release
	@$(PYTHON) scripts/bench.py $(ARGS)

soak: ## long and repeated tests, and a minute of fuzzing (SUITE=ordinary: one suite)
	@$(PYTHON) scripts/soak.py $(SUITE) $(ARGS)

gpu: build ## tests of CUDA tensors, by ranks that share this machine's GPU
	@.venv/bin/python tests/gpu/all.py $(ARGS)

lock: ## resolve requirements/*.txt into requirements/lock.txt
	@$(PYTHON) scripts/build.py lock

clean: ## remove what was built in this folder
	@rm -rf build dist target .venv python/instep.data web/dist web/node_modules fuzz/target .pytest_cache .mypy_cache .ruff_cache
