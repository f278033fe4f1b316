PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ROOMS := losses balance metrics calibrate
CORE := -n 2 --dist loadfile --no-loadscope-reorder -m "not onnx and not spark and not slow"

.DEFAULT_GOAL := help
.PHONY: help install demo test test-times test-all nightly lowest lint bars bench-defaults docs notebooks prose smoke shots wheel coverage mutants bench bench-gpu bench-data fuzz torture golden clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

$(STAMP): pyproject.toml papers/pyproject.toml bench/pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade-strategy only-if-needed -c constraints.txt -e '.[dev]' -e papers -e bench
	@touch $@

install: $(STAMP)  ## create .venv and install everything into it

demo: $(STAMP)  ## the main job on built-in data: long-tailed digit pairs with missing labels
	$(BIN)/steelyard demo

# Files of tests lie in memory, where there is room for them and fsync waits for no disk; Python keeps what it compiled.
test test-times: export PYTEST_DEBUG_TEMPROOT = $(shell df -k /dev/shm 2> /dev/null | awk 'NR == 2 && $$4 > 4000000 {print $$6}')
test test-times: export PYTHONDONTWRITEBYTECODE =
test: $(STAMP)  ## all tests of the core
	$(BIN)/python -m pytest $(CORE) -o tmp_path_retention_policy=failed

test-times: $(STAMP)  ## these, and the processor seconds of the TOP files and tests, whatever else the machine does
	TOP=$(or $(TOP),40) $(BIN)/python -m pytest -p cpu_seconds $(CORE) -o tmp_path_retention_policy=failed

test-all: $(STAMP)  ## these and the long ones: every model through onnxruntime, a real Spark (needs Java)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[spark,huggingface]' polars mlflow
	$(BIN)/python -m pytest

nightly: BASE := $(or $(BASE),$(shell git describe --tags --abbrev=0 2> /dev/null || git rev-parse HEAD~1))
nightly:  ## what takes long: all tests with the slow ones, the lowest versions, golden against BASE (the last tag)
	$(MAKE) test-all
	$(MAKE) lowest
	$(MAKE) golden BASE=$(BASE)

lowest: export PYTEST_DEBUG_TEMPROOT = $(shell df -k /dev/shm 2> /dev/null | awk 'NR == 2 && $$4 > 4000000 {print $$6}')
lowest:  ## the tests of the core with the lowest versions of what it needs, in build/lowest
	$(PYTHON) -m venv build/lowest
	build/lowest/bin/python -m pip install --quiet -c constraints.txt -c constraints-lowest.txt -e '.[report,search,serve,pretrained]' \
		'pytest>=8,<9.2' pytest-xdist hypothesis mpmath httpx
	build/lowest/bin/python -m pip install --quiet --no-deps -e papers -e bench
	build/lowest/bin/python -m pytest -p kept --keep bench/figures/lowest.json tests $(CORE) -o tmp_path_retention_policy=failed

lint: $(STAMP)  ## ruff (rules and format) and the strict type checker
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)  ## losses, metrics and label pairs beside torch, timm and torchmetrics, in one run
	$(BIN)/steelyard bench

bench-gpu: $(STAMP)  ## the same on a GPU, kept in docs/benchmarks; MNIST=folder adds training
	$(BIN)/steelyard bench --device cuda --out docs/benchmarks $(if $(MNIST),--mnist $(MNIST))

bench-defaults: $(STAMP)  ## train as it comes beside logistic regression, trees, MLP and kNN (hours; DATA=folder of the tables, JOBS=processes)
	$(BIN)/python bench/defaults.py --jobs $(or $(JOBS),2) $(if $(DATA),--data $(DATA))

bench-times: $(STAMP)  ## seconds of recipe auto and of linear models beside scikit-learn's (two quiet cores)
	$(BIN)/python bench/race_times.py

bars: $(STAMP)  ## every bar of this round: measured value, pass, fail or not run
	$(BIN)/python bench/bars.py

docs: $(STAMP)  ## the documentation site, links checked, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

notebooks: $(STAMP)  ## run the tutorials, quickstarts and examples, and compare what they print with what they show
	PYTHONPATH=tools $(BIN)/python -m notebooks docs/index.md docs/tutorial.md docs/examples.md docs/start/*.md docs/tutorials/*.md

prose: $(STAMP)  ## count the phrases that nobody outside this project speaks
	$(BIN)/python tools/prose.py

smoke: $(STAMP)  ## every table and figure of the papers on generated data
	$(BIN)/steelyard reproduce all --smoke

shots: $(STAMP)  ## screenshots of the search page, taken anew (needs chromium)
	$(BIN)/python docs/shots.py

bench-data: $(STAMP)  ## ten million rows and items; with FOLDER=folder-of-jpegs also images a second
	$(BIN)/python bench/data_tables.py
	$(BIN)/python bench/data_labels.py
	$(if $(FOLDER),$(BIN)/python bench/data_images.py $(FOLDER))

wheel: $(STAMP)  ## wheel and source archive, in dist/
	$(BIN)/python -m hatchling build

coverage: $(STAMP)  ## lines of losses, balance, metrics and calibrate that the tests reach, those in Triton's interpreter included
	$(BIN)/python -m pip install --quiet -c constraints.txt 'pytest-cov>=7'
	$(BIN)/python -m pytest $(CORE) $(ROOMS:%=--cov=steelyard.%) \
		--cov-report=term-missing:skip-covered --cov-fail-under=98

mutants: $(STAMP)  ## planted faults in losses and metrics, and which the tests find, in docs/mutants.md (hours)
	PYTHONPATH=tools:tests $(BIN)/python -m mutants

fuzz: $(STAMP)  ## FUZZ inputs for every parser and FUZZ/10 cases of losses, in JOBS processes, for MINUTES at most each
	PYTHONPATH=tools:tests $(BIN)/python -m fuzz.campaign --count $(or $(FUZZ),1000) --jobs $(or $(JOBS),2) --minutes $(or $(MINUTES),60) --out build/fuzz/parsers
	PYTHONPATH=tools:tests $(BIN)/python -m fuzz.kernels --count $$(($(or $(FUZZ),1000) / 10)) --jobs $(or $(JOBS),2) --minutes $(or $(MINUTES),60) --out build/fuzz/losses.json

torture: $(STAMP)  ## kills, full disks, damaged files, signals, and what is lost by them (needs cc), in JOBS processes
	PYTHONPATH=tools:tests $(BIN)/python -m torture --seed $(or $(SEED),0) --every $(or $(EVERY),1) --lanes $(or $(JOBS),2) --out docs/torture.md --found bench/figures/torture.json $(if $(ONLY),--only '$(ONLY)')

golden: $(STAMP)  ## compare the work tree with BASE=commit: API, commands, runs, ONNX, search (TOLERANCE=1e-6, ALLOW='transcripts/bench*')
	$(if $(BASE),,$(error give a commit: make golden BASE=main))
	PYTHONPATH=tools $(BIN)/python -m golden --base $(BASE) $(if $(TOLERANCE),--tolerance $(TOLERANCE)) --allow '$(ALLOW)'

clean:  ## remove .venv and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
