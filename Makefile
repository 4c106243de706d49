# make setup | demo | test | check | docs | docker-check | wheel-check | bench | lock | audit
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
DEMO := demo
LINKS := .links/noisegate

.PHONY: setup demo test check docs docker-check wheel-check bench lock audit clean

setup: $(STAMP)

# Every package by its digest. First torch's build for CPUs, where pip is told of a place that has it (PIP_FIND_LINKS): of two files
# that a lock allows, pip prefers the package index's, which is built for CUDA and takes gigabytes. Then all that needs no building,
# then the rest. A build for CUDA also needs NVIDIA's libraries, in versions that its wheel names: the fourth line brings these.
$(STAMP): pyproject.toml setup.py constraints.txt requirements.lock requirements-source.lock docker/torch-cpu.lock
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) --require-hashes --no-deps --only-binary :all: --requirement docker/torch-cpu.lock 2>/dev/null || echo "torch: the package index's build"
	$(INSTALL) --require-hashes --no-deps --only-binary :all: --requirement requirements.lock
	$(INSTALL) --require-hashes --no-deps --no-build-isolation --requirement requirements-source.lock
	$(INSTALL) --constraint constraints.txt torch
	$(INSTALL) --no-deps --no-build-isolation --editable .
	$(BIN)/python -m pip check
	touch $@

# The main job on data that needs no download: drawn scenes, 40 % of their captions shuffled, scored, judged.
demo: setup
	$(BIN)/noisegate demo --out $(DEMO)

# With bytecode, or each of the many processes that tests start would compile the package again.
test: setup
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest --numprocesses 3 --dist worksteal

# mypy and import-linter look at paths: .links/noisegate is the package as it is installed.
check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	mkdir -p $(LINKS)
	ln -sfn $(CURDIR)/noisegate/* $(addprefix $(CURDIR)/,pipeline service trainers) $(LINKS)
	$(BIN)/mypy
	cd .links && ../$(BIN)/lint-imports --config ../pyproject.toml

# The documentation as a site below site/; a warning is an error.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

# Dockerfiles, compose, Kubernetes and the workflow against their linters and schemas, with tools of their own.
docker-check:
	PYTHON=$(PYTHON) docker/check

# The wheel in an empty environment and an empty folder. Takes minutes.
wheel-check:
	PYTHON=$(PYTHON) .ci/wheel-check

bench: setup
	$(BIN)/python -m benchmarks.annotate
	$(BIN)/python -m benchmarks.neighbours
	$(BIN)/python -m benchmarks.labels
	$(BIN)/python -m benchmarks.report
	$(BIN)/python -m benchmarks.export
	$(BIN)/python -m benchmarks.verify
	$(BIN)/python -m benchmarks.service
	$(BIN)/python -m benchmarks.train
	$(BIN)/python -m benchmarks.train_data

# After a change of constraints.txt: digests of all files that pip may choose, from the package index.
lock: setup
	$(BIN)/python .ci/lock

# Known vulnerabilities of the pinned packages, asked of the package index by a tool in an environment of its own.
audit:
	test -x build/audit/bin/pip-audit || { $(PYTHON) -m venv build/audit && build/audit/bin/pip install --quiet pip-audit==2.10.1; }
	build/audit/bin/pip-audit --strict --disable-pip --no-deps --requirement constraints.txt

clean:
	rm -rf $(VENV) $(DEMO) build site *.egg-info
