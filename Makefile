# Each target sets up .venv itself, so a machine needs only make and Python 3.11 or newer:
#   make test                          the first Python found
#   make test PYTHON=/path/to/python   one of your own choice (after make clean, where there is a .venv already)
#   make test ARGS="-k name"           arguments for pytest
#   make test TORCH_INDEX=URL          torch from that index alone, such as PyTorch's of CPU wheels, which are small

VENV := .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip --disable-pip-version-check install -c constraints.txt
PYTHONS := $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11 python)
DEMO := runs/digits
DEMO_MODEL := timm:vit_tiny_patch16_224?pretrained=0&img_size=8&patch_size=2&in_chans=1&embed_dim=72&depth=6&num_heads=6&mlp_ratio=2&num_classes=10
# Tests that run at the same time; each computes on one thread.
JOBS := 2
# The ways of tests/rounding.py.
WAYS := 1 2 3 4 5
PYTEST = $(RUN) -m pytest -n $(JOBS) --dist worksteal

# Many tests start Python: without compiled files each start would compile the whole package anew.
unexport PYTHONDONTWRITEBYTECODE

# Asked alone, and before all else: of two indexes pip takes the higher version, whoever put it there.
# $(1): a Python; $(2): versions.
torch_first = $(if $(TORCH_INDEX),$(1) -m pip --disable-pip-version-check install --index-url "$(TORCH_INDEX)" -c $(2) torch torchvision)

# What the installed wheel is tested with: the commands of the README, and what meets other libraries most.
README_TESTS := tests/test_docs.py -k readme
CORE_TESTS := tests/families/test_contract.py tests/exports tests/verbs
VERSIONS_wheel := cat constraints.txt
VERSIONS_lowest := grep -oE '[A-Za-z0-9_-]+(\[[a-z]+\])?>=[0-9.]+' pyproject.toml | sed -E 's/(\[[a-z]+\])?>=/==/' | sort -u
VERSIONS_newest := true

# The part of a recipe that other commands follow: installed again only when a version or a dependency changed.
READY := $(VENV)/.ready
READY_DEV := $(VENV)/.ready-dev
READY_DOCS := $(VENV)/.ready-docs

.PHONY: help test test-all test-release test-rounding test-elsewhere wheel lowest newest locked lock audit mutations artefacts fuzz demo lint docs site bench clean
.DELETE_ON_ERROR:

help:
	@echo "make test      run the tests, but the long ones"
	@echo "make test-all  run those of make test and the long ones"
	@echo "make test-release  run all tests: those of make test-all, then those for which a release waits"
	@echo "make test-rounding  run those of make test as other machines round; WAYS=\"1 3\" for some of the five ways"
	@echo "make test-elsewhere  run them with other threads, instructions, umask, language, time zone and order"
	@echo "make wheel     build dist/; install the wheel in an environment of its own and test it there"
	@echo "make lowest    the same with the lowest versions that pyproject.toml allows"
	@echo "make newest    the same with the newest versions there are"
	@echo "make locked    the same with packages whose hashes are those of requirements.lock; TORCH=FILE: this wheel of torch"
	@echo "make lock      write requirements.lock anew, from constraints.txt"
	@echo "make audit     ask PyPI for known vulnerabilities of what requirements.lock names"
	@echo "make mutations put defects into the product, one at a time, and see that tests catch them"
	@echo "make artefacts record everything that is written: build/artefacts.json, to compare with another one"
	@echo "make fuzz      read COUNT=100000 broken files of every kind"
	@echo "make demo      train a small model and study it; everything stays under $(DEMO)/"
	@echo "make bench     time the models of the demo at several batch sizes"
	@echo "make lint      style, format and types"
	@echo "make docs      write docs/cli.md from the help texts, docs/schemas/, and the notebook of the tutorial"
	@echo "make site      build the documentation as pages to read in a browser: build/site/index.html"
	@echo "make clean     remove $(VENV), $(DEMO) and caches"
	@echo "PYTHON=...     the Python to set up $(VENV) with (3.11 or newer)"

test: $(READY)
	$(PYTEST) -m "not long" $(ARGS)

# All at once: files whose tests are partly long make what these tests share only once.
test-all: $(READY_DOCS)
	$(PYTEST) -m "not release" $(ARGS)

test-release: test-all
	$(PYTEST) -m release $(ARGS)

# In every way, though one fails.
test-rounding: $(READY)
	@failed=; for way in $(WAYS); do \
	  TESTS_ROUNDING=$$way $(PYTEST) -m "not long" $(ARGS) || failed="$$failed $$way"; \
	done; \
	[ -z "$$failed" ] || { echo "error: the tests failed in the ways:$$failed" >&2; exit 1; }

# OMP_WAIT_POLICY: threads beyond the cores would spin while they wait.
test-elsewhere: $(READY)
	umask 077 && env -u LC_ALL -u LC_CTYPE LANG=C TZ=Pacific/Kiritimati TESTS_REVERSED=1 \
	  OMP_NUM_THREADS=8 OMP_WAIT_POLICY=PASSIVE $(PYTEST) -m "not long" $(ARGS)
	ATEN_CPU_CAPABILITY=default OMP_NUM_THREADS=2 $(PYTEST) -m "not long" $(ARGS)

