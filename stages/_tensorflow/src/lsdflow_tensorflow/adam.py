"""Adam as torch computes it. Its state is read from a torch.optim.Adam and can be written back to one.

    m <- b1 m + (1 - b1) g        v <- b2 v + (1 - b2) g^2
    w <- w - lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps)

(Kingma and Ba 2015.)  Keras adds eps before it corrects v, so its first steps differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import torch

from lsdflow_contract.errors import InternalError
from lsdflow_tensorflow.weights import to_tensorflow, to_torch


class Adam:
    """Moments of `variables`, which correspond one to one to the parameters of `source`.

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
