# make demo and make test set everything up by themselves; all they need is Python 3.11 or newer.
PYTHON ?= python3
DATASET ?= digits
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# onnxruntime-training owns the same files as onnxruntime.
ORT := .venv-ort
ORT_READY := $(ORT)/.ready
DOCS := .venv-docs
DOCS_READY := $(DOCS)/.ready
AUDIT := .venv-audit
AUDIT_READY := $(AUDIT)/.ready
WITH_ORT := EDGE_FL_ORT_TRAINING_PYTHON=$(CURDIR)/$(ORT)/bin/python

.PHONY: demo check test test-all test-rest test-gpu fuzz lint vectors docs drawing sbom audit clean

# pip compiles no package of test environments: most of torch's files are never read, and Python compiles those that are.
PIP := pip --quiet --disable-pip-version-check install --no-compile

# Tests start hundreds of processes: each leaves the other cores to its neighbours.
check test test-rest: export OMP_NUM_THREADS = 1
# The first process that imports a file compiles it for all later ones.
export PYTHONDONTWRITEBYTECODE =

demo: $(READY)
	$(BIN)/edge-fl demo --dataset $(DATASET)

# A minute: lint, and the tests that need no export, no broker and no process.
check: lint
	$(BIN)/pytest -n 2 --dist worksteal tests/core tests/wire tests/metrics tests/recipes tests/runs tests/transport \
		tests/broker/test_store.py tests/broker/test_tiers.py tests/test_stored_digests.py

# A third process for two cores: fleets wait for sockets and clocks half of their time.
test: lint $(ORT_READY)
	$(WITH_ORT) $(BIN)/pytest -n 3 --dist worksteal

test-all: test test-rest

# What takes longer: whole environments of their own, and every optimiser with every model and runtime,
# every command of the documentation, its site, and what the packages that we name are known for.
test-rest: $(READY) $(ORT_READY) docs sbom audit
	$(WITH_ORT) $(BIN)/pytest -n 2 --dist worksteal -m 'packaging or matrix'

# A few minutes, on a machine with CUDA and whatever torch it has: what trains, sums and evaluates there.
test-gpu:
	$(PYTHON) -m pytest -m gpu tests/gpu tests/aggregation

# Ten million cases, for an hour or two; then every property at 20,000 examples.
fuzz: $(READY) $(ORT_READY)
	$(BIN)/python -m fuzz
	rm -rf $(ORT)/fuzz-bundle
	$(WITH_ORT) $(BIN)/edge-fl export zoo:digits-mlp --runtime ort_training -o $(ORT)/fuzz-bundle
	$(ORT)/bin/python -m fuzz.ort_training $(ORT)/fuzz-bundle
	EDGE_FL_EXAMPLES=20000 $(BIN)/pytest -n 2 --timeout 3600 tests/core tests/wire tests/compressors tests/transport tests/data

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

vectors: $(READY)
	$(BIN)/python scripts/make_vectors.py

# The pages as a site in site/; a warning ends it.
docs: $(DOCS_READY)
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --quiet --strict

# The packages by their imports, from the linter's graph.
drawing: $(READY)
	$(BIN)/python scripts/draw_packages.py docs/assets/packages.svg

# Every package of the environment with its version and license, as CycloneDX in dist/sbom.json.
sbom: $(READY) $(AUDIT_READY)
	mkdir -p dist
	$(AUDIT)/bin/cyclonedx-py environment $(BIN)/python --pyproject pyproject.toml --output-reproducible -o dist/sbom.json

# Known weaknesses of the versions that constraints.txt names; one ends it. It asks pypi.org, and says what it could not.
audit: $(AUDIT_READY)
	$(AUDIT)/bin/pip-audit --no-deps --disable-pip --progress-spinner off -r constraints.txt -r constraints-ort-training.txt

$(READY): pyproject.toml constraints.txt
	sh scripts/check-python "$(PYTHON)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/$(PIP) -c constraints.txt -e '.[dev]'
	touch $(READY)

$(ORT_READY): pyproject.toml constraints-ort-training.txt
	$(PYTHON) -m venv $(ORT)
	$(ORT)/bin/$(PIP) -c constraints-ort-training.txt -e '.[ort-training]'
	touch $(ORT_READY)

$(DOCS_READY): docs/requirements.txt
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/$(PIP) -r docs/requirements.txt
	touch $(DOCS_READY)

$(AUDIT_READY): packaging/audit-requirements.txt
	$(PYTHON) -m venv $(AUDIT)
	$(AUDIT)/bin/$(PIP) -r packaging/audit-requirements.txt
	touch $(AUDIT_READY)

clean:
	rm -rf $(VENV) $(ORT) $(DOCS) $(AUDIT) site
