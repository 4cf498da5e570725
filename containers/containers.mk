# Images, SIFs and pins of the stages. Included by the Makefile; rules and reasons: containers/README.md.
CONTAINER_TOOL ?= docker
IMAGE_STAGES := prepare train-lsd train-acrlsd predict watershed agglomerate segment evaluate
SIF_DIR ?= .cache/sif

.PHONY: image images sif sifs pins publish sbom audit test-containers
# What the scripts read; TORCH (cpu, cuda) as the Makefile finds it, or as given.
image images sif sifs pins publish: export CONTAINER_TOOL := $(CONTAINER_TOOL)
image images sif sifs pins publish: export PYTHON := $(PYTHON)
image images: export TORCH := $(TORCH)
sif sifs: export SIF_DIR := $(SIF_DIR)

image:  ## the image of one stage: STAGE=watershed [TORCH=cpu|cuda] [BASE_DIGEST=sha256:...]
	containers/build.sh $(STAGE)

images:  ## the images of all stages
	for s in $(IMAGE_STAGES); do containers/build.sh $$s; done

sif:  ## the SIF of an image: STAGE=watershed [SIF_DIR=folder] [IMAGE=name]
	containers/convert.sh $(STAGE)

sifs:  ## the SIFs of all stages
	for s in $(IMAGE_STAGES); do containers/convert.sh $$s; done
