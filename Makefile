# `make help` lists the targets. All of them run in .venv, which they create.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# `--disable-pip-version-check` suppresses pip's notice about its own version.
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input --require-hashes

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-containers test-cluster attack check fast golden history judge-bench audit stack bench schemas screenshots docs docs-serve packages requirements clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.demo  ## the whole service on this machine: example sessions, scored while you watch; in a terminal its pages stay until Ctrl-C
	@exec $(BIN)/tarsy-scoring demo $$([ -t 0 ] && [ -t 1 ] && echo --keep-running) $(ARGS)

# Three processes on two cores, because many tests wait for other processes. `loadfile` runs a file in one process. Files
# start in their order and not by their number of tests: otherwise the longest tests, alone in their files, come last.
PARALLEL ?= -n 3 --dist loadfile --no-loadscope-reorder
# The durations of all tests stay in build/durations, and the slowest ten are in the summary.
DURATIONS = --durations=10 --durations-min=1 --junitxml=build/durations/$(1).xml
# Long tests: kill -9, outages, an upgrade, attacks, browsers, brokers with TLS and logins, charts, upstream's server.
LONG := tests/chaos tests/upgrade tests/attack tests/browser tests/deployment tests/tarsy_server tests/integration/test_kafka_security.py tests/integration/test_kafka_acls.py
test: $(VENV)/.dev  ## tests on real PostgreSQL and a real broker; ARGS="PATH -k WORD" runs some of them
	@$(BIN)/python -m pytest $(if $(ARGS),$(ARGS),$(PARALLEL) $(call DURATIONS,test) $(COVER) $(addprefix --ignore=,$(LONG)))

# The share of lines that tests reach in their own process. Measuring takes a third more time: COVER= leaves it out.
test-all: COVER = --cov --cov-report=
test-all: test  ## all tests: also chaos, attacks, browsers, deployment, secured brokers
	@$(BIN)/python -m pytest $(PARALLEL) $(call DURATIONS,long) $(if $(COVER),$(COVER) --cov-append) $(LONG)
	@$(if $(COVER),$(BIN)/python -m coverage report --format=total | sed 's/.*/lines reached by tests: & %/')

test-containers: $(VENV)/.dev  ## the image, docker-compose.yml and testcontainers on an engine of its own; needs root, docker.io, mmdebstrap, Go
	@tests/containers/engine.sh prepare || { echo "skipped: no engine with base images can be made here, see above"; exit 0; }; \
	  tests/containers/engine.sh test tests/containers tests/system/test_happy_path.py $(ARGS)

test-cluster: $(VENV)/.dev  ## the chart in a Kubernetes of its own; builds it first, half an hour; needs root, docker.io, Debian's etcd-server, Go
	@tests/cluster/cluster.sh test tests/cluster $(ARGS)

attack: $(VENV)/.dev  ## attack a running installation from outside: requests, sessions, judges, messages
	@$(BIN)/python -m pytest tests/attack $(ARGS)

# One process per core: these tests wait for nothing.
fast: $(VENV)/.dev  ## the tests that need neither processes nor a broker
	@$(BIN)/python -m pytest -n 2 --dist loadfile tests/unit tests/contract $(ARGS)

golden: $(VENV)/.dev  ## compare public surface, judge input, tables and plans with tests/golden/data
	@$(BIN)/python tests/golden/freeze.py $(ARGS)

history: $(VENV)/.dev  ## store the demo's example history anew, after a change of the tables
	@$(BIN)/python -m tarsy_scoring_lab.history

judge-bench: $(VENV)/.dev  ## compare the report over recorded replies with the stored one; ARGS=--write stores it
	@$(BIN)/python tests/bench_replay.py $(ARGS)

check: $(VENV)/.dev  ## linters, type checker, import rules, generated files, plain English
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python schemas/generate.py --check
	$(BIN)/python .ci/prose.py
	$(BIN)/python .ci/budget.py

audit: $(VENV)/.dev  ## known vulnerabilities in what a deployment installs
	@$(BIN)/python .ci/audit.py

stack: $(VENV)/.demo  ## PostgreSQL, broker and scripted judge for local work; prints the environment
	@$(BIN)/tarsy-scoring stack $(ARGS)

