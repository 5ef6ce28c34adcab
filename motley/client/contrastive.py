"""Contrast with other models' representations of the same samples."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, softplus

from motley.core.bill import Bill, Cost
from motley.core.network import Network
from motley.core.part import Part, part
from motley.core.ranges import NotNegativeSchedule, Positive
from motley.core.types import Batch, Client, Data, Facts, Mine, Output, Tree


@part("objective", neutral={"mu": 0.0}, example={"mu": 5.0})
def model_contrastive(mu: NotNegativeSchedule = 1.0, temperature: Positive = 0.5) -> Part:
    """Pulls features towards the received model's and away from the client's previous local model's (MOON).

    ``mu * -log(exp(s(z, z_glob) / T) / (exp(s(z, z_glob) / T) + exp(s(z, z_prev) / T)))``, s the cosine similarity.
    The previous model stays on the client; the first time it is the received one, so that term has no gradient.
    Deviation: the representation is the input of the last layer, without MOON's additional projection head.
    """

    def keep(net: Network, start: Tensor, facts: Facts) -> Tree:
        return start

    def penalty(c: Client, me: Mine, batch: Batch, out: Output) -> Tensor:
        with torch.no_grad():
            received = c.net.features(c.start, batch.x)
            previous = c.net.features(me.own, batch.x)
        near = cosine_similarity(out.features, received, dim=-1)
        far = cosine_similarity(out.features, previous, dim=-1)
        return me.dials["mu"] * batch.mean(softplus((far - near) / temperature))

    def report(c: Client, me: Mine, data: Data) -> tuple[Client, None]:
        return me.keep(c, c.params), None

    def bill(net: Network, cost: Cost, facts: Facts, bill: Bill) -> Bill:
        return bill.plus(forwards=2.0)  # the received and the previous model see every minibatch, too

    return Part(
        keep=keep,
        penalty=penalty,
        report=report,
        bill=bill,
        dials={"mu": mu},
        needs=("features",),
        refuses={"classifier_only": "without training the extractor the features it contrasts never change"},
    )
