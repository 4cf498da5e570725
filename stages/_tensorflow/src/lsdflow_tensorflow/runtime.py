"""Set up TensorFlow in this process before its first operation: threads and determinism.

Fork the processes that make patches before this: a fork of a process with TensorFlow's threads may hang.
"""

from __future__ import annotations

import tensorflow as tf


def start_tensorflow(threads: int, device: str, cpus: int = 1) -> None:
    """Set the threads per operation; on CPUs also make results reproducible. Only the first call of a process counts.

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
