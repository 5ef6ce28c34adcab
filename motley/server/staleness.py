"""What becomes of updates that were trained on an old model. The age of an update counts rounds since its dispatch.

A stale model (FedAsync, asynchronous AMA) is not a stale change (FedBuff): the first pulls the global model back to
where the client started from, the second adds only what the client has learned.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from motley.core.errors import InputError
from motley.core.network import Network
from motley.core.part import Part, part
from motley.core.ranges import Count, NotNegative, NotNegativeSchedule, Share, ShareSchedule
from motley.core.types import Outcomes, Round, Setting, Tree, Updates
from motley.nets.width import mask_of
from motley.server.tiers import tier_of

Discount = Callable[[Tensor], Tensor]


def _constant(a: float, b: float) -> Discount:
    return torch.ones_like


def _polynomial(a: float, b: float) -> Discount:
    return lambda age: (age + 1.0) ** -a


def _hinge(a: float, b: float) -> Discount:
    return lambda age: torch.where(age <= b, torch.ones_like(age), 1.0 / (a * (age - b).clamp_min(0.0) + 1.0))


DISCOUNTS: dict[str, Callable[[float, float], Discount]] = {
    "constant": _constant,
    "polynomial": _polynomial,
    "hinge": _hinge,
}
"""s(age) of FedAsync: 1; (age + 1)^-a; 1 up to age b, then 1 / (a (age - b) + 1)."""


def discount(kind: str, a: float, b: float) -> Discount:
    """A staleness function by name."""
    if kind not in DISCOUNTS:
        raise InputError(f"There is no staleness function '{kind}'; there are {', '.join(DISCOUNTS)}.")
    return DISCOUNTS[kind](a, b)


BY_ITSELF = "it decides by itself what an old update counts"


def parameters_held(net: Network | None, updates: Updates) -> Tensor | None:
    """Which parameters narrow clients have: bool [K, P]; None where everybody has all."""
    if updates.width is None or bool((updates.width >= 1).all()):
        return None
    assert net is not None
    return mask_of(net, updates.width) > 0


def _towards_models(net: Network | None, params: Tensor, updates: Updates) -> Tensor:
    """From the global model to each client's: [K, P]; 0 where a narrow client has no such parameter."""
    away = updates.delta + (updates.start - params)
    held = parameters_held(net, updates)
    return away if held is None else torch.where(held, away, 0.0)


def per_layer(net: Network | None, base: Tensor, share: Tensor, rows: Tensor) -> Tensor:
    """``base_l + sum_k share_kl rows_kl`` for every layer l. base [P], share [K, L], rows [K, P]."""
    assert net is not None
    layers = net.layout.layers
    if bool((share == share[:, :1]).all()):
        return base + share[:, 0] @ rows
    pieces = [base[y.start : y.stop] + share[:, y.order] @ rows[:, y.start : y.stop] for y in layers]
    return torch.cat(pieces)


@part("aggregate", neutral={"kind": "constant"}, example={"kind": "polynomial"}, protocol="late")
def staleness_weight(kind: str = "polynomial", a: NotNegative = 0.5, b: NotNegative = 4.0) -> Part:
    """Counts an update less the older it is: its weight times s(age)."""
    s_of = discount(kind, a, b)

    def weigh(s: Tree, rnd: Round, updates: Updates) -> Tensor:
        return s_of(updates.age)

    return Part(weigh=weigh)


@part("aggregate")
def mix_by_staleness(
    alpha: ShareSchedule = 0.6, kind: str = "polynomial", a: NotNegative = 0.5, b: NotNegative = 4.0, on: str = "models"
) -> Part:
    """Mixes each arriving model into the global one, less the older it is (FedAsync, Xie et al. 2019).

    ``w = (1 - alpha_k) w + alpha_k w_k`` with ``alpha_k = alpha * s(age_k)``, one after the other in order of arrival.
    ``on="changes"`` adds what the client learned instead: ``w + alpha_k (w_k - start_k)``. Layers that a client did not
    train, and parameters that a narrow client does not have, stay as they are.
    """
    s_of = discount(kind, a, b)
    if on not in ("models", "changes"):
        raise InputError(f"mix_by_staleness works on 'models' or 'changes', not on '{on}'.")

    def merge(s: Tree, rnd: Round, params: Tensor, updates: Updates, weights: Tensor) -> Tensor:
        rates = rnd.dials["alpha"] * s_of(updates.age)
        held = parameters_held(rnd.net, updates)
        for k in range(len(updates)):
            change = updates.delta[k] if on == "changes" else updates.delta[k] + (updates.start[k] - params)
            if held is not None:
                change = torch.where(held[k], change, 0.0)
            params = per_layer(rnd.net, params, (rates[k] * updates.trained[k])[None], change[None])
        return params

    return Part(merge=merge, dials={"alpha": alpha}, refuses={"staleness_weight": BY_ITSELF})


