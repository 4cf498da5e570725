"""Runs a stage as a command and keeps every byte that others could see: output, arguments, environments, scratch files.

What is seen is taken from /proc again and again while the processes of its session live.
"""

from __future__ import annotations

import base64
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
TOY = REPOSITORY / "tests" / "runtime" / "toy"
POLL_SECONDS = 0.1
LISTENING = "0A"


@dataclass
class Seen:
    """What was seen of a run: exit code, everything by the name of its place, addresses listened on (hex)."""

    code: int = -1
    texts: dict[str, set[bytes]] = field(default_factory=dict)
    processes: set[int] = field(default_factory=set)
    listened: set[str] = field(default_factory=set)

    def note(self, where: str, text: bytes) -> None:
        """Keep a text, beside others of the same place."""
        self.texts.setdefault(where, set()).add(text)

    def all_of(self, where: str) -> str:
        """Every text of a place."""
        return b"\n".join(self.texts[where]).decode(errors="replace")

    def holding(self, *secrets: str) -> list[str]:
        """Places that contain a secret, as it is or in base64."""
        wanted = [form for secret in secrets for form in forms_of(secret)]
        return [where for where, texts in self.texts.items() if any(f in text for text in texts for f in wanted)]


def forms_of(secret: str) -> list[bytes]:
    """A secret as a file may contain it: plain, UTF-16, and within base64 at each of its three places."""
    plain = secret.encode()
    # The first and last characters of the base64 depend on the text beside the secret.
    shifted = [base64.b64encode(b"x" * n + plain)[4 if n else 0 : -4] for n in range(3)]
    return [plain, secret.encode("utf-16-le"), *shifted]


def started(words: list[str], scratch: Path, **more: str) -> subprocess.Popen[bytes]:
    """`python -m lsdflow_toy.cli words` in a session of its own, with temporary files in `scratch`."""
    scratch.mkdir(exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(TOY), "TMPDIR": str(scratch), **more}
    command = [sys.executable, "-m", "lsdflow_toy.cli", *words]
    with _output_of(scratch).open("wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, env=environment, start_new_session=True)


def followed(process: subprocess.Popen[bytes], scratch: Path, during: Callable[[], None] = lambda: None) -> Seen:
    """What is seen of a started run until it ends; `during` is called again and again."""
    seen = Seen()
    while process.poll() is None:
        look_at(process.pid, seen)
        keep_files(scratch, seen)
        during()
        time.sleep(POLL_SECONDS)
    seen.code = process.returncode
    seen.note("output", _output_of(scratch).read_bytes())
    return seen


def watched(words: list[str], scratch: Path, *, during: Callable[[], None] = lambda: None, **more: str) -> Seen:
    """Start a run and follow it."""
    return followed(started(words, scratch, **more), scratch, during)


def _output_of(scratch: Path) -> Path:
    return scratch.with_name(f"{scratch.name}.out")


def look_at(session: int, seen: Seen) -> None:
    """Arguments, environments and listening sockets of all processes of a session."""
    for folder in Path("/proc").iterdir():
        try:
            if not folder.name.isdigit() or os.getsid(int(folder.name)) != session:
                continue
            seen.note("cmdline", (folder / "cmdline").read_bytes())
            seen.note("environ", (folder / "environ").read_bytes())
            seen.listened |= _listening(folder)
            seen.processes.add(int(folder.name))
        except OSError:  # it has ended
            continue


def keep_files(folder: Path, seen: Seen) -> None:
    """Every file below a folder, with its name. Folders and files may go meanwhile: os.walk passes over those."""
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            seen.note(f"{parent}/{name}", f"{parent}/{name}".encode())
        for path in (Path(parent, name) for name in files):
            with contextlib.suppress(OSError):
                if path.is_file():
                    seen.note(str(path), path.read_bytes())


def _listening(process: Path) -> set[str]:
    """Addresses, as the kernel writes them, on which a process waits for connections."""
    own = {str(link.readlink()) for link in (process / "fd").iterdir()}
    rows = [
        line.split() for table in ("tcp", "tcp6") for line in (process / "net" / table).read_text().splitlines()[1:]
    ]
    return {row[1].split(":")[0] for row in rows if row[3] == LISTENING and f"socket:[{row[9]}]" in own}
