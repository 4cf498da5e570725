"""What one process of a TensorFlow cluster does in the test of two: a module, because it is a process of its own."""

from __future__ import annotations

from typing import Any


def work(rank: int, addresses: tuple[str, ...], parts: dict[str, Any], rate: float, answers: Any) -> None:
    """Step with every second patch; answer with losses, the chief's minutes, wishes to stop and weights."""
    import torch

    from lsdflow_network.unet import UNet
    from lsdflow_tensorflow.cluster import Cluster
    from lsdflow_tensorflow.engine import Engine, make_strategy, start_tensorflow

    settings, patches = parts["settings"], parts["patches"]
    start_tensorflow(1, "cpu")
    strategy = make_strategy(Cluster(addresses, rank), ["CPU:0"])
    engine = Engine(settings, strategy, parts["trained"], parts["optimizer"])
    own = patches[rank :: len(addresses)]
    chief, last = rank == 0, rank == len(addresses) - 1
    steps = [
        engine.step([patch], n, rate, minutes=n if chief else 0.5, stop=last and n == len(own))
        for n, patch in enumerate(own, 1)
    ]
    engine.wait_for_all()
    given = UNet(settings.unet, settings.outputs)
    engine.export(given, torch.optim.Adam(given.parameters()))
    weights = {name: value.numpy() for name, value in given.state_dict().items()}
    answers.put((rank, [(s.losses, s.minutes, s.stop) for s in steps], weights))
