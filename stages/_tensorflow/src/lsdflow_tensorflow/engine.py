"""The network and its optimizer in TensorFlow, on one or more devices: steps, losses, conversion from and to torch.

    MirroredStrategy              all devices of this process
    MultiWorkerMirroredStrategy   all devices of all processes of a cluster

Each replica uses its own patch. The mean of the gradients over all replicas updates the weights of every replica.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
import torch

from lsdflow_contract.errors import InternalError, Interrupted
from lsdflow_network.unet import UNet as TorchUNet
from lsdflow_tensorflow.cluster import Cluster
from lsdflow_tensorflow.network import AcrLsd, UNet, crop_centre, losses_by_output, to_tensorflow, to_torch
from lsdflow_training.build import FrozenLsd
from lsdflow_training.data.patch import Patch
from lsdflow_training.settings import TrainingSettings
from lsdflow_training.step import StepResult


def start_tensorflow(threads: int, device: str, cpus: int = 1) -> None:
    """Set the threads per operation; on CPUs also make results reproducible. Only the first call of a process counts.

    Fork the processes that make patches before this: a fork of a process with TensorFlow's threads may hang.

    cpus: number of logical devices into which the CPU is divided.
    """
    if tf.config.threading.get_intra_op_parallelism_threads() != threads:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
    if device != "cpu":
        return
    tf.config.experimental.enable_op_determinism()
    (cpu,) = tf.config.list_physical_devices("CPU")
    if len(tf.config.get_logical_device_configuration(cpu) or [0]) < cpus:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * cpus)


def local_devices(device: str, count: int) -> list[str]:
    """The `count` devices that this process trains on: its GPUs ("cuda"), one of them ("cuda:1"), or its CPU."""
    if ":" in device:
        return [f"GPU:{device.split(':')[1]}"]
    return [f"{'CPU' if device == 'cpu' else 'GPU'}:{number}" for number in range(count)]


class Adam:
    """Moments of `variables`, which correspond one to one to the parameters of `source`.

        m <- b1 m + (1 - b1) g        v <- b2 v + (1 - b2) g^2
        w <- w - lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps)

    (Kingma and Ba 2015.)  Keras adds eps before it corrects v, so its first steps differ.

    Create it within strategy.scope().  Raises InternalError for options of torch's Adam that are not implemented here.
    """

    def __init__(self, variables: Sequence[tf.Variable], source: torch.optim.Adam) -> None:
        (group,) = source.param_groups
        if group["weight_decay"] or group["amsgrad"] or group["maximize"]:
            raise InternalError("this Adam has no weight decay, no AMSGrad, and minimises", found=group)
        self.betas, self.epsilon = group["betas"], group["eps"]
        self.variables = list(variables)
        states = [source.state.get(parameter, {}) for parameter in group["params"]]
        self.steps = max((int(state["step"]) for state in states if state), default=0)
        self.first = [_slot(v, state, "exp_avg") for v, state in zip(self.variables, states, strict=True)]
        self.second = [_slot(v, state, "exp_avg_sq") for v, state in zip(self.variables, states, strict=True)]

    def next_corrections(self) -> tuple[float, float]:
        """Count the next step, t; return 1 - b1^t and the square root of 1 - b2^t."""
        self.steps += 1
        return 1 - self.betas[0] ** self.steps, float((1 - self.betas[1] ** self.steps) ** 0.5)

    def apply(self, strategy: tf.distribute.Strategy, gradients: Sequence[Any], factors: Any) -> None:
        """Update moments and variables on every device. The gradients are equal on all. Call in cross-replica context.

        factors: float64 (learning rate / first correction, second correction).
        """
        for variable, first, second, gradient in zip(self.variables, self.first, self.second, gradients, strict=True):
            strategy.extended.update(variable, self._update, args=(first, second, gradient, factors))

    def _update(
        self, variable: tf.Variable, first: tf.Variable, second: tf.Variable, gradient: tf.Tensor, factors: tf.Tensor
    ) -> tf.Operation:
        beta1, beta2 = self.betas
        step_size, correction = tf.unstack(tf.cast(factors, tf.float32))
        m = first.assign(first + (gradient - first) * (1 - beta1))
        v = second.assign(second * beta2 + tf.square(gradient) * (1 - beta2))
        return variable.assign_sub(step_size * m / (tf.sqrt(v) / correction + self.epsilon))

    def export(self, target: torch.optim.Adam) -> None:
        """Copy the moments and the step count into a torch Adam with the same parameters."""
        (group,) = target.param_groups
        if not self.steps:
            return
        for parameter, first, second in zip(group["params"], self.first, self.second, strict=True):
            target.state[parameter] = {
                "step": torch.tensor(float(self.steps)),
                "exp_avg": to_torch(first.numpy()),
                "exp_avg_sq": to_torch(second.numpy()),
            }


def _slot(variable: tf.Variable, state: dict[str, torch.Tensor], name: str) -> tf.Variable:
    values = to_tensorflow(state[name]) if state else tf.zeros(variable.shape, tf.float32)
    return tf.Variable(values, trainable=False, name=f"{variable.name.split(':')[0]}_{name}")


@dataclass(frozen=True)
class Step:
    """What all replicas share after a step: mean losses by output, minutes of the chief, stop."""

    losses: dict[str, float]
    minutes: float
    stop: bool


def make_strategy(cluster: Cluster, devices: Sequence[str]) -> tf.distribute.Strategy:
    """A strategy mirrored over the devices of this process, or a multi-worker strategy over those of the cluster."""
    if cluster.size == 1:
        return _mirrored(tuple(devices))
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": list(cluster.workers)}),
        task_type="worker",
        task_id=cluster.rank,
        rpc_layer="grpc",
    )
    return tf.distribute.MultiWorkerMirroredStrategy(resolver)


@cache
def _mirrored(devices: tuple[str, ...]) -> tf.distribute.Strategy:
    """One strategy per process: two over the same devices would mix the results of their collective operations."""
    return tf.distribute.MirroredStrategy(list(devices))


class Engine:
    """Trains the weights of a torch network and optimizer; `export` copies the result back to them."""

    def __init__(
        self,
        settings: TrainingSettings,
        strategy: tf.distribute.Strategy,
        network: TorchUNet,
        optimizer: torch.optim.Adam,
        lsd: FrozenLsd | None = None,
    ) -> None:
        self.strategy = strategy
        self.replicas: int = strategy.num_replicas_in_sync
        with strategy.scope():
            self.trained = UNet(settings.unet, settings.outputs, network.state_dict())
            self.variables = list(self.trained.variables.values())
            self.adam = Adam(self.variables, optimizer)
            self.network = self.trained if lsd is None else _chain(lsd, self.trained, settings)
        self._step = tf.function(lambda *inputs: strategy.run(self._replica_step, args=inputs), autograph=False)
        self._loss = tf.function(lambda patch: tf.add_n(list(self._losses(patch).values())), autograph=False)

    def step(
        self, patches: Sequence[Patch], number: int, learning_rate: float, *, minutes: float = 0.0, stop: bool = False
    ) -> Step:
        """Run one step on all replicas. `patches` has one patch for each replica of this process.

        minutes: all get the chief's.  stop: whether this process received a signal; all processes see it.  Raises
        Interrupted (75) if another process has ended, and InternalError if another process is at a step other than
        `number`.
        """
        data = [to_arrays(patch) for patch in patches]
        shared = np.array([minutes, float(stop), float(number)])
        first, second = self.adam.next_corrections()
        try:
            losses, sums = self._step(
                self._per_replica(lambda index, _: data[index]),
                self._per_replica(lambda index, chief: shared * (index == 0) * [chief, 1, 1]),
                tf.constant((learning_rate / first, second), tf.float64),
            )
            losses, sums = (self.strategy.experimental_local_results(value)[0].numpy() for value in (losses, sums))
        except (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError) as error:
            raise Interrupted(
                "another process of this training is gone",
                where=f"iteration {number}",
                found=str(error)[:300],
                fix="run the same command again to resume from the last checkpoint",
            ) from error
        processes = self.replicas // len(patches)
        if sums[2] != number * processes:
            raise InternalError("the processes of this training are at different steps", found=sums[2] / processes)
        by_name = {name: float(loss) for name, loss in zip(data[0]["targets"], losses, strict=True)}
        return Step(by_name, float(sums[0]), stop=bool(sums[1]))

    def loss(self, patch: Patch) -> float:
        """The loss of one patch, computed in this process without training."""
        return float(self._loss(tf.nest.map_structure(tf.constant, to_arrays(patch))))

    def inspect(self, patch: Patch) -> StepResult:
        """Predictions of one patch, cropped to the targets, and the gradients of the loss, for a snapshot."""
        tensors = tf.nest.map_structure(tf.constant, to_arrays(patch))
        with tf.GradientTape() as tape:
            predictions = self.network(tensors["raw"])
            cropped = _cropped(predictions, tensors["targets"])
            tape.watch(cropped)
            losses = losses_by_output(cropped, tensors["targets"], tensors["weights"])
            loss = tf.add_n(list(losses.values()))
        arrays = {name: _to_channels_first(value) for name, value in {**predictions, **cropped}.items()}
        for name, gradient in tape.gradient(loss, cropped).items():
            arrays[name].grad = _to_channels_first(gradient)
        values = {name: float(value) for name, value in losses.items()}
        return StepResult(torch.tensor(float(loss)), values, arrays)

    def export(self, network: TorchUNet, optimizer: torch.optim.Adam) -> None:
        """Copy the weights and the optimizer state to torch."""
        network.load_state_dict({name: to_torch(value.numpy()) for name, value in self.trained.variables.items()})
        self.adam.export(optimizer)

    def wait_for_all(self) -> None:
        """Return once every process has called this."""
        one = tf.function(lambda: self.strategy.run(lambda: _sum_over_replicas(tf.ones(()))), autograph=False)()
        tf.nest.map_structure(lambda value: value.numpy(), self.strategy.experimental_local_results(one))

    def _replica_step(self, patch: Any, shared: Any, factors: Any) -> tuple[Any, Any]:
        with tf.GradientTape() as tape:
            losses = self._losses(patch)
            loss = tf.add_n(list(losses.values()))
        gradients = tape.gradient(loss, self.variables)
        context = tf.distribute.get_replica_context()
        *means, mean_losses = context.all_reduce(
            tf.distribute.ReduceOp.MEAN, [*gradients, tf.stack(list(losses.values()))]
        )
        sums = _sum_over_replicas(shared)
        context.merge_call(self.adam.apply, args=(means, factors))
        return mean_losses, sums

    def _losses(self, patch: Mapping[str, Any]) -> dict[str, Any]:
        predictions = self.network(patch["raw"])
        cropped = _cropped(predictions, patch["targets"])
        losses = losses_by_output(cropped, patch["targets"], patch["weights"])
        spoilt = nan_unless_finite(patch["raw"])
        return {name: loss + spoilt for name, loss in losses.items()}

    def _per_replica(self, make: Any) -> Any:
        """A value for each replica of this process: make(its index in the process, 1.0 for the chief's first)."""
        local = len(self.strategy.extended.worker_devices)

        def of(context: Any) -> Any:
            """Return the value of one replica; only replica 0 of all processes gets 1.0."""
            number = context.replica_id_in_sync_group
            return make(number % local, float(number == 0))

        return self.strategy.experimental_distribute_values_from_function(of)


def nan_unless_finite(raw: tf.Tensor) -> tf.Tensor:
    """0, or NaN if a voxel is NaN or infinite: TensorFlow's ReLU on CPUs turns NaN into 0, which would hide it."""
    return tf.where(tf.reduce_all(tf.math.is_finite(raw)), 0.0, float("nan"))


def to_arrays(patch: Patch) -> dict[str, Any]:
    """A patch with channels last: "raw" (1,z,y,x,1); "targets" and "weights" by output, (1,z,y,x,c)."""
    return {
        "raw": _channels_last(patch.raw),
        "targets": {name: _channels_last(value) for name, value in sorted(patch.targets.items())},
        "weights": {name: _channels_last(value) for name, value in sorted(patch.weights.items())},
    }


def _chain(lsd: FrozenLsd, trained: UNet, settings: TrainingSettings) -> AcrLsd:
    weights = lsd.network.state_dict()
    frozen = UNet(lsd.bundle.unet, lsd.bundle.outputs, weights, trainable=False)
    return AcrLsd(frozen, lsd.bundle.unet, trained, settings.unet)


def _cropped(predictions: Mapping[str, Any], targets: Mapping[str, Any]) -> dict[str, Any]:
    return {name: crop_centre(predictions[name], target.shape[1:4]) for name, target in targets.items()}


def _sum_over_replicas(value: Any) -> Any:
    # all_reduce requires a tensor on a device, which an input is not yet
    here = tf.identity(value)
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, here)


def _channels_last(values: torch.Tensor) -> npt.NDArray[np.float32]:
    return np.ascontiguousarray(np.moveaxis(values.cpu().numpy(), 1, -1))


def _to_channels_first(values: Any) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(values.numpy(), -1, 1)))
