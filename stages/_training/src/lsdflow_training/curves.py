"""Curves of a training for users: loss.csv (iteration, loss, it/s, ...), TensorBoard (log/), MLflow, progress line."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from torch.utils.tensorboard import SummaryWriter

from lsdflow_command.progress import MONITOR, Progress
from lsdflow_contract.files import storage_errors, write_atomically
from lsdflow_training.mlflow_log import MlflowLog
from lsdflow_training.schedule import seconds_left
from lsdflow_training.settings import TrainingSettings

COLUMNS = ("iteration", "loss", "it_per_s", "learning_rate", "validation_loss")


class Curves:
    """Appends to loss.csv and log/; first drops rows beyond `from_iteration`, left by an interrupted run.

    mlflow: receives the same scalars.
    """

    def __init__(self, folder: Path, from_iteration: int, mlflow: MlflowLog | None = None) -> None:
        self._mlflow = mlflow
        self.path = folder / "loss.csv"
        _truncate(self.path, from_iteration)
        with storage_errors(self.path):
            self._file = self.path.open("a", newline="", encoding="utf-8", buffering=1)
        self._rows = csv.writer(self._file)
        self._board = SummaryWriter(str(folder / "log"), purge_step=from_iteration + 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._board.close()
        if self._mlflow is not None:
            self._mlflow.close(error)

    def add(self, iteration: int, losses: Mapping[str, float], it_per_s: float, learning_rate: float) -> None:
        """Add a row. losses: by output ("lsds", "affs"); their sum is the loss."""
        total = sum(losses.values())
        with storage_errors(self.path):
            self._rows.writerow([iteration, f"{total:.6g}", f"{it_per_s:.4g}", f"{learning_rate:.4g}", ""])
        scalars = {"loss": total, "it_per_s": it_per_s, "learning_rate": learning_rate}
        scalars |= {f"loss_{name}": value for name, value in losses.items()}
        self._add_scalars(iteration, scalars)

    def add_validation(self, iteration: int, value: float) -> None:
        """Add a row with only a validation loss."""
        with storage_errors(self.path):
            self._rows.writerow([iteration, "", "", "", f"{value:.6g}"])
        self._add_scalars(iteration, {"validation_loss": value})

    def add_data_wait(self, iteration: int, share: float) -> None:
        """Add the share of time spent waiting for batches; not to loss.csv, whose readers expect fixed columns."""
        self._add_scalars(iteration, {"data_wait": share})

    def add_pictures(self, iteration: int, pictures: Mapping[str, np.ndarray]) -> None:
        """Add pictures (y, x, 3) uint8 by name, to TensorBoard only."""
        for name, picture in pictures.items():
            self._board.add_image(name, picture, iteration, dataformats="HWC")

    def _add_scalars(self, iteration: int, scalars: Mapping[str, float]) -> None:
        for name, value in scalars.items():
            self._board.add_scalar(name, value, iteration)
        if self._mlflow is not None:
            self._mlflow.add(iteration, scalars)

    def flush(self) -> None:
        """Write all added rows to disk."""
        with storage_errors(self.path):
            self._file.flush()
            os.fsync(self._file.fileno())
        self._board.flush()


def read_curves(folder: Path, last_iteration: int) -> tuple[dict[int, float], dict[int, float]]:
    """Validation losses and training losses by iteration, up to last_iteration; empty without loss.csv."""
    validations: dict[int, float] = {}
    losses: dict[int, float] = {}
    path = folder / "loss.csv"
    if path.exists():
        with storage_errors(path), path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                iteration = int(row["iteration"])
                if iteration <= last_iteration and row["validation_loss"]:
                    validations[iteration] = float(row["validation_loss"])
                elif iteration <= last_iteration and row["loss"]:
                    losses[iteration] = float(row["loss"])
    return validations, losses


def loss_fell(folder: Path, last_iteration: int) -> dict[str, float]:
    """Mean loss of the first and of the last rows of loss.csv, a tenth of all (at most 10 and 100); {} without rows."""
    _, losses = read_curves(folder, last_iteration)
    rows = [losses[iteration] for iteration in sorted(losses)]
    tenth = max(1, len(rows) // 10)
    first, last = rows[: min(tenth, 10)], rows[-min(tenth, 100) :]
    return {"loss_begin": float(np.mean(first)), "loss_end": float(np.mean(last))} if rows else {}


def _truncate(path: Path, last_iteration: int) -> None:
    """Keep the header and the rows up to an iteration."""
    kept = [",".join(COLUMNS)]
    if path.exists():
        lines = path.read_text(encoding="utf-8").splitlines()[1:]
        kept += [
            line for line in lines if line.split(",", 1)[0].isdigit() and int(line.split(",", 1)[0]) <= last_iteration
        ]
    write_atomically(path, lambda file: file.write(("\n".join(kept) + "\n").encode()))


def training_progress(
    settings: TrainingSettings, iteration: int, minutes: float, visible: bool
) -> Progress | nullcontext[None]:
    """Progress from `iteration` on, `minutes` after the start; empty unless `visible` (the first process)."""
    if not visible:
        return nullcontext()
    schedules = settings.schedules
    progress = Progress(
        settings.stage, schedules.max_iteration, "iteration", iteration, seconds_left(schedules, minutes)
    )
    progress.gauges["patches_per_iteration"] = settings.step.effective_batch
    return progress


def count_iteration(progress: Progress, losses: Mapping[str, float], learning_rate: float) -> None:
    """Count one more iteration. losses: by output; their sum is the loss."""
    progress.gauges["learning_rate"] = learning_rate
    progress.advance(1, losses, loss=sum(losses.values()))


def report_validation(loss: float) -> None:
    """Set the newest validation loss in the metrics of this process."""
    monitor = MONITOR.get()
    if monitor is not None and monitor.progress is not None:
        monitor.progress.gauges["validation_loss"] = loss
