"""Training a few adapters in place of a whole model."""

from __future__ import annotations

from torch import nn

from motley.core.keys import Key
from motley.core.part import Part, part
from motley.core.ranges import Count, Positive
from motley.nets.low_rank import adapted
from motley.nets.zoo import drawn


@part("trainable", example={"on": "all", "rank": 2})
def lora(
    rank: Count = 8,
    on: str | list[str] | tuple[str, ...] = "attention",
    alpha: Positive | None = None,
    also: str | list[str] | tuple[str, ...] = (),
    both: bool = True,
) -> Part:
    """Trains adapters of low rank, ``W + (alpha / rank) B A``: only they are trained, sent, averaged and charged.

    on: the layers that get one: ``attention``, ``all`` linear layers but the last, or names, in which ``*`` stands for
    anything. also: layers that are trained whole beside them, such as a new head. alpha: ``rank`` where not given.

    Averages are taken of A and of B, and the product of averages is not the average of products: the merged model is
    not what the mean of the clients' models would be. ``both=False`` holds A as it was drawn and trains B alone, and
    then it is (FFA-LoRA, Sun et al. 2024).
    """

    def adapt(module: nn.Module, key: Key) -> nn.Module:
        scale = float(rank if alpha is None else alpha)
        return drawn(lambda: adapted(module, rank, scale, on, also, both), key.fold("lora"))

    return Part(adapt=adapt)
