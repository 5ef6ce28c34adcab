"""Which layers a client may change."""

from __future__ import annotations

import torch
from torch import Tensor

from motley.core.errors import DataError
from motley.core.network import Network
from motley.core.part import Part, part
from motley.core.types import Facts


def classifier_mask(net: Network, like: Tensor) -> Tensor:
    """1 for the layers of the classifier, 0 for the feature extractor: [L]."""
    if not net.classifier_layers:
        raise DataError(
            "The layers of the classifier have requires_grad=False, but this method lets clients train the classifier "
            "alone; leave a part of it trainable, or name other layers: Network(module, classifier=(...))."
        )
    mask = torch.zeros(net.n_layers, device=like.device)
    mask[list(net.classifier_layers)] = 1.0
    return mask


@part("trainable")
def classifier_only_when_limited() -> Part:
    """Computing-limited clients train the classifier alone, others the whole model (FES; eq. 2 and 3).

    Which layers are the classifier is the model's to say (`Network.classifier_layers`); for the paper's CNN these are
    its three linear layers.
    """

    def trainable(net: Network, facts: Facts) -> Tensor:
        return torch.maximum(classifier_mask(net, facts.limited), 1.0 - facts.limited)

    return Part(trainable=trainable)


@part("trainable")
def classifier_only() -> Part:
    """Every client trains the classifier alone."""

    def trainable(net: Network, facts: Facts) -> Tensor:
        return classifier_mask(net, facts.limited)

    return Part(
        trainable=trainable, refuses={"body_only": "one trains the classifier alone, the other all but the head"}
    )


@part("trainable")
def body_only() -> Part:
    """Every client trains all but the last layer, which keeps its first random weights (FedBABU, Oh et al. 2022)."""

    def trainable(net: Network, facts: Facts) -> Tensor:
        mask = torch.ones(net.n_layers, device=facts.limited.device)
        if net.head_is_trained:  # else it is held as it is
            mask[net.head_layer] = 0.0
        return mask

    return Part(trainable=trainable, refuses={"retrain_head": "one holds the last layer fixed, the other trains it"})


@part("trainable")
def drop_limited() -> Part:
    """Computing-limited clients train nothing, so nothing of theirs is merged ("naive FL" of AMA-FES).

    They are still chosen, as in the paper: a round may end with few updates or none.
    """

    def trainable(net: Network, facts: Facts) -> Tensor:
        return torch.ones(net.n_layers, device=facts.limited.device) * (1.0 - facts.limited)

    return Part(
        trainable=trainable,
        refuses={"classifier_only_when_limited": "one drops computing-limited clients, the other lets them train"},
    )
