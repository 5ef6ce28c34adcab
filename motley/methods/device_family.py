"""Methods against slow, late and unequal devices."""

from __future__ import annotations

from motley.client.freeze import freeze_prefix
from motley.client.narrow import narrow_networks, ordered_dropout
from motley.client.objective import proximal
from motley.client.trainable import classifier_only_when_limited
from motley.core.part import Method, Part, compose
from motley.core.ranges import (
    Count,
    CountOrZero,
    NotNegative,
    NotNegativeSchedule,
    Positive,
    PositiveShare,
    Share,
    ShareSchedule,
)
from motley.methods.named import METHODS, method_of
from motley.server import select_speed
from motley.server.fedsae import workload_by_inverse_ratio, workload_by_threshold
from motley.server.select import loss_based, reputation
from motley.server.select import power_of_choice as choose_by_power
from motley.server.staleness import add_stale_changes, cached_models, mix_by_staleness, mix_stale_models, tier_models

INFINITE = float("inf")


@METHODS.add()
def ama_async(
    alpha0: Share = 0.1,
    eta: NotNegative = 2.5e-3,
    b: NotNegative = 0.6,
    maximum: Share = 0.95,
    whole: bool = True,
    maximum_staleness: NotNegative = INFINITE,
) -> Method:
    """Asynchronous adaptive mixing: late models join the round they arrive in (Li, Mahmoodi, Lam; eq. 6-11)."""
    mixing = mix_stale_models(alpha=alpha0, slope=eta, b=b, maximum=maximum, whole=whole)
    return compose(mixing, protocol="late", options={"maximum_staleness": maximum_staleness}, name="ama_async")


@METHODS.add()
def ama_fes_async(
    alpha0: Share = 0.1, eta: NotNegative = 2.5e-3, b: NotNegative = 0.6, maximum: Share = 0.95, whole: bool = True
) -> Method:
    """AMA-FES with late updates: asynchronous mixing and feature-extractor sharing (Algorithm 1 as a whole)."""
    mixing = ama_async(alpha0=alpha0, eta=eta, b=b, maximum=maximum, whole=whole)
    return compose(mixing, classifier_only_when_limited(), name="ama_fes_async")


@METHODS.add()
def fedasync(
    alpha: ShareSchedule = 0.6,
    staleness: str = "polynomial",
    a: NotNegative = 0.5,
    b: NotNegative = 4.0,
    on: str = "models",
    concurrency: CountOrZero = 0,
    maximum_staleness: NotNegative = INFINITE,
    mu: NotNegativeSchedule = 0.0,
) -> Method:
    """Every arrival is mixed into the global model at once, less the staler it is (Xie et al. 2019).

    ``concurrency`` 0: as many clients at work as the recipe's cohort. ``mu``: the proximal term of its option II.
    """
    mixing = mix_by_staleness(alpha=alpha, kind=staleness, a=a, b=b, on=on)
    near = (proximal(mu=mu),) if mu else ()
    return compose(
        mixing,
        *near,
        protocol="asynchronous",
        options=_asynchronous(1, concurrency, maximum_staleness),
        name="fedasync",
    )


@METHODS.add()
def fedbuff(
    buffer: Count = 10,
    lr: NotNegativeSchedule = 1.0,
    staleness: str = "polynomial",
    a: NotNegative = 0.5,
    b: NotNegative = 4.0,
    concurrency: CountOrZero = 0,
    maximum_staleness: NotNegative = INFINITE,
) -> Method:
    """Changes are collected in a buffer of K and added together, less the staler they are (Nguyen et al. 2022)."""
    adding = add_stale_changes(lr=lr, kind=staleness, a=a, b=b)
    return compose(
        adding, protocol="asynchronous", options=_asynchronous(buffer, concurrency, maximum_staleness), name="fedbuff"
    )


def _asynchronous(buffer: int, concurrency: int, maximum_staleness: float) -> dict[str, float]:
    wide = {"concurrency": concurrency} if concurrency else {}
    return {"buffer": buffer, "maximum_staleness": maximum_staleness, **wide}


@METHODS.add()
def safa(lag: Count = 5) -> Method:
    """Everybody trains, a round takes the first arrivals, the last model of each client is kept (Wu et al. 2021)."""
    return compose(cached_models(), protocol="semi_asynchronous", options={"lag": lag}, name="safa")


