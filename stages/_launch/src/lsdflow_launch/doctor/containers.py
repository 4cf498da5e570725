"""Container engines: which are installed, and whether this user may use them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from lsdflow_launch.doctor.finding import Finding, ok, warn
from lsdflow_launch.doctor.outside import Answer, ask_program

# Commands that succeed only if this user may use the engine.
ASKED = {
    "docker": ("docker", "version", "--format", "{{.Server.Version}}"),
    "podman": ("podman", "info", "--format", "{{.Version.Version}}"),
    "apptainer": ("apptainer", "--version"),
    "singularity": ("singularity", "--version"),
}
TO_DO = {
    "docker": "start the daemon, or let an administrator put you into the group docker",
    "podman": "podman info tells; rootless podman wants entries in /etc/subuid and /etc/subgid",
}


def container_findings() -> Iterator[Finding]:
    """Yield a finding for each installed engine."""
    with ThreadPoolExecutor() as pool:
        answers = dict(zip(ASKED, pool.map(ask_program, ASKED.values()), strict=True))
    here = {name: answer for name, answer in answers.items() if answer.here}
    yield from (_finding(name, answer) for name, answer in here.items())
    if not here:
        yield ok("containers", "no docker, podman or apptainer: needed for --on container, compose and clusters alone")


def _finding(name: str, answer: Answer) -> Finding:
    if answer.fine and answer.out.strip():
        return ok(name, answer.out.strip().splitlines()[-1])
    return warn(
        name, f"does not answer this user: {answer.problem or 'no version'}", TO_DO.get(name, f"{name} --version")
    )
