"""Uploads that leave small changes out."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from motley.core.part import Part, part
from motley.core.ranges import PositiveShare
from motley.core.types import Client, Mine, Tree
from motley.server.largest_entries import top_k


@part("wire", neutral={"share": 1.0}, example={"share": 0.1})
def largest_changes(share: PositiveShare = 0.1) -> Part:
    """Only the ``share`` of a client's changes that is largest in size goes up: values and places (Aji, Heafield 2017).

    ``ceil(share P)`` of P parameters, eight bytes each in place of four, so that up to a share of one half fewer bytes
    go up. What is left out is lost: clients keep no memory of it.
    """

    def encode(c: Client, me: Mine, payload: Tree) -> Tree:
        if share == 1.0:
            return payload
        places = top_k(payload, math.ceil(share * payload.shape[-1] - 1e-9))
        size = payload.new_full((), payload.shape[-1], dtype=torch.int32)
        return {"places": places.to(torch.int32), "values": payload.gather(-1, places), "size": size}

    def decode(payload: Tree) -> Tree:
        if share == 1.0:
            return payload
        dense: Tensor = payload["values"].new_zeros(int(payload["size"]))
        return dense.scatter(0, payload["places"].to(torch.int64), payload["values"])

    return Part(encode=encode, decode=decode)
