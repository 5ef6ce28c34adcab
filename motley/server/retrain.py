"""Training on the server, on a small set of samples that it holds itself."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from motley.core.errors import InputError
from motley.core.network import Network
from motley.core.part import Part, part
from motley.core.types import Data, Round, Setting, Tree, Updates
from motley.data.public import balanced


def train_head(net: Network, params: Tensor, data: Data, steps: int, lr: float) -> Tensor:
    """Full-batch gradient descent on the last layer alone, with cross-entropy: the new flat vector [P]."""
    layer = net.layout.layers[net.head_layer]
    with torch.no_grad():
        features = net.features(params, data.x)
    for _ in range(steps):
        head = params[layer.start : layer.stop].detach().requires_grad_()
        whole = torch.cat([params[: layer.start], head, params[layer.stop :]])
        (grad,) = torch.autograd.grad(cross_entropy(net.classify(whole, features), data.y), head)
        params = torch.cat([params[: layer.start], (head - lr * grad).detach(), params[layer.stop :]])
    return params


@part("step", neutral={"steps": 0}, example={"steps": 5})
def retrain_head(per_class: int = 10, steps: int = 20, lr: float = 0.1) -> Part:
    """Re-trains the last layer on a small balanced set held by the server, after every merge (FedAvg-FT of Fig. 1).

    The paper gives neither the size of the set nor the schedule. Here: ``per_class`` of the public samples of each
    class, drawn once per seed; ``steps`` of full-batch gradient descent.
    """

    def init(setting: Setting) -> Tree:
        if setting.public is None or setting.key is None:
            raise InputError("The part 'retrain_head' needs samples on the server, and there are none in this setting.")
        data = balanced(setting.public, setting.net.n_classes, per_class, setting.key)
        return {"x": data.x.to(setting.params.device), "y": data.y.to(setting.params.device)}

    def step(s: Tree, rnd: Round, old: Tensor, new: Tensor, updates: Updates) -> tuple[Tensor, Tree]:
        assert rnd.net is not None
        return train_head(rnd.net, new, Data(s["x"], s["y"]), steps, lr), s

    return Part(init=init, step=step, needs=("public", "labels"))
