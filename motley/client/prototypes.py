"""Class prototypes: mean features per class, shared to augment what a client has no samples of."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from motley.client.logits import prior_offsets
from motley.core.bill import Bill, Cost
from motley.core.network import Network
from motley.core.part import Part, part
from motley.core.ranges import NotNegative, NotNegativeSchedule
from motley.core.types import Batch, Client, Data, Facts, Mine, Output, Round, Setting, Tree, Updates

CHUNK = 1024  # samples whose features are computed at once


def one_hot(y: Tensor, n_classes: int) -> Tensor:
    """[N] labels as [N, C] float32."""
    return (y.unsqueeze(-1) == torch.arange(n_classes, device=y.device)).to(torch.float32)


def feature_sums(net: Network, params: Tensor, data: Data) -> tuple[Tensor, Tensor]:
    """Sums of features per class [C, F] and how many samples are in each [C]."""
    members = one_hot(data.y, net.n_classes)
    if data.mask is not None:
        members = members * data.mask.unsqueeze(-1)
    features = torch.cat([net.features(params, x) for x in data.x.split(CHUNK)])
    return members.transpose(-1, -2) @ features, members.sum(0)


def mean_features(sums: Tensor, counts: Tensor) -> Tensor:
    """Prototypes [C, F]; zero where a class has no sample."""
    return sums / counts.clamp_min(1.0).unsqueeze(-1)


def transfer(features: Tensor, y: Tensor, target: Tensor, prototypes: Tensor, lam: float) -> Tensor:
    """``p[y'] + lam * (h - p[y])``: features [B, F] moved from class y to class y' (eq. 15)."""
    return prototypes[target] + lam * (features - prototypes[y])


def cyclic_targets(batch: Batch, n_classes: int) -> Tensor:
    """``y' = j mod C`` for the j-th sample that counts: [B]."""
    if batch.mask is None:
        return torch.arange(len(batch.y), device=batch.y.device) % n_classes
    return (batch.mask.cumsum(0).to(torch.int64) - 1).clamp_min(0) % n_classes


@part("objective", neutral={"mu": 0.0}, example={"mu": 1.0})
def prototype_augmentation(
    mu: NotNegativeSchedule = 0.1,
    lam: NotNegative = 1.0,
    eps: NotNegativeSchedule = 1.0,
    keep_absent: bool = False,
    keep_unmoved: bool = False,
    first_round: int = 1,
) -> Part:
    """Trains the classifier on features moved to every class that has a prototype (ReBaFL, eq. 15-23).

    Client: its own classes' prototypes, from the received extractor, override the received ones (eq. 18). The j-th
    sample of a minibatch becomes one of class ``y' = j mod C``, ``p[y'] + lam * (h - p[y])``, where both prototypes
    exist; ``mu`` times the mean cross-entropy of these is added (eq. 16), with gradient to the last layer only
    (eq. 19). The prior of the augmented minibatch is recomputed from its own labels and smoothed with ``eps``; eps = 1
    is the plain softmax. With ``keep_unmoved`` the samples that cannot be moved stay in this term as they are, under
    their own class, and before ``first_round`` there is no such term (the authors' code: true, and 2). After training,
    fresh sums of features and counts per class go up (eq. 21).
    Server: mean by class counts (eq. 23). A class that nobody reported has no prototype in the next round, or with
    ``keep_absent`` its last one. A client that trained nothing reports none.
    """

    def init(setting: Setting) -> Tree:
        net, like = setting.net, setting.params
        return {"prototypes": like.new_zeros(net.n_classes, net.n_features), "known": like.new_zeros(net.n_classes)}

    def send(s: Tree, rnd: Round) -> Tree:
        return s

    def begin(c: Client, me: Mine, data: Data) -> Client:
        sums, counts = feature_sums(c.net, c.start, data)
        local = (counts > 0).to(sums.dtype)
        prototypes = torch.where(local.unsqueeze(-1) > 0, mean_features(sums, counts), me.down["prototypes"])
        return me.note(c, {"prototypes": prototypes, "known": torch.maximum(local, me.down["known"])})

    def penalty(c: Client, me: Mine, batch: Batch, out: Output) -> Tensor:
        prototypes, known = me.notes["prototypes"], me.notes["known"]
        target = cyclic_targets(batch, c.net.n_classes)
        valid = known[target] * known[batch.y]
        own = out.features.detach()
        features = transfer(own, batch.y, target, prototypes, lam)
        if keep_unmoved:
            features = torch.where(valid.unsqueeze(-1) > 0, features, own)
            target, valid = torch.where(valid > 0, target, batch.y), torch.ones_like(valid)
        if batch.mask is not None:
            valid = valid * batch.mask
        counts = (one_hot(target, c.net.n_classes) * valid.unsqueeze(-1)).sum(0)
        z = c.net.classify(c.params, features) + prior_offsets(counts, me.dials["eps"])
        term = Batch(batch.x, target, valid).mean(cross_entropy(z, target, reduction="none"))
        return me.dials["mu"] * term * (c.facts.round >= first_round)

    def report(c: Client, me: Mine, data: Data) -> tuple[Client, Tree]:
        sums, counts = feature_sums(c.net, c.params, data)
        took_part = c.trained.max()
        return c, {"sums": sums * took_part, "counts": counts * took_part}

    def bill(net: Network, cost: Cost, facts: Facts, bill: Bill) -> Bill:
        return bill.plus(passes=2.0)  # prototypes before and after training

    def observe(s: Tree, rnd: Round, updates: Updates) -> Tree:
        sums, counts = updates.extra["sums"].sum(0), updates.extra["counts"].sum(0)
        fresh = (counts > 0).to(sums.dtype)
        prototypes = mean_features(sums, counts)
        if keep_absent:
            prototypes = torch.where(fresh.unsqueeze(-1) > 0, prototypes, s["prototypes"])
            fresh = torch.maximum(fresh, s["known"])
        return {"prototypes": prototypes, "known": fresh}

    return Part(
        init=init,
        send=send,
        begin=begin,
        penalty=penalty,
        report=report,
        bill=bill,
        observe=observe,
        dials={"mu": mu, "eps": eps},
        needs=("labels", "features"),
        refuses={"body_only": "the augmentation trains the last layer alone, which body_only holds fixed"},
    )
