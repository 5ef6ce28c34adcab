"""ReBaFL (Xu, Yang, Ding, Huang) and the methods it is compared with that are not about logits."""

from __future__ import annotations

from motley.client.contrastive import model_contrastive
from motley.client.logits import relaxed_balanced_softmax
from motley.client.private import private_layers
from motley.client.prototypes import prototype_augmentation
from motley.client.trainable import body_only
from motley.core.part import Method, compose
from motley.core.ranges import NotNegative, NotNegativeSchedule, Positive, Share
from motley.methods.named import METHODS
from motley.server.merge import normalised_averaging
from motley.server.retrain import retrain_head


@METHODS.add()
def rebafl(
    eps: NotNegativeSchedule = 0.01,
    mu: NotNegativeSchedule = 0.1,
    lam: NotNegative = 1.0,
    keep_absent: bool = False,
    keep_unmoved: bool = False,
    first_round: int = 1,
) -> Method:
    """Relaxed balanced softmax and prototype feature augmentation (Algorithm 1)."""
    return compose(
        relaxed_balanced_softmax(eps=eps),
        prototype_augmentation(
            mu=mu, lam=lam, eps=eps, keep_absent=keep_absent, keep_unmoved=keep_unmoved, first_round=first_round
        ),
        name="rebafl",
    )


@METHODS.add()
def moon(mu: NotNegativeSchedule = 1.0, temperature: Positive = 0.5, projection: bool = False) -> Method:
    """Model-contrastive learning (Li, He, Song 2021); ``projection``: on the model's projection head."""
    return compose(model_contrastive(mu=mu, temperature=temperature, projection=projection), name="moon")


@METHODS.add()
def fedbabu() -> Method:
    """Only the body is trained, the head stays as it was first drawn (Oh, Kim, Yun 2022).

    The global model is evaluated with that head; the diagnostic ``fine_tuned`` also measures it with heads fine-tuned
    on the clients.
    """
    return compose(body_only(), name="fedbabu")


@METHODS.add()
def fedper() -> Method:
    """Every client has a last layer of its own (Arivazhagan et al. 2019)."""
    return compose(private_layers(layers="head"), name="fedper")


@METHODS.add()
def fedbn() -> Method:
    """Every client has normalisation of its own, running statistics and all (Li, Jiang, Zhang, Kamp, Dou 2021)."""
    return compose(private_layers(layers="norms"), name="fedbn")


@METHODS.add()
def fednova(momentum: Share = 0.0) -> Method:
    """Normalised averaging against unequal local work (Wang et al. 2020)."""
    return compose(normalised_averaging(momentum=momentum), name="fednova")


@METHODS.add()
def fedavg_ft(per_class: int = 10, steps: int = 20, lr: float = 0.1) -> Method:
    """FedAvg whose head the server re-trains on a small balanced set in every round (ReBaFL, Fig. 1)."""
    return compose(retrain_head(per_class=per_class, steps=steps, lr=lr), name="fedavg_ft")