@part("aggregate")
def add_stale_changes(
    lr: NotNegativeSchedule = 1.0, kind: str = "polynomial", a: NotNegative = 0.5, b: NotNegative = 4.0
) -> Part:
    """Adds the mean of buffered changes, each less the older it is (FedBuff, Nguyen et al. 2022).

    ``w + lr / K * sum_k s(age_k) delta_k`` over the K changes of the buffer, whatever their numbers of samples.
    """
    s_of = discount(kind, a, b)

    def merge(s: Tree, rnd: Round, params: Tensor, updates: Updates, weights: Tensor) -> Tensor:
        rates = rnd.dials["lr"] / len(updates) * s_of(updates.age)
        return per_layer(rnd.net, params, rates[:, None] * updates.trained, updates.delta)

    return Part(merge=merge, dials={"lr": lr}, refuses={"staleness_weight": BY_ITSELF})


@part("aggregate", neutral={"alpha": 0.0, "slope": 0.0}, example={"alpha": 0.5})
def mix_stale_models(
    alpha: Share = 0.1, slope: NotNegative = 2.5e-3, b: NotNegative = 0.6, maximum: Share = 0.95, whole: bool = True
) -> Part:
    """Mixes previous model, fresh models and late models (asynchronous AMA, eq. 6-11).

    ``w_t = alpha_t w_{t-1} + beta * sum_fresh p_i w_i + sum_late gamma_i w_i`` with, for A = alpha + slope * t (at most
    ``maximum``): ``beta = 1 - A``, ``alpha_raw = 1 - sigmoid(1)``, ``gamma_raw_i = b (1 - sigmoid(t - n_i))``, and
    alpha_t and gamma_i the raw ones scaled to sum to A. p_i are the sample shares of the fresh ones. Without late
    updates it is eq. 5; without fresh ones beta's share goes to alpha_t.

    ``whole``: a model counts as it was sent, with the layers its client left untouched (eq. 3 and 6); otherwise the
    coefficients are made for each layer from those who trained it.
    """

    def merge(s: Tree, rnd: Round, params: Tensor, updates: Updates, weights: Tensor) -> Tensor:
        mixed = min(alpha + slope * rnd.number, maximum)
        counts = updates.trained.amax(-1, keepdim=True).expand_as(updates.trained) if whole else updates.trained
        share = ama_shares(mixed, b, updates.age, weights, counts)  # [K, L]
        return per_layer(rnd.net, params, share, _towards_models(rnd.net, params, updates))

    return Part(
        merge=merge,
        refuses={"mix_with_previous": "both mix with the previous global model", "staleness_weight": BY_ITSELF},
    )


def ama_shares(mixed: float, b: float, age: Tensor, weights: Tensor, counts: Tensor) -> Tensor:
    """beta p_i of fresh and gamma_i of late updates, per layer: [K, L]; what is missing to 1 is alpha_t (eq. 6-11).

    mixed: alpha0 + eta t. age, weights [K]; counts [K, L] 1 where a model counts.
    """
    fresh = (age <= 0).to(counts.dtype)[:, None] * counts * weights[:, None]
    total = fresh.sum(0)
    beta = (1.0 - mixed) * fresh / torch.where(total > 0, total, torch.ones_like(total))
    alpha_raw = 1.0 - torch.sigmoid(torch.ones((), device=age.device))
    gamma_raw = b * (1.0 - torch.sigmoid(age))[:, None] * (age > 0).to(counts.dtype)[:, None] * counts
    return beta + mixed * gamma_raw / (alpha_raw + gamma_raw.sum(0))


