"""Server kernels in torch, on whichever device their tensors lie."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor


def streaming_mean(rows: Tensor, weights: Tensor) -> Tensor:
    total = torch.zeros_like(rows[0])
    for row, weight in zip(rows, weights, strict=True):
        total.addcmul_(row, weight)
    return total


def batched_mean(rows: Tensor, weights: Tensor) -> Tensor:
    return weights @ rows


def masked_mean(rows: Tensor, weights: Tensor, trained: Tensor, bounds: Tensor) -> Tensor:
    share = weights[:, None] * trained
    total = share.sum(0)
    share = torch.where(total > 0, share / total.clamp_min(torch.finfo(torch.float32).tiny), 0.0)
    spans = pairwise(bounds.tolist())
    return torch.cat([share[:, layer] @ rows[:, begin:end] for layer, (begin, end) in enumerate(spans)])


def trimmed_mean(rows: Tensor, trim: int) -> Tensor:
    return rows.sort(0).values[trim : len(rows) - trim].mean(0)


def median(rows: Tensor) -> Tensor:
    ordered = rows.sort(0).values
    return (ordered[(len(rows) - 1) // 2] + ordered[len(rows) // 2]) / 2


def krum_distances(rows: Tensor) -> Tensor:
    square = torch.einsum("kp,kp->k", rows, rows)
    distances = square[:, None] + square - 2 * (rows @ rows.T)
    return distances.fill_diagonal_(0).clamp_min_(0)


def dequantise_add(total: Tensor, codes: Tensor, scales: Tensor) -> Tensor:
    total = total.clone()
    for row, scale in zip(codes, scales, strict=True):
        total.addcmul_(row, scale)
    return total


def clip_sum(rows: Tensor, limit: float) -> Tensor:
    return (limit / rows.norm(dim=1)).clamp_max(1.0) @ rows


def top_k(rows: Tensor, k: int) -> Tensor:
    return rows.abs().topk(k, 1, sorted=False).indices.sort(1).values


def ternarise(rows: Tensor, k: int) -> tuple[Tensor, ...]:
    size, places = rows.abs().topk(k, 1, sorted=False)
    codes = torch.zeros(rows.shape, dtype=torch.int8, device=rows.device)
    codes.scatter_(1, places, rows.gather(1, places).sign().to(torch.int8))
    return codes, size.mean(1)
