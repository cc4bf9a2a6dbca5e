# Every command of the house. Each makes the virtual environments that it needs under .venv/, from
# PyPI alone; a second call is quick.
#
#   make demo        two engines in two processes, real NIXL, every byte verified
#   make test        linters, types and the whole test suite
#   make test-peers  other people's planners, pools and tensors as oracles (PyTorch, SGLang)
#   make test-hard   the suite again under the checked and the sanitizer build, with an old NIXL,
#                    on other Pythons; sdist and wheel from a bare environment; test-peers
#   make test-mutants  bugs of one line, planted one at a time: the tests must notice (PLANTED=200 SEED=1)
#   make docs        the API reference and drawings of plans, in build/docs
#   make bench       the ratios against plain NumPy
#   make test-vllm   real vLLM engines on this machine's CPU, with nixldesc inside (integrations/vllm)
#   make clean       away with all of it
#
# PYTHON=python3.10 make test      another interpreter, an environment of its own
# make test ARGS='-k layout -x'    more words for pytest (of every target that runs it)

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.NOTPARALLEL:

PYTHON ?= python3
ARGS ?=

NIXL := 1.5.1
# The last NIXL without N x 5 lists: the adapter falls back to N x 3.
OLD_NIXL := 1.4.1
# Whom `test-peers` asks. A CPU build of PyTorch does.
TORCH := 2.13.0
SGLANG := 0.5.23
MOONCAKE := 0.3.13.post1
MODEL_EXPRESS := 0.7.0
# How many inputs for `test-fuzz`.
INPUTS ?= 300000
# How many bugs for `test-mutants`, and from which seed (none: another one each time; it is printed). Seconds of the
# processor for `test-cost`.
PLANTED ?= 200
SEED ?=
SECONDS_OF_SEARCH ?= 180
# The oldest NumPy that is promised, and the Pythons of the classifiers.
OLD_NUMPY := 1.26.4
PYTHONS := 3.10 3.11 3.12 3.13

# Each pip installs lint and test tools in the versions that stand there.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt

# An interpreter that the PATH names but does not run (pyenv) is looked for.
PY := $(shell if $(PYTHON) -c '' 2>/dev/null; then echo '$(PYTHON)'; else .ci/find-python $(PYTHON:python%=%); fi)
# "3.11", "3.14t": names the environments.
V := $(shell test -z '$(PY)' || $(PY) -c 'import sys; print("%d.%d" % sys.version_info[:2] + sys.abiflags)')
ifeq ($(V),)
$(error there is no '$(PYTHON)' here: name an interpreter, PYTHON=python3.12)
endif