@part("aggregate")
def cached_models() -> Part:
    """Averages the last known model of every client, heard of now or not (SAFA, Wu et al. 2021, eq. 6-8).

    The cache starts with the first global model. It takes the models that are merged before merging; clients that were
    called back (or lost) since the last merging, and have sent nothing that is merged now, count with the global model
    again. Updates that came and were not picked enter the cache after the merging. Needs memory for a model per client.
    """

    def init(setting: Setting) -> Tree:
        n = setting.n if setting.n is not None else torch.ones(setting.n_clients)
        shape = (setting.n_clients, setting.params.shape[0])
        return {
            "models": setting.params.expand(shape).clone(),
            "share": (n / n.sum()).to(setting.params.device),
            "deprecated": torch.zeros(setting.n_clients, device=setting.params.device),
            "merged": torch.tensor(0),
        }

    def observe(s: Tree, rnd: Round, updates: Updates) -> Tree:
        models, deprecated = s["models"].clone(), s["deprecated"].clone()
        held = parameters_held(rnd.net, updates)
        models[updates.ids] = updates.models if held is None else torch.where(held, updates.models, models[updates.ids])
        deprecated[updates.ids] = 0.0
        return {**s, "models": models, "deprecated": deprecated}

    def gone(s: Tree, rnd: Round, updates: Updates) -> Tensor:
        found: Tensor = s["deprecated"].clone()
        found[list(rnd.dropped)] = 1.0
        found[updates.ids] = 0.0
        return found

    def merge(s: Tree, rnd: Round, params: Tensor, updates: Updates, weights: Tensor) -> Tensor:
        old = gone(s, rnd, updates) * s["share"]
        kept: Tensor = (s["share"] - old) @ s["models"]
        return kept + old.sum() * params

    def step(s: Tree, rnd: Round, old: Tensor, new: Tensor, updates: Updates) -> tuple[Tensor, Tree]:
        return new, {
            **s,
            "models": torch.where(gone(s, rnd, updates)[:, None] > 0, old, s["models"]),
            "deprecated": torch.zeros_like(s["deprecated"]),
            "merged": torch.tensor(rnd.number),
        }

    def conclude(s: Tree, rnd: Round, outcomes: Outcomes) -> Tree:
        """A round in which nothing was merged leaves its failures to the next one."""
        if int(s["merged"]) == rnd.number:
            return s
        failed = sorted(set(outcomes.ids[outcomes.done <= 0].tolist()) - set(outcomes.ids[outcomes.done > 0].tolist()))
        deprecated = s["deprecated"].clone()
        deprecated[failed] = 1.0
        return {**s, "deprecated": deprecated}

    return Part(
        init=init, observe=observe, conclude=conclude, merge=merge, step=step, refuses={"staleness_weight": BY_ITSELF}
    )


@part("aggregate")
def tier_models(tiers: Count = 5) -> Part:
    """One model per tier; the global one weighs slow tiers by how often the fast ones were merged (FedAT, eq. 4).

    ``w = sum_m T_(M+1-m) / T * w_m`` with T_m the mergings of tier m so far, T their sum. A tier's model is the merged
    mean of its newest cohort. Tiers are those of the `tiered` protocol, known by the first client that arrives of them.
    """

    def init(setting: Setting) -> Tree:
        n, device = setting.n_clients, setting.params.device
        seconds = setting.seconds if setting.seconds is not None else torch.arange(float(n))
        return {
            "models": setting.params.expand(tiers, -1).clone(),
            "times": torch.zeros(tiers, device=device),
            "tier_of": tier_of(seconds.tolist(), tiers).to(device),
        }

    def step(s: Tree, rnd: Round, old: Tensor, new: Tensor, updates: Updates) -> tuple[Tensor, Tree]:
        tier = s["tier_of"][updates.ids[0]]
        models = s["models"].clone()
        models[tier] = updates.start[0] + (new - old)  # what the cohort made of the model it received
        times = s["times"] + torch.nn.functional.one_hot(tier, tiers).to(s["times"].dtype)
        share = times.flip(0) / times.sum()
        return share @ models, {**s, "models": models, "times": times}

    return Part(init=init, step=step)