@METHODS.add()
def fedat(tiers: Count = 5, mu: NotNegativeSchedule = 0.4) -> Method:
    """Synchronous within tiers of like speed, asynchronous between them, with a proximal term (Chai et al. 2021)."""
    near = (proximal(mu=mu),) if mu else ()
    return compose(tier_models(tiers=tiers), *near, protocol="tiered", options={"tiers": tiers}, name="fedat")


@METHODS.add()
def fedsae_ira(
    u: NotNegative = 10.0, easy: float = 1.0, hard: float = 2.0, al: NotNegative = 0, beta: NotNegative = 0.01
) -> Method:
    """Workloads that grow by U / workload and halve after failure; loss-based selection for ``al`` rounds (FedSAE)."""
    return compose(workload_by_inverse_ratio(u=u, easy=easy, hard=hard), *_active(al, beta), name="fedsae_ira")


@METHODS.add()
def fedsae_fassa(
    alpha: Share = 0.95,
    gamma1: NotNegative = 3.0,
    gamma2: NotNegative = 1.0,
    easy: float = 1.0,
    hard: float = 2.0,
    al: NotNegative = 0,
    beta: NotNegative = 0.01,
) -> Method:
    """Workloads that grow fast below a client's usual one, slowly above it (FedSAE); loss-based selection at first."""
    workload = workload_by_threshold(alpha=alpha, fast=gamma1, slow=gamma2, easy=easy, hard=hard)
    return compose(workload, *_active(al, beta), name="fedsae_fassa")


def _active(rounds: float, beta: float) -> tuple[Part, ...]:
    return (loss_based(beta=beta, rounds=rounds),) if rounds else ()


@METHODS.add()
def freezefl(
    beta: NotNegative = 4.0,
    deadline: Positive | None = None,
    ema: Share = 0.5,
    selection: bool = True,
    restart: CountOrZero = 60,
    scale: str = "round",
) -> Method:
    """Slow clients freeze their first layers; selection by reputation with warm restarts (Chou, Chang, Chou).

    ``selection=false`` is freezing alone, ``restart=0`` leaves the warm restarts out (Table III).
    """
    chosen = (reputation(ema=ema, restart=restart, scale=scale),) if selection else ()
    return compose(freeze_prefix(beta=beta, deadline=deadline, ema=ema), *chosen, name="freezefl")


@METHODS.add()
def heterofl(
    widths: list[float] | tuple[float, ...] = (1.0, 0.5, 0.25, 0.125, 0.0625),
    power: NotNegative = 0.5,
    scale: bool = True,
) -> Method:
    """Weak devices train a narrow network inside the global one (Diao et al. 2021)."""
    return compose(narrow_networks(widths=widths, power=power, scale=scale), name="heterofl")


@METHODS.add()
def fjord(
    widths: list[float] | tuple[float, ...] = (0.2, 0.4, 0.6, 0.8, 1.0),
    power: NotNegative = 0.5,
    selection: bool = False,
    restart: CountOrZero = 60,
    per: str = "minibatch",
) -> Method:
    """Ordered dropout (Horvath et al. 2021); ``selection`` adds FreezeFL's, by width (Table IV)."""
    chosen = (reputation(restart=restart),) if selection else ()
    return compose(ordered_dropout(widths=widths, power=power, per=per), *chosen, name="fjord")


@METHODS.add()
def tifl(tiers: Count = 5, interval: Count = 20, credits: CountOrZero = 0, always: bool = False) -> Method:
    """FedAvg with one tier of like speed per round (Chai et al. 2020)."""
    chosen = select_speed.tiers_of_speed(tiers=tiers, interval=interval, credits=credits, always=always)
    return compose(chosen, name="tifl")


@METHODS.add()
def fedcs(seconds: Positive | None = None, candidates: PositiveShare = 1.0) -> Method:
    """FedAvg with as many fast clients as finish before a deadline (Nishio and Yonetani 2019)."""
    return compose(select_speed.fastest_in_time(seconds=seconds, candidates=candidates), name="fedcs")


@METHODS.add()
def rbcs(fraction: Share = 0.5, penalty: NotNegative = 1.0) -> Method:
    """FedAvg with fast cohorts under a guaranteed rate of participation (RBCS-F, Huang et al. 2020)."""
    return compose(select_speed.fair_queues(fraction=fraction, penalty=penalty), name="rbcs")


method_of(select_speed.oort, "oort", "FedAvg with Oort's guided selection (Lai et al. 2021).")
method_of(choose_by_power, "power_of_choice", "FedAvg with the largest losses of a few candidates (Cho et al. 2020).")
