"""Who trains, by how much there is left to learn from each client's data (RADFed-IS)."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from motley.core.bill import Bill, Cost
from motley.core.network import Network
from motley.core.part import Part, part
from motley.core.ranges import Positive, PositiveShare, Share
from motley.core.types import Batch, Client, Data, Facts, Mine, Pool, Round, Setting, Tree, Updates
from motley.server.method_server import uniform


@part("select", neutral={"floor": 1.0}, example={"gamma": 0.9})
def importance(gamma: PositiveShare = 0.9, floor: Share = 0.0, initial: Positive | None = 1.0) -> Part:
    """Chooses clients with probabilities in proportion to their gradients after local training (RADFed-IS).

    Client: ``p_new = 1/|D| sum_d ||grad l_d(w*)||^2`` over its minibatches d. Server: ``p_k = (1 - gamma) p_k + gamma
    p_new``; a cohort is drawn one by one without replacement, probability in proportion to p. With ``floor`` f the
    probability is mixed with an equal one, ``(1 - f) p_k / sum p + f / A`` among A active clients. All scores start at
    ``initial``; None: a client that has not reported yet counts as the mean of those that have.
    """

    def init(setting: Setting) -> Tree:
        return {
            "score": torch.full((setting.n_clients,), 1.0 if initial is None else initial),
            "known": torch.zeros(setting.n_clients),
        }

    def select(s: Tree, rnd: Round, pool: Pool) -> Tensor:
        if floor == 1.0:
            return uniform(rnd, pool)
        score = s["score"].double().cpu()
        if initial is None:
            known = s["known"].cpu() > 0
            score = torch.where(known, score, score[known].mean() if bool(known.any()) else 1.0)
        weight = score[pool.ids].numpy()
        return pool.ids[torch.from_numpy(draw(weight, rnd.cohort, floor, rnd.key.fold("select").generator()))]

    def report(c: Client, me: Mine, data: Data) -> tuple[Client, Tree]:
        return c, me.notes

    def observe(s: Tree, rnd: Round, updates: Updates) -> Tree:
        score, known = s["score"], s["known"]
        ids, new = updates.ids.to(score.device), updates.extra.to(score.device)
        old = score[ids]
        mixed = (1.0 - gamma) * old + gamma * new
        if initial is None:
            mixed = torch.where(known[ids] > 0, mixed, new)
        mixed = torch.where(torch.isfinite(mixed), mixed, old)
        return {"score": score.index_put((ids,), mixed), "known": known.index_put((ids,), torch.ones_like(mixed))}

    def bill(net: Network, cost: Cost, facts: Facts, bill: Bill) -> Bill:
        return bill.plus(gradients=1.0)  # of every minibatch, after training

    return Part(init=init, select=select, measure=squared_gradient, report=report, observe=observe, bill=bill)


def squared_gradient(c: Client, me: Mine, batch: Batch) -> Tensor:
    """The squared norm of the loss's gradient at the client's model: 0-d. The loss is the problem's alone."""

    def loss(params: Tensor) -> Tensor:
        return batch.mean(c.problem.losses(c.net(params, batch.x).logits, batch.y))

    return torch.func.grad(loss)(c.params).square().sum()


def draw(score: NDArray[np.float64], k: int, floor: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """``k`` places without replacement, one by one in proportion to ``score`` [A] (by Gumbel's trick), floor mixed in.

    Places with score 0 come last.
    """
    total = score.sum()
    share = score / total if total > 0 else np.full(len(score), 1.0 / len(score))
    share = (1.0 - floor) * share + floor / len(score)
    noise = -np.log(-np.log(rng.uniform(np.finfo(np.float64).tiny, 1.0, len(score))))
    order = np.argsort(-(np.log(np.maximum(share, np.finfo(np.float64).tiny)) + noise), kind="stable")
    return order[:k]
