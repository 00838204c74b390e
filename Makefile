# Every target makes the virtual environment it needs: `make test` works on a fresh machine.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# One more than CI has processors: tests wait for the processes that they start.
JOBS ?= 3

# Interpreters that the tests start are to find compiled modules, whatever the environment says.
unexport PYTHONDONTWRITEBYTECODE

# The agent frameworks in their newest and oldest versions, each set in an environment of its own.
FRAMEWORKS := .venv-frameworks
VERSIONS := newest oldest oldest-sdks oldest-pydantic-ai

# Tests with a target of their own: CI runs them, and whoever changes a page, a type, the rewrite, how
# calls are matched, or what they cost.
OF_DOCS := $(filter-out %/test_readme.py %/test_promises.py %/test_coverage.py,$(wildcard tests/docs/test_*.py))
OF_TYPES := tests/test_typing.py
OF_FRAMEWORKS := tests/frameworks
OF_BROWSER := tests/ui/browser
OF_PROGRAMS := tests/rewrite/test_rewrite_cpython.py $(addprefix tests/crash/test_,teleports.py equivalence.py identity_programs.py)
OF_COSTS := tests/calls/test_instructions.py
OF_WASM := $(addprefix tests/rewrite/test_,rewrite.py blocks.py source.py) tests/journal/test_ledger.py \
	$(addprefix tests/journal/test_archive.py::test_,nothing_of_it_is_damaged what_was_killed_goes_on)

.PHONY: help install browser test-ui pictures-ui test test-fast test-all test-programs test-costs test-wasm environments test-frameworks test-cluster frameworks-table sweeps mutants map lint format types wheel examples demo clean
.PHONY: bench bench-peers bench-page conformance pictures screenshots docs

help:  ## show this
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: $(VENV)/installed  ## make the virtual environment

$(VENV)/installed: setup.cfg pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[test]"
	@touch $@

test: install  ## run the tests; sweeps are sampled (pages: make docs; types: make types; frameworks: make test-frameworks; CPython's own, and random programs: make test-programs; instructions: make test-costs)
	$(BIN)/python -m pytest -n $(JOBS) --dist=worksteal -q $(addprefix --ignore=,$(OF_DOCS) $(OF_TYPES) $(OF_FRAMEWORKS) $(OF_PROGRAMS) $(OF_COSTS) $(OF_BROWSER))

test-fast: install  ## run what is quick, for the daily loop: no sweeps, no kernels, no programs that are killed
	$(BIN)/python -m pytest -n $(JOBS) --dist=worksteal -q --fast

test-all: install  ## run the tests; sweeps are complete, or 20 times as large (hours)
	STEPWISE_WHOLE=1 $(BIN)/python -m pytest -n $(JOBS) --dist=worksteal -q
	STEPWISE_WHOLE=1 $(MAKE) test-frameworks
	STEPWISE_WHOLE=1 $(MAKE) test-cluster

test-programs: install  ## run programs of others and at random: CPython's own tests through the rewrite, calls of libraries, crashed programs
	$(BIN)/python -m pytest -n $(JOBS) --dist=worksteal -q $(OF_PROGRAMS)

test-costs: install  ## count the instructions of steps and of a start (needs valgrind): none is above its ceiling
	$(BIN)/python -m pytest -n 2 --dist=load -q $(OF_COSTS)

# Every version is pinned, so that pip has nothing to resolve: left to itself, it takes 20 minutes.
$(FRAMEWORKS)/%/installed: tests/frameworks/environments/%.txt setup.cfg
	$(PYTHON) -m venv --clear $(FRAMEWORKS)/$*
	$(FRAMEWORKS)/$*/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement $<
	$(FRAMEWORKS)/$*/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

environments: $(VERSIONS:%=$(FRAMEWORKS)/%/installed) .venv-cluster/installed  ## install what the tests of frameworks, Postgres and Ray need

test-frameworks: $(VERSIONS:%=$(FRAMEWORKS)/%/installed)  ## run the tests of agent frameworks: newest versions, and fewer with the oldest
	$(FRAMEWORKS)/newest/bin/python -m pytest -n $(JOBS) --dist=loadscope -q $(OF_FRAMEWORKS)
	set -e; for each in $(filter-out newest,$(VERSIONS)); do echo "$$each:"; STEPWISE_SCALE=0.6 STEPWISE_SEED=0 \
		$(FRAMEWORKS)/$$each/bin/python -m pytest -n $(JOBS) --dist=loadscope -q $(OF_FRAMEWORKS); done

# A server and a cluster are large: an environment of their own, so that the other tests stay fast.
.venv-cluster/installed: setup.cfg
	$(PYTHON) -m venv --clear .venv-cluster
	.venv-cluster/bin/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	.venv-cluster/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[test-cluster]"
	@touch $@

