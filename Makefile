# `make demo` and `make test` need only Python 3.11 or later: they install everything else into $(VENV).
PYTHON ?= python3
VENV ?= .venv
FOR_KERNELS := numba numpy safetensors scipy
BIN := $(VENV)/bin
PROCESSES ?= $(shell $(PYTHON) -c 'import os; print(min(4, 2 + (os.cpu_count() or 1)))')

.PHONY: demo test suite test-slow style types kernels bytecode audit docs pictures notebooks dist sbom format clean

# Every process would compile all that it imports, again and again: most of the time of a test that starts a program.
unexport PYTHONDONTWRITEBYTECODE

demo: $(VENV)/.installed
	$(BIN)/fomo-stream demo $(ARGS)

# Two processes more than cores, up to four, with one thread each: tests against a broker mostly wait. A file is run by one
# process, as its tests share a cluster.
# A single file starts sooner without them:
# make test ARGS='-n0 tests/model/test_evidence.py'
# Types are checked where the tests wait.
test:
	$(MAKE) --no-print-directory -j2 suite types

suite: kernels bytecode style
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses $(PROCESSES) --dist loadfile --no-loadscope-reorder -m "not slow" $(ARGS)

# Tests of minutes: faults, and the Helm chart in a cluster (KAFKA_HOME, REGISTRY_HOME, KUBE_HOME). Most of them wait.
test-slow: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder -m slow $(ARGS)

style: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/.installed-dev
	nice $(BIN)/mypy

# Compiles them once, before several processes need them. They need few packages, so that they compile while pip installs
# the others.
kernels: $(VENV)/.installed-for-kernels
	$(BIN)/python -m fomo_stream.loading

# All modules that tests import, likewise: after an installation none is compiled.
bytecode: $(VENV)/.bytecode

$(VENV)/.bytecode: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/pytest -n0 --collect-only --quiet > $@.log || (cat $@.log; false)
	touch $@

audit: $(VENV)/.installed-dev
	$(BIN)/python .ci/audit $(ARGS)

# The documentation as a site, in `site/`.
docs: $(VENV)/.installed-dev
	$(BIN)/mkdocs build

pictures: $(VENV)/.installed-dev
	PYTHONPATH=.:tests $(BIN)/python docs/pictures/make.py

# The notebooks of the examples, from their scripts.
notebooks: $(VENV)/.installed-dev
	$(BIN)/jupytext --quiet --to ipynb --set-kernel python3 --update examples/*.py

# What a release has: the sdist and the wheel, and a list of the software that is installed beside the Python SBOM_OF.
DIST ?= dist
SBOM_OF ?= $(BIN)/python

dist: $(VENV)/.installed-dev
	$(BIN)/python -m build --no-isolation --outdir $(DIST)

sbom: $(VENV)/.installed-dev
	mkdir -p $(DIST)
	$(BIN)/cyclonedx-py environment --output-reproducible --output-file $(DIST)/sbom.cdx.json $(SBOM_OF)

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist site

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fomo-stream needs Python 3.11 or later")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check --upgrade pip # Python's own may be slow to resolve

# Without --no-compile, pip would compile all modules, which takes a minute or more; most of them are never imported.
$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo 'Installing fomo-stream and its dependencies into $(VENV): PyTorch, SciPy, scikit-learn, the Kafka client and others.'
	@echo 'They take about 1.4 GB on disk with a CPU build of PyTorch, and several GB with a CUDA build (the default on Linux).'
	$(BIN)/pip install --progress-bar on --no-compile --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.installed-for-kernels: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt $(FOR_KERNELS)
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed-for-kernels
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@ $(VENV)/.installed
