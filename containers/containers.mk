# Images, SIFs, pins, wheels and releases of the stages. Included by the Makefile; containers/README.md explains them.
CONTAINER_TOOL ?= docker
SIF_DIR ?= .cache/sif

.PHONY: image images bake sif sifs pins publish wheels release sbom audit lock-containers test-containers test-containers-tensorflow
# Variables that the scripts read. TORCH (cpu, cuda or cuda12; the default is set in the Makefile) is the variant of the stages
# that use torch. BACKEND=tensorflow is a variant of the trainings.
image images bake sif sifs pins publish: export CONTAINER_TOOL := $(CONTAINER_TOOL)
image images bake sif sifs pins publish: export TORCH := $(TORCH)
image sif pins publish: export BACKEND := $(BACKEND)
sif sifs: export SIF_DIR := $(SIF_DIR)

image:  ## build the image of one stage: STAGE=watershed [TORCH=cpu|cuda|cuda12] [BACKEND=tensorflow] [BASE_DIGEST=sha256:...]
	$(PYTHON) containers/images.py build $(or $(STAGE),'')

images:  ## build the images of all stages
	$(PYTHON) containers/images.py build

bake:  ## build these images with `docker buildx bake`, several at a time: [STAGE="predict segment"] [TORCH=cpu|cuda|cuda12]
	IMAGE_ARGUMENTS="$$($(PYTHON) containers/images.py arguments)" docker buildx bake $(STAGE)

sif:  ## convert the image of one stage to a SIF: STAGE=watershed [SIF_DIR=folder] [TORCH=cpu|cuda|cuda12] [BACKEND=tensorflow] [IMAGE=name]
	$(PYTHON) containers/images.py convert $(or $(STAGE),'')

sifs:  ## convert the images of all stages to SIFs
	$(PYTHON) containers/images.py convert

PINS ?= .cache/images.env
pins:  ## write an images.env with the digests of the local images: [PINS=experiment/images.env] [STAGE=watershed] [TORCH=cpu|cuda|cuda12] [BACKEND=tensorflow]
	@$(PYTHON) containers/images.py pins $(PINS) $(STAGE)

publish:  ## push an image whose version is not published yet, and record it in published.tsv: STAGE=watershed REGISTRY=name
	$(PYTHON) containers/ledger.py publish $(STAGE) $(REGISTRY)

# With the versions of all packages of the locks, as constraints for pip.
NAMES_AND_VERSIONS = sed -nE 's/^([A-Za-z0-9._-]+==[^ ;+]+).*/\1/p' $(1) | LC_ALL=C sort -u
DIST ?= dist
wheels: $(UV)  ## build the wheels of all packages and the versions of what they need, for pip: dist/ (containers/README.md)
	rm -rf $(DIST)
	.venv/tools/bin/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir $(DIST) $(sort $(patsubst %/pyproject.toml,./%,$(wildcard stages/*/pyproject.toml)))
	$(call NAMES_AND_VERSIONS,$(foreach s,_launch $(PLAIN_STAGES),stages/$(s)/requirements.lock) stages/predict/cuda.lock) > $(DIST)/blocks.txt
	$(call NAMES_AND_VERSIONS,$(foreach s,$(TRAINING_STAGES),stages/$(s)/cuda.lock)) > $(DIST)/training.txt

release:  ## check that this commit can be released, and tag it: [DRY_RUN=1] (containers/README.md)
	@$(PYTHON) containers/release.py $(if $(DRY_RUN),--dry-run)

# The tools of sbom and audit have their own lock and environment.
SUPPLY := .cache/supply
SBOM_DIR ?= .cache/sbom

$(SUPPLY)/.installed: $(UV) containers/tools.lock
	$(UV) venv --quiet --clear --python $(PYTHON) $(SUPPLY)
	$(UV) pip sync --quiet --python $(SUPPLY)/bin/python --require-hashes containers/tools.lock
	@touch $@

sbom: $(SUPPLY)/.installed  ## write bills of materials of the stages' locks, as CycloneDX JSON: [STAGE=watershed] [SBOM_DIR=folder]
	@$(PYTHON) containers/inventory.py sbom $(SUPPLY) $(SBOM_DIR) $(STAGE)

audit: $(SUPPLY)/.installed  ## list known vulnerabilities of every locked package: [AUDIT_SERVICE=pypi|osv|esms]
	@AUDIT_SERVICE=$(AUDIT_SERVICE) $(PYTHON) containers/inventory.py audit $(SUPPLY)

lock-containers: $(UV)  ## resolve containers/*.in again
	for f in tools installer; do $(COMPILE) containers/$$f.in -o containers/$$f.lock; done

test-containers: setup  ## test all images and SIFs as any user, read-only and without network (needs docker and apptainer)
	LSDFLOW_WITH_ENGINE=1 LSDFLOW_BIN=$(CURDIR)/bin .venv/blocks/bin/pytest -s -p no:cacheprovider --durations=15 tests/containers/with_engine

# CI does not run this, because it has no time to build another 2 GB.
test-containers-tensorflow: setup  ## test the image of train-acrlsd with tensorflow, and that the image without it refuses (needs docker)
	LSDFLOW_WITH_ENGINE=1 LSDFLOW_WITH_TENSORFLOW=1 LSDFLOW_BIN=$(CURDIR)/bin .venv/blocks/bin/pytest -s -p no:cacheprovider tests/containers/with_engine/test_tensorflow_variant.py
