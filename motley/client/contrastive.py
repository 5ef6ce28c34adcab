"""Contrast with other models' representations of the same samples."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, softplus

from motley.core.bill import Bill, Cost
from motley.core.errors import InputError
from motley.core.network import Network
from motley.core.part import Part, part
from motley.core.ranges import NotNegativeSchedule, Positive
from motley.core.types import Batch, Client, Data, Facts, Mine, Output, Setting, Tree


@part("objective", neutral={"mu": 0.0}, example={"mu": 5.0})
def model_contrastive(mu: NotNegativeSchedule = 1.0, temperature: Positive = 0.5, projection: bool = False) -> Part:
    """Pulls features towards the received model's and away from the client's previous local model's (MOON).

    ``mu * -log(exp(s(z, z_glob) / T) / (exp(s(z, z_glob) / T) + exp(s(z, z_prev) / T)))``, s the cosine similarity.
    The previous model stays on the client; the first time it is the received one, so that term has no gradient.
    The representation z is the input of the last layer, or with ``projection`` what the model's projection head makes
    of it; the head is trained and averaged with the model, and is the model's (``cnn_rebafl(projection=[256, 128])``).
    """

    def init(setting: Setting) -> Tree:
        if projection and not setting.net.projects:
            raise InputError(
                f"model_contrastive(projection=true) needs a model with a projection head, and "
                f"{type(setting.net.module).__name__} has none here; take one, such as "
                "cnn_rebafl(projection=[256, 128]), or projection=false."
            )
        return {}

    def represented(net: Network, params: Tensor, features: Tensor) -> Tensor:
        return net.project(params, features) if projection else features

    def keep(net: Network, start: Tensor, facts: Facts) -> Tree:
        return start

    def penalty(c: Client, me: Mine, batch: Batch, out: Output) -> Tensor:
        with torch.no_grad():
            received = represented(c.net, c.start, c.net.features(c.start, batch.x))
            previous = represented(c.net, me.own, c.net.features(me.own, batch.x))
        own = represented(c.net, c.params, out.features)
        near = cosine_similarity(own, received, dim=-1)
        far = cosine_similarity(own, previous, dim=-1)
        return me.dials["mu"] * batch.mean(softplus((far - near) / temperature))

    def report(c: Client, me: Mine, data: Data) -> tuple[Client, None]:
        return me.keep(c, c.params), None

    def bill(net: Network, cost: Cost, facts: Facts, bill: Bill) -> Bill:
        return bill.plus(forwards=2.0)  # the received and the previous model see every minibatch, too

    return Part(
        init=init if projection else None,
        keep=keep,
        penalty=penalty,
        report=report,
        bill=bill,
        dials={"mu": mu},
        needs=("features",),
        refuses={"classifier_only": "without training the extractor the features it contrasts never change"},
    )
