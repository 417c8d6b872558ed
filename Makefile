# Every target sets up what it needs: a fresh Debian machine with Python 3.11, pip and apt is enough.
# Nothing is installed outside this checkout except Debian packages.

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
BIN := .venv/bin
STAMP := .venv/.ready

.PHONY: setup system demo pictures check test lint bench acceptance faults swarm docs clean

setup: $(STAMP)

# Debian splits venv from its Python; `ensurepip` tells whether it is there.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "evenly needs Python 3.11 or later; $(PYTHON) is $$($(PYTHON) --version)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { apt-get update -q && apt-get install -qy python3-venv; }
	@echo "Installing into .venv (about half a minute the first time)"
	@test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	@$(BIN)/pip install -qq --disable-pip-version-check --constraint constraints.txt --editable '.[all]' \
	  $$($(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["dev"])')
	@touch $@

# What the HTTP transport and the page are tested against.  RUNLEVEL=1 keeps Debian from starting them as services.
# `iproute2` has the program `ip`, for partitions.
SYSTEM := chromium curl haproxy iproute2 nginx openssl wrk
system:
	@for package in $(SYSTEM); do \
	  program=$$package; test $$package != iproute2 || program=ip; \
	  PATH="$$PATH:/usr/sbin:/sbin" command -v $$program >/dev/null || missing="$$missing $$package"; \
	done; \
	test -z "$$missing" || { echo "Installing$$missing"; apt-get update -q && \
	  RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends $$missing; }

# A live fleet, and a page to watch it; ARGS="--http" and the like are passed on.
demo: setup
	@$(BIN)/evenly demo $(ARGS)

# Play the six stories in headless Chromium, and take a picture of each.
pictures: system setup
	$(BIN)/python -m tests.lab.browser.pictures

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# One more process than cores, for most tests wait.  `worksteal` keeps a file together until somebody has nothing to do.
WORKERS := $(shell expr $$(nproc) + 1)
PYTEST := $(BIN)/pytest -n $(WORKERS) --dist worksteal

# The inner loop: the decisions, and what holds for all of them.
check: lint
	$(PYTEST) tests/core tests/properties

test: system lint
	$(PYTEST) -m 'not acceptance and not faults and not alone'
	$(BIN)/pytest -m alone

bench: setup
	@$(BIN)/python -m bench

acceptance: system setup
	$(BIN)/pytest -m acceptance

# The permanent matrix of faults (docs/faults.md), each with its bound: real processes that are killed,
# stopped, cut off, flooded and lied to.  Partitions and full disks need root.
faults: system setup
	$(BIN)/pytest -m faults -s tests/faults

# A thousand random scenarios with faults, other ones for every commit; a broken invariant is shown
# with the command that replays it.
SWARM_SEED ?= $(shell printf '%d' 0x$$(git rev-parse --short=8 HEAD 2>/dev/null || echo 1))
swarm: setup
	$(BIN)/evenly simulate --swarm 1000 --seed $(SWARM_SEED)

# The pages are Markdown; this draws their pictures again and checks every link and example.
docs: setup
	$(BIN)/evenly subset --clients 300 --backends 300 --size 10 --compare --png docs/images/subset.png >/dev/null
	$(BIN)/python docs/images/levels.py
	$(BIN)/pytest -q tests/test_docs.py

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
