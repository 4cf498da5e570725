# lsdflow: make setup | demo | test | test-all | check | lock | clean.   `make help` lists all.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3.11
UV := .venv/tools/bin/uv

# There are two environments, because gunpowder 1.4.4 (training) needs zarr < 3 and everything else uses zarr 3. They
# share only files on disk.
# The stages of stages.toml whose line has these words.
STAGES_WITH = $(shell sed -nE '/$(1)/s/^([a-z-]+) = .*/\1/p' stages/_contract/src/lsdflow_contract/stages.toml)
BLOCKS_STAGES := $(call STAGES_WITH,environment = "blocks")
TRAINING_STAGES := $(call STAGES_WITH,environment = "training")
TORCH_STAGES := $(call STAGES_WITH,gpu = true)
PLAIN_STAGES := $(filter-out $(TORCH_STAGES),$(BLOCKS_STAGES))
BLOCKS_PACKAGES := _contract _command _runtime _network _metrics _descriptors _launch $(BLOCKS_STAGES)
TRAINING_PACKAGES := _contract _command _network _training _importers $(TRAINING_STAGES)
TENSORFLOW_PACKAGES := $(TRAINING_PACKAGES) _tensorflow
VIEW_PACKAGES := _contract _command _runtime _view
LONGEST_TESTS := tests/pipeline tests/faults tests/runtime
SHORTER_TESTS = $(filter-out %/__pycache__ tests/plugins $(LONGEST_TESTS) $(CORE_BLOCKS) $(TRAINING_TESTS) $(TENSORFLOW_TESTS) $(VIEW_TESTS) $(BROWSER_TESTS) $(DOCS_TESTS),$(patsubst %/,%,$(wildcard tests/*/)))
TRAINING_TESTS := tests/distributed tests/faults/training tests/training tests/stages/train-lsd tests/stages/train-acrlsd
TENSORFLOW_TESTS := tests/tensorflow
BROWSER_TESTS := tests/browser
VIEW_TESTS := tests/view

# The variant of torch: cuda if a driver is present, else cpu. Override with TORCH=cpu, TORCH=cuda, or TORCH=cuda12 for
# drivers older than 580.
TORCH ?= $(shell command -v nvidia-smi >/dev/null 2>&1 && echo cuda || echo cpu)
WHEELS ?= $(PIP_FIND_LINKS)
# A local CPU wheel is used if there is one; otherwise uv uses PyTorch's own CPU index.
LOCAL_TORCH := $(if $(WHEELS),$(wildcard $(WHEELS)/torch-*cpu*.whl))
CPU_TORCH_OPTION := $(if $(LOCAL_TORCH),--find-links $(WHEELS),--torch-backend cpu)
TORCH_OPTION := $(if $(filter cpu,$(TORCH)),$(CPU_TORCH_OPTION))

BLOCKS_LOCKS := $(foreach s,_launch $(PLAIN_STAGES),stages/$(s)/requirements.lock) $(foreach s,$(filter $(TORCH_STAGES),$(BLOCKS_STAGES)),stages/$(s)/$(TORCH).lock) tests/blocks.lock
TRAINING_LOCKS := $(foreach s,$(TRAINING_STAGES),stages/$(s)/$(TORCH).lock) tests/training.lock
# The lock of tensorflow contains that of the training stages. stages/_tensorflow/cuda.lock is for images only.
TENSORFLOW_LOCKS := stages/_tensorflow/cpu.lock tests/training.lock
LSDS_LOCK := stages/_training/lsds.lock
VIEW_LOCKS := stages/_view/requirements.lock tests/blocks.lock

export NUMBA_CACHE_DIR ?= $(CURDIR)/.cache/numba
# Python must store its bytecode, even if the shell forbids it; without it, every command starts seconds later.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: capabilities help setup setup-mlflow setup-tensorflow setup-view demo demo-network test test-all test-core test-package known-package test-avx2 test-blocks test-training test-tensorflow test-view test-browser screenshots test-real test-faults faults-release faults-baselines check check-types stages format lock clean bench bench-gpu bench-networks bench-quality bench-labelled bench-round gpu-bundle

help:  ## show this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

include containers/containers.mk compose/compose.mk tests/cluster/cluster.mk docs/docs.mk tests/parts.mk

# A correct link is not replaced, because a running command may use it.
LINK = [[ $$(readlink $(2)) == $(1) ]] || ln -sfn $(1) $(2)
# Each environment also links to the commands of the other, so that all are found when either is activated.
setup: .venv/blocks/.installed .venv/training/.installed  ## create the environments and link every command in bin/
	@mkdir -p bin
	@for c in lsdflow $(BLOCKS_STAGES); do $(call LINK,../.venv/blocks/bin/$$c,bin/$$c); $(call LINK,../../blocks/bin/$$c,.venv/training/bin/$$c); done
	@for c in $(TRAINING_STAGES); do $(call LINK,../.venv/training/bin/$$c,bin/$$c); $(call LINK,../../training/bin/$$c,.venv/blocks/bin/$$c); done

$(UV):
	$(PYTHON) -m venv .venv/tools
	.venv/tools/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement containers/installer.lock

.venv/blocks/.installed: $(UV) $(BLOCKS_LOCKS) $(foreach p,$(BLOCKS_PACKAGES),stages/$(p)/pyproject.toml)
	@echo "environment for the block stages (torch: $(TORCH))"
	$(UV) venv --quiet --clear --python $(PYTHON) .venv/blocks
	$(UV) pip sync --quiet --python .venv/blocks/bin/python --require-hashes $(TORCH_OPTION) $(BLOCKS_LOCKS)
	$(UV) pip install --quiet --python .venv/blocks/bin/python --no-deps --no-build-isolation $(foreach p,$(BLOCKS_PACKAGES),-e stages/$(p))
	@touch $@

# lsds is published as source only. It is built without its compiled module, which lsdflow does not use, so no compiler
# is needed.
INSTALL_LSDS = PYTHONPATH=$(CURDIR)/containers/without_cython $(UV) pip install --quiet --python .venv/$(1)/bin/python --no-deps --no-build-isolation --no-binary lsds --require-hashes --requirement $(LSDS_LOCK)

.venv/training/.installed: $(UV) $(TRAINING_LOCKS) $(LSDS_LOCK) $(foreach p,$(TRAINING_PACKAGES),stages/$(p)/pyproject.toml)
	@echo "environment for the training stages (torch: $(TORCH))"
	$(UV) venv --quiet --clear --python $(PYTHON) .venv/training
	$(UV) pip sync --quiet --python .venv/training/bin/python --require-hashes $(TORCH_OPTION) $(TRAINING_LOCKS)
	$(call INSTALL_LSDS,training)
	$(UV) pip install --quiet --python .venv/training/bin/python --no-deps --no-build-isolation $(foreach p,$(TRAINING_PACKAGES),-e stages/$(p))
	@touch $@

# Only needed to log to MLflow. When the environment is created again, the client and its marker are gone.
setup-mlflow: setup .venv/training/.mlflow  ## add MLflow's client to .venv/training, for the option `mlflow`

.venv/training/.mlflow: stages/_training/mlflow.lock .venv/training/.installed
	$(UV) pip install --quiet --python .venv/training/bin/python --no-deps --require-hashes --requirement $<
	@touch $@

# Only needed to train with backend = "tensorflow".
setup-tensorflow: .venv/tensorflow/.installed  ## create .venv/tensorflow, the optional environment for backend = "tensorflow"

.venv/tensorflow/.installed: $(UV) $(TENSORFLOW_LOCKS) $(LSDS_LOCK) $(foreach p,$(TENSORFLOW_PACKAGES),stages/$(p)/pyproject.toml)
	@echo "environment for training with tensorflow (CPU)"
	$(UV) venv --quiet --clear --python $(PYTHON) .venv/tensorflow
	$(UV) pip sync --quiet --python .venv/tensorflow/bin/python --require-hashes $(CPU_TORCH_OPTION) $(TENSORFLOW_LOCKS)
	$(call INSTALL_LSDS,tensorflow)
	$(UV) pip install --quiet --python .venv/tensorflow/bin/python --no-deps --no-build-isolation $(foreach p,$(TENSORFLOW_PACKAGES),-e stages/$(p))
	@touch $@

# Only needed to view volumes (lsdflow view) or to export them.
setup-view: .venv/view/.installed  ## create .venv/view, the optional environment for `lsdflow view` and exports
	@mkdir -p bin
	@$(call LINK,../.venv/view/bin/lsdflow-view,bin/lsdflow-view)

.venv/view/.installed: $(UV) $(VIEW_LOCKS) $(foreach p,$(VIEW_PACKAGES),stages/$(p)/pyproject.toml)
	@echo "environment for viewers and exports"
	$(UV) venv --quiet --clear --python $(PYTHON) .venv/view
	$(UV) pip sync --quiet --python .venv/view/bin/python --require-hashes $(VIEW_LOCKS)
	$(UV) pip install --quiet --python .venv/view/bin/python --no-deps --no-build-isolation $(foreach p,$(VIEW_PACKAGES),-e stages/$(p))
	@touch $@

# Other programs that read exported volumes in the tests. They need an older pydantic than lsdflow.
.cache/readers/.installed: $(UV) tests/view/readers.lock
	@echo "environment for readers of exports"
	$(UV) venv --quiet --clear --python $(PYTHON) .cache/readers
	$(UV) pip sync --quiet --python .cache/readers/bin/python --require-hashes tests/view/readers.lock
	@touch $@

# The tests open reports and viewers in Debian's Chromium. This environment contains no lsdflow package.
.venv/browser/.installed: $(UV) tests/browser/requirements.lock
	@echo "environment for tests in a browser"
	$(UV) venv --quiet --clear --python $(PYTHON) .venv/browser
	$(UV) pip sync --quiet --python .venv/browser/bin/python --require-hashes tests/browser/requirements.lock
	@touch $@

DEMO ?= demo
DEMO_NETWORK := stages/_launch/src/lsdflow_launch/init/demo_network
demo: setup  ## segment a synthetic EM volume and write a report; TRAIN=1: also train a network; your own volume: VOLUME=raw.zarr LABELS=labels.zarr
ifdef VOLUME
	test -e $(DEMO)/experiment.toml || bin/lsdflow init $(DEMO) --train $(VOLUME) $(if $(LABELS),--labels $(LABELS)) --volume $(VOLUME) $(if $(LABELS),--truth $(LABELS)) --profile tiny
else
	@# One core compiles the loops of the training while the other one makes the volume.
	test -e $(DEMO)/experiment.toml || { $(if $(TRAIN),.venv/training/bin/python -m lsdflow_training.compiled &) bin/lsdflow demo $(DEMO) $(if $(TRAIN),--train) && wait; }
endif
	bin/lsdflow run $(DEMO)

# --seed 1 makes another volume than that of the demo, with the same statistics. This takes about ten minutes.
demo-network: setup  ## train the network of the demo again and store it in the sources of _launch
	bin/lsdflow demo .cache/demo_network --train --seed 1
	bin/lsdflow run .cache/demo_network --to train-acrlsd --set train-acrlsd.max_iteration=4000 --set train-acrlsd.max_minutes=60
	mkdir -p $(DEMO_NETWORK)
	cd .cache/demo_network/train/train-acrlsd/checkpoints/00004000 && cp bundle.json bundle.sha256 weights.safetensors $(CURDIR)/$(DEMO_NETWORK)

# If a process dies (for example for lack of memory), the whole run fails, because a new process would get no work and
# the run would never end. After 20 minutes a test counts as hanging: its traceback is printed and its process ends.
PROCESSES := --max-worker-restart=0 -o faulthandler_timeout=1200 -o faulthandler_exit_on_timeout=true
# Three processes for two cores where tests often wait for workers and servers; two where they compute.
IN_TWO := -n 2 $(PROCESSES)
IN_THREE := -n 3 $(PROCESSES)
# Each process gets one file at a time. The longest files come first, so that no process waits long for the last one.
BY_FILE := --dist loadfile --no-loadscope-reorder
BLOCKS_PYTEST := LSDFLOW_BIN=$(CURDIR)/bin .venv/blocks/bin/pytest $(IN_THREE) $(BY_FILE)
TRAINING_PYTEST := .venv/training/bin/pytest $(IN_TWO) $(BY_FILE)

test: $(if $(PACKAGE),test-package,test-core)  ## run the tests that every change must pass, in minutes; PACKAGE=watershed: those of one package

test-all: test test-docs test-blocks test-training test-avx2 test-tensorflow test-view test-browser  ## run all tests that need no container engine and no cluster

test-core: setup
	$(BLOCKS_PYTEST) --durations=15 $(CORE_BLOCKS)
	$(TRAINING_PYTEST) --durations=15 $(CORE_TRAINING)

TESTED := $(patsubst _%,%,$(PACKAGE))
PACKAGE_ENVIRONMENT := $(if $(filter $(TRAINING_PACKAGES:_%=%),$(filter-out $(BLOCKS_PACKAGES:_%=%),$(TESTED))),training,$(if $(filter tensorflow view,$(TESTED)),$(TESTED),blocks))
test-package: known-package setup $(if $(filter tensorflow view,$(TESTED)),setup-$(TESTED)) $(if $(filter view,$(TESTED)),.cache/readers/.installed)
	LSDFLOW_BIN=$(CURDIR)/bin .venv/$(PACKAGE_ENVIRONMENT)/bin/pytest $(IN_TWO) $(BY_FILE) $(TESTS_OF_$(TESTED))

known-package:
	@$(if $(TESTS_OF_$(TESTED)),,$(error there is no package "$(PACKAGE)"; the packages are $(sort $(patsubst TESTS_OF_%,%,$(filter TESTS_OF_%,$(.VARIABLES))))))true

# The next targets run the tests that `make test` omits. SHORT_FIRST=1 runs the longest files last, for machines without
# time for all.
LEAVE_OUT = $(foreach t,$(1),--ignore=$(t))
test-blocks: setup
	$(BLOCKS_PYTEST) --durations=60 $(call LEAVE_OUT,$(CORE_BLOCKS) $(TRAINING_TESTS)) --ignore=tests/pipeline/test_real_volumes.py $(if $(SHORT_FIRST),$(SHORTER_TESTS) $(LONGEST_TESTS),$(LONGEST_TESTS) $(SHORTER_TESTS))

test-training: setup-mlflow
	.venv/training/bin/pytest $(IN_TWO) --dist loadfile --durations=15 $(call LEAVE_OUT,$(CORE_TRAINING)) $(TRAINING_TESTS)

test-avx2: export ONEDNN_MAX_CPU_ISA := AVX2
test-avx2: export ATEN_CPU_CAPABILITY := avx2
test-avx2: setup  ## test networks, training and benchmarks again, as on a CPU with AVX2 only
	$(BLOCKS_PYTEST) $(AVX2_BLOCKS)
	$(TRAINING_PYTEST) $(AVX2_TRAINING)

test-tensorflow: setup-tensorflow
	.venv/tensorflow/bin/pytest $(IN_TWO) --dist loadfile $(TENSORFLOW_TESTS)

test-view: setup setup-view .cache/readers/.installed
	LSDFLOW_BIN=$(CURDIR)/bin .venv/view/bin/pytest $(IN_TWO) --dist loadfile $(VIEW_TESTS)

test-browser: setup setup-view docs .venv/browser/.installed  ## test reports and viewers in headless Chromium (a part of `make test-all`)
	tests/browser/install_chromium.sh
	LSDFLOW_BIN=$(CURDIR)/bin .venv/browser/bin/pytest --confcutdir=tests/browser $(BROWSER_TESTS)

screenshots: setup .venv/browser/.installed  ## make the pictures of the docs from the report of DEMO: docs/pictures/report_*.png
	tests/browser/install_chromium.sh
	.venv/browser/bin/python tests/browser/screenshots.py $(DEMO)/report docs/pictures

test-real: setup  ## test the pipeline on real volumes beside the checkout (../shared/data); about 18 minutes on 2 cores
	LSDFLOW_BIN=$(CURDIR)/bin .venv/blocks/bin/pytest -s $(if $(ONLY),-k "$(ONLY)") tests/pipeline/test_real_volumes.py

# One run of the fault suite. $(1) is the name of its history files. ROWS="f7 or f8" selects rows, whose results are added
# to the existing files.
FAULT_PYTEST = bin/pytest -s $(if $(FAULT_FOLDER),--basetemp=$(FAULT_FOLDER)) $(if $(ROWS),-k "$(ROWS)")
define FAULT_SUITE
	mkdir -p .cache $(if $(ROWS),,&& rm -f .cache/$(1).*.jsonl)
	failed=0; \
	LSDFLOW_FAULT_HISTORY=$(CURDIR)/.cache/$(1).blocks.jsonl .venv/blocks/$(FAULT_PYTEST) tests/faults/blocks || failed=1; \
	$(if $(ROWS),,LSDFLOW_FAULT_HISTORY=$(CURDIR)/.cache/$(1).training.jsonl .venv/training/$(FAULT_PYTEST) tests/faults/training || failed=1;) \
	.venv/blocks/bin/python tests/faults/judge.py $(2) .cache/$(1).blocks.jsonl .cache/$(1).training.jsonl || failed=1; \
	exit $$failed
endef

test-faults: setup  ## kill and damage stages and trainings in every way (a part of `make test-all`); prints a table of the outcomes
	$(call FAULT_SUITE,faults)

faults-release: export LSDFLOW_FAULTS := release
faults-release: setup  ## run test-faults with the counts of a release, into docs/fault_release.md; about an hour
	.venv/blocks/bin/pytest -s tests/bad_input/test_bit_flips.py
	$(call FAULT_SUITE,release,--summary docs/fault_release.md)

BASELINES := tests/faults/baselines
faults-baselines: setup  ## run the same faults with daisy alone and with volara, for comparison; about half an hour
	for peer in daisy1 volara; do \
	  $(UV) venv --quiet --allow-existing --python $(PYTHON) .cache/$$peer && \
	  $(UV) pip sync --quiet --python .cache/$$peer/bin/python --require-hashes $(BASELINES)/$$peer.lock; done
	.venv/blocks/bin/python $(BASELINES)/compare.py $(foreach p,daisy1 volara,--environment $(p)=$(CURDIR)/.cache/$(p)/bin/python) \
	  $(foreach p,daisy2 lsdflow,--environment $(p)=$(CURDIR)/.venv/blocks/bin/python) | tee .cache/fault_baselines.md

check: setup  ## check lint, format and types; CI runs this first
	.venv/blocks/bin/ruff check .
	.venv/blocks/bin/ruff format --check .
	@$(MAKE) --no-print-directory check-types

MYPY_MODULES = $(foreach p,$(1),-p lsdflow_$(subst -,_,$(p:_%=%)))
check-types: export MYPYPATH := $(shell echo stages/*/src | tr ' ' :)
check-types: setup
	.venv/blocks/bin/mypy -p lsdflow $(call MYPY_MODULES,$(BLOCKS_PACKAGES) _view)
	.venv/training/bin/mypy $(call MYPY_MODULES,_training _importers _tensorflow $(TRAINING_STAGES))
	.venv/blocks/bin/mypy docs/generate

stages:  ## write stages.toml into the files that cannot read it: wrappers of SLURM, compose services, the bake file
	$(PYTHON) containers/stages.py

capabilities:  ## list the capabilities of docs/capabilities.md that no test proves
	@$(PYTHON) tests/plugins/capabilities.py

format:  ## format the code and apply the automatic fixes of the linter
	.venv/blocks/bin/ruff format .
	.venv/blocks/bin/ruff check --fix .

bench: setup  ## compare speed with other packages, as a table; about 10 minutes. BENCH="--full", rows, or predict-pipeline
ifeq ($(BENCH),predict-pipeline)
	.venv/blocks/bin/python benchmarks/predict_pipeline.py | tee .cache/predict_pipeline.md
else
	$(UV) venv --quiet --allow-existing --python $(PYTHON) .cache/bench_peers
	$(UV) pip sync --quiet --python .cache/bench_peers/bin/python --require-hashes benchmarks/peers.lock
	.venv/blocks/bin/python benchmarks/bench.py --peers .cache/bench_peers/bin/python $(BENCH) | tee .cache/bench.md
	.venv/training/bin/python benchmarks/lsd_targets.py --quick
endif

bench-gpu: setup  ## measure prediction, training and LSD targets on one GPU, as a table; some minutes, needs CUDA
	.venv/blocks/bin/python benchmarks/gpu.py predict | tee .cache/bench_gpu.md
	.venv/training/bin/python benchmarks/gpu.py train | tee -a .cache/bench_gpu.md
	.venv/training/bin/python benchmarks/gpu.py data | tee -a .cache/bench_gpu.md

bench-networks: setup  ## train affinities, mtlsd and acrlsd on real EM and compare them with FFN, as a table; MINUTES=10 for each
	.venv/blocks/bin/python benchmarks/networks.py .cache/bench_networks --minutes $(or $(MINUTES),10)

bench-quality: setup  ## score the networks that come with lsdflow on real EM, with FFN, as tables; some 7 minutes
	.venv/blocks/bin/python benchmarks/shipped_networks.py | tee .cache/bench_quality.md

bench-round: setup  ## correct the worst boxes of a segmentation and train on them, as a table (some 15 minutes on two cores)
	.venv/blocks/bin/python benchmarks/correction_round.py .cache/bench_round

bench-labelled: setup  ## train on 10 to 150 labelled sections from random weights and from a shipped network, as a table; ITERATIONS=100
	.venv/blocks/bin/python benchmarks/labelled_sections.py .cache/bench_labelled --iterations $(or $(ITERATIONS),100)

gpu-bundle: setup  ## make a folder for a GPU machine without network; copy it there and run ./run.sh rehearse (benchmarks/README.md)
	.venv/blocks/bin/python benchmarks/gpu_bundle/make_bundle.py gpu-bundle --pip .venv/tools/bin/python $(BUNDLE)

# Locks pin versions with hashes and contain no addresses. All stages of an environment are resolved together first, so
# that their versions agree. Then each stage gets its own lock under these constraints.
COMPILE := $(UV) pip compile --quiet --python-version 3.11 --generate-hashes --no-annotate --no-header \
	$(foreach p,contract command runtime network metrics descriptors training,--no-emit-package lsdflow-$(p))
PROJECTS = $(foreach p,$(1),stages/$(p)/pyproject.toml)

lock: $(UV)  ## resolve the lock of every stage again from its pyproject.toml
	mkdir -p .cache
	$(COMPILE) --find-links "$(WHEELS)" $(call PROJECTS,_launch $(BLOCKS_STAGES)) tests/blocks.in -o .cache/blocks.pins
	$(COMPILE) --find-links "$(WHEELS)" $(call PROJECTS,$(TRAINING_STAGES)) tests/training.in -o .cache/training.pins
	for env in blocks training; do sed -E 's/ *\\$$//; /^ +--hash/d; s/\+cpu//' .cache/$$env.pins > .cache/$$env.constraints; done
	for s in _launch $(PLAIN_STAGES); do $(COMPILE) -c .cache/blocks.constraints stages/$$s/pyproject.toml -o stages/$$s/requirements.lock; done
	$(COMPILE) -c .cache/blocks.constraints tests/blocks.in -o tests/blocks.lock
	$(COMPILE) -c .cache/training.constraints tests/training.in --find-links "$(WHEELS)" -o tests/training.lock
	$(subst 3.11,3.12,$(COMPILE)) --no-deps benchmarks/gpu_bundle/requirements.in -o benchmarks/gpu_bundle/requirements.lock
	$(COMPILE) tests/browser/requirements.in -o tests/browser/requirements.lock
	$(COMPILE) tests/view/readers.in -o tests/view/readers.lock
	for e in cpu cuda; do $(COMPILE) -c .cache/training.constraints --override stages/_tensorflow/overrides.in --find-links "$(WHEELS)" stages/_tensorflow/pyproject.toml --extra $$e -o stages/_tensorflow/$$e.lock; done
	$(COMPILE) -c .cache/blocks.constraints stages/_view/pyproject.toml -o stages/_view/requirements.lock
	sed -nE 's/^lsds = \["(.*)"\]$$/\1/p' stages/_training/pyproject.toml | $(COMPILE) --no-deps - -o stages/_training/lsds.lock
	sed -nE 's/^mlflow = \["(.*)"\]$$/\1/p' stages/_training/pyproject.toml | $(COMPILE) -c .cache/training.constraints --override stages/_training/mlflow_overrides.in - -o stages/_training/mlflow.lock
	for s in $(TORCH_STAGES); do \
	  env=$$([[ " $(TRAINING_STAGES) " == *" $$s "* ]] && echo training || echo blocks); \
	  $(COMPILE) -c .cache/$$env.constraints --find-links "$(WHEELS)" stages/$$s/pyproject.toml -o stages/$$s/cpu.lock; \
	  $(COMPILE) -c .cache/$$env.constraints stages/$$s/pyproject.toml -o stages/$$s/cuda.lock; \
	  $(COMPILE) -c <(grep -v '^torch==' .cache/$$env.constraints) --override stages/_network/cuda12.in stages/$$s/pyproject.toml -o stages/$$s/cuda12.lock; done

clean:  ## remove the demo, caches and environments of this clone
	rm -rf .venv bin .cache site gpu-bundle $(DEMO) .mypy_cache .ruff_cache .pytest_cache
