# The test cluster and the tests that run on it. Included by the Makefile; tests/cluster/README.md describes them.
.PHONY: cluster-up cluster-down test-cluster

cluster-up: setup  ## start a small real cluster on this machine (Debian 12, root): SLURM, Apptainer, Docker Engine, mongod
	tests/cluster/bed/bed.sh up

cluster-down:  ## stop that cluster
	tests/cluster/bed/bed.sh down

test-cluster: setup  ## test images, SIFs and whole runs on the cluster of this machine, or on one that is started for the tests
	PYTHON=$(PYTHON) TORCH=$(TORCH) tests/cluster/run.sh $(TESTS)
