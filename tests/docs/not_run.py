"""Programs in the documentation that no test of it runs, and why; a command of no group fails tests/docs."""

from __future__ import annotations

CLUSTER = "needs a cluster: tests/cluster submits to a real SLURM"
AZURE = "needs an account of Azure: never run by us, as the page says"
SHELL = "a word of the shell, or a program of every Linux"
NETWORK = "needs an address of another organisation"
INSTALLATION = "tests/launch/test_wheels.py types these lines"
PEOPLE = "an editor or a viewer, for people"
ENGINE = "needs a container engine: `make test-containers test-compose`"
GPU = "needs a GPU, or a driver"

NOT_RUN = {
    **dict.fromkeys(("sbatch", "squeue", "srun", "sinfo", "scancel", "scontrol", "sacct", "sudo"), CLUSTER),
    **dict.fromkeys(("az", "cyclecloud", "azslurm"), AZURE),
    **dict.fromkeys(("cd", "export", "ls", "mkdir", "cp", "less", "tail", "sha256sum", "grep"), SHELL),
    **dict.fromkeys(("umask", "head", "base64", "realpath", "id"), SHELL),
    **dict.fromkeys(("git",), NETWORK),
    **dict.fromkeys(("python3.11", ".", "pip", "training/bin/pip"), INSTALLATION),
    **dict.fromkeys(("nano", "tensorboard", "mlflow"), PEOPLE),
    **dict.fromkeys(("docker", "podman", "singularity", "apptainer", "buildah"), ENGINE),
    **dict.fromkeys(("nvidia-smi", "torchrun"), GPU),
}