# What an installed copy is made of; an editable one needs only the first line.
BUILT := setup.py pyproject.toml nixldesc/_version.py $(wildcard nixldesc/kernels/*.p*)
SOURCES := $(BUILT) $(shell find nixldesc -name '*.py' -o -name '*.pyi')

.PHONY: demo test test-hard bench clean docs lint types
.DEFAULT_GOAL := help
.PHONY: help
help:
	@sed -n '2,/^$$/s/^# \{0,1\}//p' Makefile


# ---------------------------------------------------------------- environments

# $(call venv,EXTRA,NIXL VERSION): the environment that the target's first folder names: what builds
# the library, the extra's packages (through an editable or a wheel install later) and NIXL. Without
# its dependencies, for they are a CUDA build of PyTorch, and NIXL runs without.
define venv
	@echo '== making $(@D)'
	rm -rf $(@D)
	$(PY) -m venv $(@D)
	$(@D)/bin/pip install -q 'setuptools >= 77' 'cython >= 3.1'
	$(call nixl,$(1))
	touch $@
endef

# NIXL has wheels for Linux and for CPythons with a GIL. Where it has one it must be importable, so
# that no test of a real transfer is skipped unseen.
define nixl
	@if test "$$(uname -s)" = Linux && [[ '$(V)' != *t ]]; then \
	    $(@D)/bin/pip install -q --no-deps nixl==$(1) nixl-cu12==$(1) 'numpy >= 1.26'; \
	    $(@D)/bin/python -c 'import nixl._api'; \
	else echo 'NIXL has no wheel for this machine: real transfers are skipped'; fi
endef

.PRECIOUS: .venv/%/made .venv/%/installed

.venv/nixl-$(OLD_NIXL)-$(V)/made: Makefile
	$(call venv,$(OLD_NIXL))
.venv/%/made: Makefile
	$(call venv,$(NIXL))

# Editable: the two that a developer uses all day.
.venv/demo-$(V)/installed: .venv/demo-$(V)/made $(BUILT)
	$(@D)/bin/pip install -q --prefer-binary --no-build-isolation -e '.[cli]'
	touch $@
.venv/test-$(V)/installed: .venv/test-$(V)/made $(BUILT) constraints.txt
	$(@D)/bin/pip install -q --prefer-binary --no-build-isolation -e '.[test,lint]'
	touch $@
.venv/docs-$(V)/installed: .venv/docs-$(V)/made $(BUILT) constraints.txt
	$(@D)/bin/pip install -q --prefer-binary --no-build-isolation -e '.[docs]'
	touch $@
.venv/bench-$(V)/installed: .venv/bench-$(V)/made $(BUILT)
	$(@D)/bin/pip install -q --prefer-binary --no-build-isolation -e '.[bench]'
	touch $@

# Wheels: what users get, and the two builds that check themselves.
define install
	rm -rf build/$(1)
	NIXLDESC_BUILD=$(1) $(@D)/bin/pip install -q --prefer-binary --no-build-isolation '.[test]'
	touch $@
endef
.venv/checked-$(V)/installed: .venv/checked-$(V)/made $(SOURCES)
	$(call install,checked)
.venv/asan-$(V)/installed: .venv/asan-$(V)/made $(SOURCES)
	$(call install,asan)
.venv/nixl-$(OLD_NIXL)-$(V)/installed: .venv/nixl-$(OLD_NIXL)-$(V)/made $(SOURCES)
	$(call install,release)
.venv/wheel-$(V)/installed: .venv/wheel-$(V)/made $(SOURCES)
	$(call install,release)
.venv/numpy-$(OLD_NUMPY)-$(V)/installed: .venv/numpy-$(OLD_NUMPY)-$(V)/made $(SOURCES)
	$(@D)/bin/pip install -q numpy==$(OLD_NUMPY)
	$(call install,release)
	$(@D)/bin/python -c "import numpy; assert numpy.__version__ == '$(OLD_NUMPY)', numpy.__version__"

# The peers without their dependencies: of SGLang one module is read out of its wheel, of Mooncake the planner.
.venv/peers-$(V)/installed: .venv/peers-$(V)/made $(BUILT)
	$(@D)/bin/pip install -q --prefer-binary --no-build-isolation -e '.[test]'
	$(@D)/bin/pip install -q torch==$(TORCH) msgspec
	$(@D)/bin/pip install -q --no-deps mooncake-transfer-engine==$(MOONCAKE) \
	    || echo 'Mooncake has no wheel for this machine: its tests are skipped'
	{ $(@D)/bin/pip install -q --no-deps modelexpress==$(MODEL_EXPRESS) \
	    && $(@D)/bin/pip install -q --prefer-binary grpcio 'protobuf < 7' zstandard pydantic huggingface_hub; } \
	    || echo 'ModelExpress has no wheel for this machine: its tests are skipped'
	rm -rf $(@D)/sglang && mkdir $(@D)/sglang
	if $(@D)/bin/pip download -q --no-deps --only-binary :all: -d $(@D)/sglang sglang==$(SGLANG); \
	then $(@D)/bin/python -m zipfile -e $(@D)/sglang/sglang-*.whl $(@D)/sglang; \
	else echo 'SGLang has no wheel for this machine: its tests are skipped'; fi
	touch $@


# ---------------------------------------------------------------- every day

demo: .venv/demo-$(V)/installed
	.venv/demo-$(V)/bin/python -m nixldesc demo

test: lint types
	.venv/test-$(V)/bin/pytest $(ARGS)

lint: .venv/test-$(V)/installed
	.venv/test-$(V)/bin/ruff check
	PATH="$$PWD/.venv/test-$(V)/bin:$$PATH" cython-lint nixldesc

types: .venv/test-$(V)/installed
	.venv/test-$(V)/bin/mypy
	.venv/test-$(V)/bin/stubtest nixldesc.kernels._kernels

bench: .venv/bench-$(V)/installed
	.venv/bench-$(V)/bin/python bench/ratios.py

docs: .venv/docs-$(V)/installed
	rm -rf build/docs && mkdir -p build
	.venv/docs-$(V)/bin/python docs/build.py build/docs

clean:
	rm -rf .venv build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache .coverage
	find nixldesc -name '*.so' -delete
	find . -name __pycache__ -prune -exec rm -rf {} +


# ---------------------------------------------------------------- inside a real engine

# An environment of its own (set up in about 5 minutes, 3 GB), then about half an hour on two busy cores.
# A part of it, some suites: make test-vllm ARGS='engines hybrid'
.PHONY: test-vllm
test-vllm: .venv/vllm-$(V)/installed
	nice integrations/vllm/test.sh .venv/vllm-$(V) build/vllm $(ARGS)

.venv/vllm-$(V)/made: integrations/vllm/setup.sh integrations/vllm/models.py
	integrations/vllm/setup.sh $(@D) '$(PY)'
	touch $@
.venv/vllm-$(V)/installed: .venv/vllm-$(V)/made $(BUILT)
	$(@D)/bin/pip install -q --no-deps --no-build-isolation -e .
	touch $@


# ---------------------------------------------------------------- the hard way

.PHONY: test-checked test-asan test-fuzz test-cost test-mutants test-dozen-mutants test-old-nixl test-old-numpy
.PHONY: test-peers test-wheel test-dist test-pythons
test-hard: test-checked test-asan test-fuzz test-cost test-dozen-mutants test-old-nixl test-old-numpy test-peers \
    test-dist test-pythons

# $(call suite,ENVIRONMENT,VARIABLES,WHAT): the suite against an installed copy, from a folder that
# holds no nixldesc, so that the sources cannot stand in for it.
define suite
	mkdir -p build/run
	cd build/run && env $(2) ../../.venv/$(1)-$(V)/bin/pytest -c ../../pyproject.toml --rootdir ../.. $(3) $(ARGS)
endef
EVERYTHING := --pyargs nixldesc ../../tests

test-checked: .venv/checked-$(V)/installed
	$(call suite,checked,NIXLDESC_BUILD=checked,$(EVERYTHING))

# The sanitizers' libraries must be loaded before Python; libstdc++ too, or they do not find C++
# exceptions (NIXL throws some). Python itself leaks at its end, so leaks are not looked for. With
# PYTHONMALLOC=malloc each Python object has red zones around it. NIXL's plugin for objects frees with
# free() what it has made with new, which is none of ours: we have no C++.
test-asan: .venv/asan-$(V)/installed
	rm -f build/run/sanitizer.*
	$(call suite,asan,NIXLDESC_BUILD=asan PYTHONMALLOC=malloc \
	    ASAN_OPTIONS=detect_leaks=0:alloc_dealloc_mismatch=0:log_path=sanitizer UBSAN_OPTIONS=print_stacktrace=1:log_path=sanitizer \
	    LD_PRELOAD="$$(for lib in asan ubsan stdc++; do gcc -print-file-name=lib$$lib.so; done | xargs)" \
	    ,$(EVERYTHING)) || { cat sanitizer.* >&2; exit 1; }

# A stranger's metadata, changed a little, time and again (a million: INPUTS=1000000).
test-fuzz: .venv/checked-$(V)/installed
	mkdir -p build/run
	cd build/run && ../../.venv/checked-$(V)/bin/python ../../tests/hard/fuzz_stranger.py $(INPUTS)

# Small messages that cost much: the known ones, then a search for others.
test-cost: .venv/test-$(V)/installed
	.venv/test-$(V)/bin/python tests/hard/search_cost.py $(SECONDS_OF_SEARCH) $(or $(SEED),1)

# Bugs of one line, planted one at a time: the tests must notice.
test-mutants: .venv/test-$(V)/installed
	.venv/test-$(V)/bin/python tests/hard/mutants.py $(PLANTED) $(SEED)
test-dozen-mutants: .venv/test-$(V)/installed
	.venv/test-$(V)/bin/python tests/hard/mutants.py 12 $(SEED)

# The oldest NumPy that is promised has wheels for CPython up to 3.12.
test-old-numpy:
	@if [[ ' 3.10 3.11 3.12 ' == *' $(V) '* ]]; then \
	    $(MAKE) --no-print-directory .venv/numpy-$(OLD_NUMPY)-$(V)/installed; \
	    mkdir -p build/run; cd build/run; ../../.venv/numpy-$(OLD_NUMPY)-$(V)/bin/pytest -c ../../pyproject.toml \
	        --rootdir ../.. ../../tests/memory ../../tests/planning ../../tests/request $(ARGS); \
	else echo '== skipped: NumPy $(OLD_NUMPY) has no wheel for CPython $(V)'; fi

# Without the benchmarks: their baselines are N x 5 lists.
test-old-nixl: .venv/nixl-$(OLD_NIXL)-$(V)/installed
	$(call suite,nixl-$(OLD_NIXL),NIXLDESC_NIXL=$(OLD_NIXL),$(EVERYTHING) --ignore ../../tests/house/test_bench.py)

test-peers: .venv/peers-$(V)/installed
	NIXLDESC_SGLANG="$$PWD/.venv/peers-$(V)/sglang" .venv/peers-$(V)/bin/pytest tests/peers $(ARGS)

test-wheel: .venv/wheel-$(V)/installed
	$(call suite,wheel,,$(EVERYTHING))

# Each Python of the classifiers, and a newer and a free-threaded one where this machine has them.
test-pythons:
	for wanted in $(PYTHONS) '3.14' '3.14t 3.13t'; do \
	    found=; \
	    for version in $$wanted; do \
	        if found=$$(.ci/find-python $$version); then break; fi; \
	    done; \
	    if test -z "$$found"; then echo "== skipped: no CPython $${wanted// / or } on this machine"; \
	    elif test $$version = '$(V)'; then echo "== CPython $$version is the one already tested"; \
	    else echo "== CPython $$version"; $(MAKE) --no-print-directory test-wheel PYTHON=$$found; fi; \
	done

# An sdist from a bare environment, a wheel from nothing but the sdist, and a look at both; then the
# wheel alone in another bare environment, where it may bring in NumPy and nothing else.
test-dist:
	rm -rf dist .venv/dist-$(V) .venv/bare-$(V)
	$(PY) -m venv .venv/dist-$(V)
	.venv/dist-$(V)/bin/pip install -q build auditwheel
	.venv/dist-$(V)/bin/python -m build --sdist --outdir dist . > /dev/null
	.venv/dist-$(V)/bin/pip wheel -q --no-deps --wheel-dir dist dist/nixldesc-*.tar.gz
	.venv/dist-$(V)/bin/auditwheel show dist/nixldesc-*.whl
	$(PY) -m venv .venv/bare-$(V)
	.venv/bare-$(V)/bin/pip install -q dist/nixldesc-*.whl
	mkdir -p build/run && cd build/run && ../../.venv/bare-$(V)/bin/python ../../.ci/bare.py
