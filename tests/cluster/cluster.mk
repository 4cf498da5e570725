# The test cluster, and the tests on it. Included by the Makefile; what it is and what it shows: tests/cluster/README.md.
.PHONY: cluster-up cluster-down test-cluster

cluster-up: setup  ## a small real cluster on this machine (Debian 12, root): SLURM, Apptainer, Docker Engine, mongod
	tests/cluster/bed/bed.sh up

cluster-down:  ## stop that cluster
	tests/cluster/bed/bed.sh down

test-cluster: setup  ## images, SIFs and whole runs on a cluster: the one of this machine, or one brought up for the tests
	PYTHON=$(PYTHON) TORCH=$(TORCH) tests/cluster/run.sh $(TESTS)
