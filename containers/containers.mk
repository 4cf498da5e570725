# Images, SIFs and pins of the stages. Included by the Makefile; rules and reasons: containers/README.md.
CONTAINER_TOOL ?= docker
SIF_DIR ?= .cache/sif

.PHONY: image images bake sif sifs pins publish sbom audit lock-containers test-containers test-containers-tensorflow
# What the scripts read; TORCH (cpu, cuda) as the Makefile finds it, or as given: the variant of the stages that use torch.
# BACKEND=tensorflow: a variant of the trainings.
image images bake sif sifs pins publish: export CONTAINER_TOOL := $(CONTAINER_TOOL)
image images bake sif sifs pins publish: export TORCH := $(TORCH)
image sif pins publish: export BACKEND := $(BACKEND)
sif sifs: export SIF_DIR := $(SIF_DIR)

image:  ## the image of one stage: STAGE=watershed [TORCH=cpu|cuda] [BACKEND=tensorflow] [BASE_DIGEST=sha256:...]
	$(PYTHON) containers/images.py build $(or $(STAGE),'')

images:  ## the images of all stages
	$(PYTHON) containers/images.py build

bake:  ## the same images by `docker buildx bake`, several at a time: [STAGE="predict segment"] [TORCH=cpu|cuda]
	IMAGE_ARGUMENTS="$$($(PYTHON) containers/images.py arguments)" docker buildx bake $(STAGE)

sif:  ## the SIF of an image: STAGE=watershed [SIF_DIR=folder] [TORCH=cpu|cuda] [BACKEND=tensorflow] [IMAGE=name]
	$(PYTHON) containers/images.py convert $(or $(STAGE),'')

sifs:  ## the SIFs of all stages
	$(PYTHON) containers/images.py convert

PINS ?= .cache/images.env
pins:  ## an images.env of the images that are here, with digests: [PINS=experiment/images.env] [STAGE=watershed] [TORCH=cpu|cuda] [BACKEND=tensorflow]
	@$(PYTHON) containers/images.py pins $(PINS) $(STAGE)

publish:  ## push an image whose version nobody has yet, and note it in published.tsv: STAGE=watershed REGISTRY=name
	$(PYTHON) containers/ledger.py publish $(STAGE) $(REGISTRY)

# The tools of sbom and audit have a lock and an environment of their own.
SUPPLY := .cache/supply
SBOM_DIR ?= .cache/sbom

$(SUPPLY)/.installed: $(UV) containers/tools.lock
	$(UV) venv --quiet --clear --python $(PYTHON) $(SUPPLY)
	$(UV) pip sync --quiet --python $(SUPPLY)/bin/python --require-hashes containers/tools.lock
	@touch $@

sbom: $(SUPPLY)/.installed  ## bills of materials of the stages' locks, CycloneDX JSON: [STAGE=watershed] [SBOM_DIR=folder]
	@$(PYTHON) containers/inventory.py sbom $(SUPPLY) $(SBOM_DIR) $(STAGE)

audit: $(SUPPLY)/.installed  ## known vulnerabilities of every locked package: [AUDIT_SERVICE=pypi|osv|esms]
	@AUDIT_SERVICE=$(AUDIT_SERVICE) $(PYTHON) containers/inventory.py audit $(SUPPLY)

lock-containers: $(UV)  ## resolve containers/*.in anew
	for f in tools installer; do $(COMPILE) containers/$$f.in -o containers/$$f.lock; done

test-containers: setup  ## all images and SIFs, at work as any user: read-only, no network (needs docker and apptainer)
	LSDFLOW_WITH_ENGINE=1 LSDFLOW_BIN=$(CURDIR)/bin .venv/blocks/bin/pytest -s -p no:cacheprovider --durations=15 tests/containers/with_engine

# Not a part of CI, whose time is full: it builds another 2 GB.
test-containers-tensorflow: setup  ## the image of train-acrlsd with tensorflow at work, and that without it refusing (needs docker)
	LSDFLOW_WITH_ENGINE=1 LSDFLOW_WITH_TENSORFLOW=1 LSDFLOW_BIN=$(CURDIR)/bin .venv/blocks/bin/pytest -s -p no:cacheprovider tests/containers/with_engine/test_tensorflow_variant.py