bench: $(VENV)/.dev  ## measure the service beside the bare client; ARGS="--peer ...": and upstream's server
	@$(BIN)/python -m benchmarks.run $(ARGS)

schemas: $(VENV)/.dev  ## generate schemas/, docs/configuration.md and the table of metrics from the code
	$(BIN)/python schemas/generate.py

# Without `--quiet`, which hides the warnings from `--strict` as well.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs
screenshots: $(VENV)/.dev  ## take the pictures of the documentation again (docs/images): after changing a page
	@WRITE_PICTURES=1 $(BIN)/python -m pytest -q tests/browser/test_every_page.py -k a_picture_is_taken $(ARGS)

docs: $(VENV)/.docs  ## build the documentation as a site in build/site; a broken link is an error
	@$(MKDOCS) build --strict --config-file .ci/mkdocs.yml
	@echo "the site is in build/site"

docs-serve: $(VENV)/.docs  ## show the documentation on http://127.0.0.1:8000 while you write it
	@$(MKDOCS) serve --config-file .ci/mkdocs.yml

packages: $(VENV)/.release  ## build wheels and source distributions of both packages in build/dist, and check their descriptions
	@rm -rf build/dist
	@$(BIN)/python -m hatchling build -d build/dist
	@cd service/tarsy_scoring_lab && ../../$(BIN)/python -m hatchling build -d ../../build/dist
	@$(BIN)/twine check --strict build/dist/*

COMPILE := $(BIN)/pip-compile --quiet --generate-hashes --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --strip-extras --allow-unsafe
# The dependencies of the lab without tarsy-scoring itself, which need not be on a package index.
LAB := $(VENV)/lab.in
requirements:  ## pin the requirements again
	$(BIN)/python -m pip install --quiet pip-tools==7.6.2
	$(BIN)/python -c 'import tomllib; print(*(d for d in tomllib.load(open("service/tarsy_scoring_lab/pyproject.toml", "rb"))["project"]["dependencies"] if d != "tarsy-scoring"), sep="\n")' > $(LAB)
	$(COMPILE) --extra=dev --extra=editable --extra=insights --extra=notifications --extra=studies --extra=tracing --output-file=requirements/dev.txt pyproject.toml $(LAB)
	$(COMPILE) --extra=editable --extra=studies --constraint=requirements/dev.txt --output-file=requirements/demo.txt pyproject.toml $(LAB)
	$(COMPILE) --extra=tracing --constraint=requirements/dev.txt --output-file=requirements/runtime.txt pyproject.toml
	$(COMPILE) --extra=insights --extra=notifications --extra=studies --extra=tracing --constraint=requirements/dev.txt --output-file=requirements/extras.txt pyproject.toml
	for group in docs release; do \
	  $(BIN)/python -c 'import sys, tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"][sys.argv[1]], sep="\n")' $$group > $(VENV)/$$group.in; \
	  $(COMPILE) --no-strip-extras --constraint=requirements/dev.txt --output-file=requirements/$$group.txt $(VENV)/$$group.in || exit 1; \
	done

clean:  ## remove the files that targets created
	rm -rf $(VENV) build/site build/dist .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed; run make PYTHON=python3.11 ...")'
	@$(PYTHON) -m venv $(VENV)

# The package itself is installed last and without dependencies, so that only pinned dependencies are used.
$(VENV)/.demo: requirements/demo.txt pyproject.toml service/tarsy_scoring_lab/pyproject.toml | $(BIN)/python
	@echo "installing into $(VENV) ..."
	@$(PIP) -r requirements/demo.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable . --editable service/tarsy_scoring_lab
	@touch $@

$(VENV)/.dev: requirements/dev.txt pyproject.toml service/tarsy_scoring_lab/pyproject.toml | $(BIN)/python
	@echo "installing into $(VENV) ..."
	@$(PIP) -r requirements/dev.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable . --editable service/tarsy_scoring_lab
	@touch $@ $(VENV)/.demo

$(VENV)/.docs: requirements/docs.txt | $(BIN)/python
	@echo "installing MkDocs into $(VENV) ..."
	@$(PIP) -r requirements/docs.txt
	@touch $@

$(VENV)/.release: requirements/release.txt | $(BIN)/python
	@echo "installing the programs of a release into $(VENV) ..."
	@$(PIP) -r requirements/release.txt
	@touch $@
