# Compose: the demo, and tests that run the real images. Included by the Makefile; see compose/README.md.
COMPOSE_DEMO := compose/experiments/demo

.PHONY: compose-demo test-compose
compose-demo: setup  ## run the demo with docker compose (needs the images: make images)
	test -e demo/input/volume.hdf || bin/lsdflow demo demo
	bin/lsdflow compose-env $(COMPOSE_DEMO)
	docker compose -f compose/compose.yaml --env-file=$(COMPOSE_DEMO)/images.env --env-file=$(COMPOSE_DEMO)/compose.env up

test-compose: setup  ## test compose and `lsdflow run --backend container` with real images (needs dockerd and the images)
	LSDFLOW_BIN=$(CURDIR)/bin LSDFLOW_TEST_COMPOSE=1 .venv/blocks/bin/pytest -s --durations=8 tests/compose