# The tests that come with the source, of the wheel: nothing of this folder is imported.
wheel lowest newest: $(READY_DEV)
	rm -rf dist build/$@
	$(RUN) -m build
	mkdir -p build/$@
	tar -xzf dist/*.tar.gz -C build/$@ --strip-components 1
	rm -r build/$@/hydractl
	$(VERSIONS_$@) > build/$@/versions.txt
	$(RUN) -m venv build/$@/.venv
	$(call torch_first,build/$@/.venv/bin/python,build/$@/versions.txt)
	cd build/$@ && .venv/bin/python -m pip --disable-pip-version-check install -c versions.txt "$$(ls $(CURDIR)/dist/*.whl)[test]"
	cd build/$@ && .venv/bin/python -m pytest -n $(JOBS) --dist worksteal $(ARGS) $(README_TESTS)
	cd build/$@ && .venv/bin/python -m pytest -n $(JOBS) --dist worksteal $(ARGS) -m "not long" $(CORE_TESTS)

# A constraints file with hashes would forbid "pip install -e .": what is locked comes first, then hydractl alone.
# A wheel of torch that is no wheel of PyPI, such as one for CPUs, is named by a path: it and what PyPI's build brings
# along are then left out of the lock.
locked: $(READY)
	rm -rf build/$@
	mkdir -p build/$@
	$(RUN) -m venv build/$@/.venv
	awk '/^[^ ]/ {left_out = /^(torch==|triton==|cuda-|nvidia-)/} !left_out || "$(TORCH)" == ""' requirements.lock \
	  > build/$@/requirements.txt
	$(if $(TORCH),build/$@/.venv/bin/python -m pip --disable-pip-version-check install --no-deps "$(TORCH)")
	build/$@/.venv/bin/python -m pip --disable-pip-version-check install --require-hashes --no-deps -r build/$@/requirements.txt
	build/$@/.venv/bin/python -m pip --disable-pip-version-check install --no-deps --no-build-isolation -e .
	build/$@/.venv/bin/python -m pip check
	build/$@/.venv/bin/python -m pytest -n $(JOBS) --dist worksteal $(ARGS) $(README_TESTS)

# For every platform and every Python from 3.11 on; the oldest 3.11 that the packages of the documentation take.
lock: $(READY)
	mkdir -p build
	$(PIP) uv
	$(RUN) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' \
	  > build/build.in
	{ echo "# Written by make lock: the versions of constraints.txt, each with the hashes of all its files on PyPI."; \
	  $(RUN) -m uv pip compile pyproject.toml build/build.in --extra test --extra demo --extra dev --extra docs \
	  -c constraints.txt --universal --python-version 3.11.5 --generate-hashes --no-header --no-annotate -q; } > build/requirements.lock
	mv build/requirements.lock requirements.lock

audit: $(READY)
	mkdir -p build/$@
	$(RUN) -m venv build/$@/.venv
	build/$@/.venv/bin/python -m pip --disable-pip-version-check install -q -c constraints.txt pip-audit
	@build/$@/.venv/bin/python -m pip_audit --strict --disable-pip --require-hashes -r requirements.lock \
	  --progress-spinner off > build/$@/log 2>&1 && { cat build/$@/log; exit 0; }; \
	if grep -qE "not found on PyPI|ConnectionError|ConnectTimeout" build/$@/log; then \
	  echo "error: PyPI's advisories cannot be reached from here: nothing was audited" >&2; \
	else cat build/$@/log >&2; fi; exit 1

mutations: $(READY)
	$(RUN) -m tests.mutations $(ARGS)

# python tests/record_artefacts.py --compare OLD.json NEW.json says what a change of the code has changed.
artefacts: $(READY)
	mkdir -p build
	$(RUN) tests/record_artefacts.py build/artefacts.json

fuzz: $(READY)
	$(RUN) -m tests.fuzz.campaign --jobs $(JOBS) --count $(or $(COUNT),100000)

demo: $(DEMO)/base.st
	$(RUN) -m hydractl study $(DEMO)/base.st --train builtin:digits/train --val builtin:digits/val \
	  --ood-val builtin:symbols --test builtin:digits/test \
	  --ood letters:near=builtin:letters --ood photos:far=builtin:photos -o $(DEMO)/study

lint: $(READY_DEV)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

docs: $(READY)
	$(RUN) docs/make_cli.py
	$(RUN) docs/make_schemas.py
	$(RUN) docs/make_notebook.py
	$(RUN) docs/make_results.py
	$(RUN) docs/make_models.py

site: $(READY_DOCS)
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict --config-file docs/site/mkdocs.yml

bench: demo
	$(RUN) -m hydractl bench single=$(DEMO)/base.st fused=$(DEMO)/study/circuits.st \
	  members=$(DEMO)/study/acc@12.st+$(DEMO)/study/ood@12.st+$(DEMO)/study/avg@12.st \
	  --batch-size 1,8,32 -o $(DEMO)/bench-batches.json --force

$(DEMO)/base.st: | $(READY)
	mkdir -p $(DEMO)
	$(RUN) -m hydractl finetune '$(DEMO_MODEL)' --train builtin:digits/train --val builtin:digits/val --epochs 40 \
	  --lr 2e-3 --weight-decay 0.05 --config '{warmup: 0.1, label_smoothing: 0.05}' --resume -o $@

clean:
	rm -rf $(VENV) $(DEMO) build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache
	find hydractl tests examples docs -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt
	@$(RUN) -c 'import pip' 2>/dev/null && exit 0; \
	for python in $(PYTHONS); do \
	  "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
	  "$$python" -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "error: $$python has no venv with pip; install it (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; }; \
	  echo "$(VENV): $$("$$python" --version); the first installation takes a few minutes"; \
	  exec "$$python" -m venv $(VENV); \
	done; \
	echo "error: no Python 3.11 or newer among: $(PYTHONS); name one with PYTHON=/path/to/python" >&2; exit 1
	$(call torch_first,$(RUN),constraints.txt)
	$(PIP) -e ".[test,demo]"
	@touch $@

$(READY_DEV): $(READY)
	$(PIP) -e ".[dev]"
	@touch $@

$(READY_DOCS): $(READY)
	$(PIP) -e ".[docs]"
	@touch $@
