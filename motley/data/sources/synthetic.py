"""Synthetic(alpha, beta) of Shamir et al. and Li et al. (FedProx)."""

from __future__ import annotations

import numpy as np
import torch

from motley.core.errors import DataError
from motley.core.keys import Key
from motley.data.dataset import Dataset

N_FEATURES, N_CLASSES = 60, 10
TEST_FRACTION = 0.2


def synthetic(alpha: float = 1.0, beta: float = 1.0, clients: int = 30, seed: int = 0, iid: bool = False) -> Dataset:
    """Synthetic(alpha, beta): 60 features, 10 classes, log-normal client sizes; group 'client'.

    For client k: ``u_k ~ N(0, alpha)``, ``W_k, b_k ~ N(u_k, 1)``, ``B_k ~ N(0, beta)``, ``v_k ~ N(B_k, 1)``,
    ``x ~ N(v_k, diag(j^-1.2))``, ``y = argmax(W_k x + b_k)``; sizes are 50 + floor(lognormal(4, 2)). alpha and beta
    are standard deviations, as in the released code. ``iid``: one (W, b) for all and v = 0. The test set is a fifth of
    every client's samples.
    """
    if alpha < 0 or beta < 0 or clients < 1:
        raise DataError(
            "synthetic needs alpha >= 0, beta >= 0 and clients >= 1, "
            f"not alpha={alpha}, beta={beta}, clients={clients}."
        )
    key = Key.root(seed).fold("synthetic")
    sizes = 50 + key.fold("sizes").generator().lognormal(4.0, 2.0, clients).astype(np.int64)
    sigma = np.arange(1, N_FEATURES + 1) ** -0.6  # the root of j^-1.2
    shared = key.fold("shared").generator()
    W0, b0 = shared.normal(0, 1, (N_CLASSES, N_FEATURES)), shared.normal(0, 1, N_CLASSES)
    xs, ys = [], []
    for k, n in enumerate(sizes):
        rng = key.fold("client", k).generator()
        u, B = rng.normal(0, alpha), rng.normal(0, beta)
        W, b = (W0, b0) if iid else (rng.normal(u, 1, (N_CLASSES, N_FEATURES)), rng.normal(u, 1, N_CLASSES))
        v = np.zeros(N_FEATURES) if iid else rng.normal(B, 1, N_FEATURES)
        x = v + sigma * rng.normal(0, 1, (n, N_FEATURES))
        xs.append(x.astype(np.float32))
        ys.append((x @ W.T + b).argmax(1))
    inputs, y = torch.from_numpy(np.concatenate(xs)), torch.from_numpy(np.concatenate(ys))
    owner = torch.from_numpy(np.repeat(np.arange(clients), sizes))
    n_test = (sizes * TEST_FRACTION).astype(np.int64)  # samples of a client are exchangeable: its first ones
    place = np.arange(len(y)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    test = torch.from_numpy(place < np.repeat(n_test, sizes))
    return Dataset(
        "synthetic",
        inputs[~test],
        y[~test],
        inputs[test],
        y[test],
        N_CLASSES,
        kind="table",
        groups={"client": owner[~test]},
        test_groups={"client": owner[test]},
    )
