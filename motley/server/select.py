"""Who trains. Every part here sees who is there (`Pool`) and what the server has learned, and gives ids."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from motley.core.errors import InputError
from motley.core.part import Part, part
from motley.core.ranges import CountOrZero, NotNegative, Share
from motley.core.types import Outcomes, Pool, Round, Setting, Tree, Updates


def draw(rnd: Round, ids: Tensor, scores: NDArray[np.float64], purpose: str = "select") -> Tensor:
    """``cohort`` of the ids without replacement, with probabilities in proportion to scores (all 0: uniform).

    Where fewer ids than wanted have a score above 0, the rest is drawn uniformly from the others.
    """
    rng = rnd.key.fold(purpose).generator()
    positive = np.flatnonzero(scores > 0)
    k = min(rnd.cohort, len(positive))
    p = scores[positive] / scores[positive].sum() if k else None
    chosen = rng.choice(positive, size=k, replace=False, p=p) if k else np.zeros(0, np.int64)
    if k < rnd.cohort:
        others = np.setdiff1d(np.arange(len(ids)), positive)
        chosen = np.concatenate([chosen, rng.choice(others, size=min(rnd.cohort - k, len(others)), replace=False)])
    return ids[torch.from_numpy(chosen)]


def _numpy(values: Tensor) -> NDArray[np.float64]:
    array: NDArray[np.float64] = values.detach().cpu().numpy().astype(np.float64)
    return array


def remember(table: Tensor, ids: Tensor, values: Tensor) -> Tensor:
    """A table per client [N] with new values of some."""
    new: Tensor = table.clone()
    new[ids.to(table.device)] = values.to(table)
    return new


VALUES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sqrt(n)*loss": lambda n, loss: n.sqrt() * loss,
    "sqrt(n*loss)": lambda n, loss: (n * loss).sqrt(),
}
"""What training a client is worth, from its samples and its mean loss (FedSAE, eq. 6, read in two ways)."""


@part("select", example={"beta": 1.0})
def loss_based(beta: NotNegative = 0.01, rounds: NotNegative = float("inf"), value: str = "sqrt(n)*loss") -> Part:
    """Prefers clients with a large loss, for the first ``rounds`` rounds, then uniform (FedSAE's AL-n, eq. 6 and 7).

    ``v_k = sqrt(n_k) * loss_k`` when client k has trained (``value="sqrt(n*loss)"``: the root over both); probability
    ``exp(beta v_k) / sum exp(beta v)``. Before it has trained, a client counts with ln C, the loss of a guess.
    """
    if value not in VALUES:
        raise InputError(f"loss_based has no value '{value}'; choose one of {', '.join(VALUES)}.")
    rule = VALUES[value]

    def init(setting: Setting) -> Tree:
        n = setting.n if setting.n is not None else torch.ones(setting.n_clients)
        return {"value": rule(n.cpu(), torch.tensor(math.log(setting.net.n_classes)))}

    def select(s: Tree, rnd: Round, pool: Pool) -> Tensor:
        if rnd.number > rounds:
            return draw(rnd, pool.ids, np.zeros(len(pool.ids)))
        scaled = beta * _numpy(s["value"].cpu()[pool.ids])
        return draw(rnd, pool.ids, np.exp(scaled - scaled.max()))

    def observe(s: Tree, rnd: Round, updates: Updates) -> Tree:
        return {"value": remember(s["value"], updates.ids, rule(updates.n, updates.loss))}

    return Part(init=init, select=select, observe=observe)


@part("select")
def power_of_choice(candidates: CountOrZero = 0) -> Part:
    """Of some candidates drawn by their samples, those with the largest loss (Cho et al. 2020, variant rpow-d).

    ``candidates`` d (default: twice the cohort). The loss is what a client reported last, so that nobody is asked
    beforehand; who has never trained counts as infinite.
    """

    def init(setting: Setting) -> Tree:
        return {"loss": torch.full((setting.n_clients,), float("inf"))}

    def select(s: Tree, rnd: Round, pool: Pool) -> Tensor:
        d = min(len(pool.ids), max(rnd.cohort, candidates or 2 * rnd.cohort))
        drawn = draw(rnd._replace(cohort=d), pool.ids, _numpy(pool.n[pool.ids]))
        order = torch.argsort(s["loss"].cpu()[drawn], descending=True, stable=True)
        return drawn[order[: rnd.cohort]]

    def observe(s: Tree, rnd: Round, updates: Updates) -> Tree:
        return {"loss": remember(s["loss"], updates.ids, updates.loss)}

    return Part(init=init, select=select, observe=observe)


@part("select")
def reputation(ema: Share = 0.5, restart: CountOrZero = 60, scale: str = "round") -> Part:
    """Prefers clients that train many layers and agree with the rest, with warm restarts (FreezeFL, eq. 5-8).

    ``U_sys = L - n_k`` (layers trained; times the width where clients train narrow networks), ``U_data = max(0,
    sum_l <delta_kl, delta_l> / dim_l)`` over the trained layers, ``u_k = ema u_k + (1 - ema) U_sys U_data``; selection
    in proportion to u. Every ``restart`` rounds (0: never) utilities move towards their mean by at most
    ``sqrt(2 ln(restart) / phi_k)``, phi_k the participations since the last restart (at least 1).

    The paper gives neither the factor of the average nor the scale of the equal first utilities: they are 1, and
    ``scale="round"`` divides the products by their mean over the round, so that new and old utilities compare;
    ``scale="none"`` takes them as they are.
    """
    if scale not in ("round", "none"):
        raise InputError(f"reputation's scale is '{scale}'; choose 'round' or 'none'.")

    def init(setting: Setting) -> Tree:
        n = setting.n_clients
        return {"utility": torch.ones(n), "times": torch.zeros(n)}

    def select(s: Tree, rnd: Round, pool: Pool) -> Tensor:
        return draw(rnd, pool.ids, _numpy(s["utility"].cpu()[pool.ids]))

    def step(s: Tree, rnd: Round, old: Tensor, new: Tensor, updates: Updates) -> tuple[Tensor, Tree]:
        assert rnd.net is not None
        layout = rnd.net.layout
        agreement = layout.per_layer_sum(updates.delta * (new - old)) / layout.layer_sizes.to(old.device)
        quality = (agreement * updates.trained).sum(-1).clamp_min(0.0)
        efficiency = updates.trained.sum(-1) * (1.0 if updates.width is None else updates.width)
        product = (efficiency * quality).cpu()
        if scale == "round":
            product = product / product.mean().clamp_min(torch.finfo(product.dtype).tiny)
        ids = updates.ids.cpu()
        kept = s["utility"].cpu()
        utility = remember(kept, ids, ema * kept[ids] + (1.0 - ema) * product)
        times = s["times"].cpu() + torch.bincount(ids, minlength=len(kept)).to(kept.dtype)
        return new, {"utility": utility, "times": times}

    def conclude(s: Tree, rnd: Round, outcomes: Outcomes) -> Tree:
        if not restart or rnd.number % restart:
            return s
        return {"utility": warm_restart(s["utility"], s["times"], restart), "times": torch.zeros_like(s["times"])}

    return Part(init=init, select=select, step=step, conclude=conclude)


def warm_restart(utility: Tensor, times: Tensor, interval: int) -> Tensor:
    """Utilities [N] moved towards their mean, the less the better a client is known (FreezeFL, eq. 8)."""
    mean = utility.mean()
    bound = torch.sqrt(2.0 * math.log(interval) / times.clamp_min(1.0))
    up, down = torch.minimum(mean, utility + bound), torch.maximum(mean, utility - bound)
    return torch.where(utility < mean, up, down)
