#!/usr/bin/env python3
"""Stop the jobs of this node when Azure is about to evict the machine. Standard library only: it runs on bare nodes.

Azure announces an eviction of a spot machine (and a reboot, redeploy or deletion of any) at a metadata address that
only the machine itself can reach, about half a minute ahead. This loop reads the announcements and, once per event:
withdraws the node from Slurm, sends USR2 to the batch scripts of its jobs (the wrappers stop their stage, which
ends with exit code 75, and requeue themselves), and after a grace period requeues the jobs that still run.
Nothing depends on it: without notice Slurm detects the lost node after SlurmdTimeout and requeues the jobs.
"""

from __future__ import annotations

import argparse
import json
import logging
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence

METADATA = "http://169.254.169.254"
LOSING = ("Preempt", "Terminate", "Reboot", "Redeploy")
ASKING_S = 10.0

log = logging.getLogger("lsdflow-eviction")
# The address is the machine's own: a proxy of the environment must not answer for it.
direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def ask(address: str) -> str:
    """One answer of the metadata service, as text. OSError if it is not there or refuses."""
    request = urllib.request.Request(address, headers={"Metadata": "true"})  # noqa: S310 - address is an option
    with direct.open(request, timeout=ASKING_S) as answer:
        return answer.read().decode()


def machine_name(metadata: str) -> str:
    """This machine's name, as events write it (for a scale set: SET_NUMBER, not the host name)."""
    return ask(f"{metadata}/metadata/instance/compute/name?api-version=2021-02-01&format=text").strip()


def losing_events(metadata: str, machine: str) -> Iterator[dict]:
    """Announced events that take this very machine; a scale set's machines all hear of each other's.

    ValueError if the answer is no JSON of the expected form."""
    answer = json.loads(ask(f"{metadata}/metadata/scheduledevents?api-version=2020-07-01"))
    for event in answer["Events"]:
        if event["EventType"] in LOSING and machine in event["Resources"]:
            yield event


def slurm(*command: str) -> str:
    """Output of a Slurm command; a failure is logged and is an empty answer, for the node is going anyway."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ASKING_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        log.error("%s: %s", " ".join(command), error)
        return ""
    if done.returncode:
        log.error("%s: %s", " ".join(command), done.stderr.strip())
    return done.stdout


def jobs_on(node: str) -> list[str]:
    """Running jobs of this node: job ids, and ID_INDEX for the tasks of arrays."""
    return slurm("squeue", "--noheader", f"--nodelist={node}", "--states=RUNNING", "--format=%i").split()


def leave(node: str, withdraw: str, reason: str, grace_s: float) -> None:
    """Withdraw the node from Slurm, signal its jobs, wait, and requeue those that still run."""
    slurm("scontrol", "update", f"NodeName={node}", f"State={withdraw}", f"Reason={reason}")
    running = jobs_on(node)
    log.warning("%s: signalling %d jobs: %s", reason, len(running), " ".join(running))
    if running:
        slurm("scancel", "--batch", "--signal=USR2", *running)
    until = time.monotonic() + grace_s
    while (left := [job for job in jobs_on(node) if job in running]) and time.monotonic() < until:
        time.sleep(1)
    for job in left:
        log.warning("requeueing %s, which is still running", job)
        slurm("scontrol", "requeue", job)


def watch(options: argparse.Namespace) -> None:
    """Poll without end; a metadata service that does not answer is polled again."""
    handled: set[str] = set()
    machine = ""
    while True:
        try:
            machine = machine or machine_name(options.metadata)
            events = [e for e in losing_events(options.metadata, machine) if e["EventId"] not in handled]
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("no events: %s", error)
            events = []
        for event in events:
            handled.add(event["EventId"])
            leave(options.node, options.withdraw, f"Azure {event['EventType']} {event['EventId']}", options.grace)
        if events and options.once:
            return
        time.sleep(options.every)


def main(arguments: Sequence[str]) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--metadata", default=METADATA, help="address of the metadata service")
    parser.add_argument("--node", default=socket.gethostname().split(".")[0], help="this node's name in Slurm")
    parser.add_argument("--every", type=float, default=2.0, help="seconds between two requests")
    parser.add_argument("--grace", type=float, default=12.0, help="seconds in which the jobs can stop by themselves")
    parser.add_argument(
        "--withdraw", choices=("POWER_DOWN_ASAP", "DRAIN"), default="POWER_DOWN_ASAP", help="node state"
    )
    parser.add_argument("--once", action="store_true", help="exit after the first event")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    watch(parser.parse_args(arguments))


if __name__ == "__main__":
    main(sys.argv[1:])