test-cluster: .venv-cluster/installed  ## run the tests with a real Postgres server and a real Ray cluster
	.venv-cluster/bin/python -m pytest -n $(JOBS) --dist=loadgroup -q tests/postgres
	.venv-cluster/bin/python -m pytest -q tests/cluster

# CPython 3.14, compiled to WebAssembly: no processes, no threads, no compiled packages.
.venv-wasm/installed: setup.cfg | install
	npm install --silent --prefix .venv-wasm pyodide@314.0.7
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --target .venv-wasm/site . pytest hypothesis==6.155.7
	@touch $@

test-wasm: .venv-wasm/installed  ## run the tests that need no process on CPython 3.14, as npm's pyodide has it
	node --stack-size=6000 tests/programs/wasm.mjs .venv-wasm .venv-wasm/site -- -q $(OF_WASM)

frameworks-table: $(FRAMEWORKS)/newest/installed  ## the same, and what came of it into docs/reference/frameworks.md (STEPWISE_WHOLE=1)
	$(FRAMEWORKS)/newest/bin/python tests/frameworks/table.py -n $(JOBS)

# Debian's chromium; where it cannot be installed, a sentence says how, and the tests skip.
browser: install
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[test-ui]"
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && \
		timeout 600 sh -c "apt-get update -q && apt-get install -y -q chromium" >/dev/null 2>&1; } || \
		echo "there is no chromium here: run make test-ui as root, or apt-get install chromium"

test-ui: browser  ## run the tests of the pages in a real browser
	$(BIN)/python -m pytest -n $(JOBS) --dist=worksteal -q $(OF_BROWSER)

sweeps: install  ## the failure sweeps: the totals into docs/reliability.md (STEPWISE_SCALE=5)
	$(BIN)/python tests/sweeps.py -n $(JOBS)

mutants: install  ## change the library in one place after another: tests must fail (ONLY="group _frames")
	$(BIN)/python tests/mutants/run.py -n $(JOBS) $(ONLY)

map: install  ## draw the rooms of the house: docs/house.md; and write the tables of docs/reference (SINCE=COMMIT: print its size then and now)
ifdef SINCE
	@$(BIN)/python tests/house.py --since $(SINCE)
else
	$(BIN)/python docs/from_code.py
	@mkdir -p docs/pictures
	$(BIN)/python tests/house.py --picture docs/pictures/house.svg > docs/house.md
endif

screenshots: install  ## show an exported run in chromium, light and dark, wide and narrow: build/screenshots/
	$(BIN)/python tests/display/screenshots.py build/screenshots

docs: $(VENV)/docs  ## build the site, build/docs/index.html, and execute what the pages show
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --nitpicky --quiet --fresh-env docs build/docs
	@$(BIN)/python tests/docs/coverage_of_pages.py > build/documented.txt || (grep NOWHERE build/documented.txt; false)
	$(BIN)/python -m pytest -n $(JOBS) --dist=worksteal -q $(OF_DOCS)

$(VENV)/docs: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[docs]"
	@touch $@

lint: install  ## check layout and style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: install  ## put layout and style right where a machine can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: install  ## check the types, strictly, and what type checkers say of programs of users
	$(BIN)/mypy
	$(BIN)/python -m pytest -n $(JOBS) --dist=worksteal -q $(OF_TYPES)

wheel: install  ## build the wheel, and use it in a clean environment
	$(PYTHON) .ci/wheel.py $(BIN)/python

examples: install  ## run the examples, each killed once and run again
	$(BIN)/python -m pytest -n $(JOBS) -q tests/docs/test_examples.py

demo: install  ## see a program killed in the middle, run again, and go on
	$(BIN)/stepwise demo

bench: install  ## measure against the limits, print what users feel; docs/benchmarks.md (QUICK=--quick, SHOWN=--shown)
	$(BIN)/python benchmarks/bench.py $(QUICK) $(SHOWN)

bench-peers: install  ## the same, and other libraries, each in its own environment (GO_ON=--go-on)
	$(BIN)/python benchmarks/bench.py --peers $(QUICK) $(GO_ON)

conformance: install  ## what libraries hold of "Resume Means Resume", with real kills; docs/conformance.md (QUICK=--quick tries it, and writes nothing)
	$(BIN)/python benchmarks/conformance/conformance.py $(QUICK) --json benchmarks/conformance/results.json --page docs/conformance.md

bench-page: install  ## write docs/benchmarks.md again, of the figures that there are
	$(BIN)/python benchmarks/page.py

pictures: install  ## draw the pictures of the pages: docs/pictures/*.svg
	$(BIN)/python docs/pictures.py

pictures-ui: browser  ## take the pictures of the pages of runs: docs/pictures/ui-*.png
	$(BIN)/python tests/ui/browser/pictures.py docs/pictures

clean:  ## remove what the other targets made
	rm -rf $(VENV) $(FRAMEWORKS) .venv-wasm build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
