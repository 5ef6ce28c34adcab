"""Selection by how fast clients are: FedCS, TiFL, Oort, RBCS-F.

FedCS, TiFL and RBCS-F need each client's time for a task (`Pool.seconds`), which a server learns by profiling; Oort
learns times and losses from what arrives.
"""

from __future__ import annotations

import heapq

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from motley.core.errors import InputError
from motley.core.part import Part, part
from motley.core.ranges import Count, CountOrZero, NotNegative, Positive, PositiveShare, Share
from motley.core.types import Outcomes, Pool, Round, Setting, Tree, Updates
from motley.server.select import draw, remember
from motley.server.tiers import tier_of


def seconds_of(pool: Pool, who: str) -> NDArray[np.float64]:
    """Profiled seconds of the available clients: [A]."""
    if pool.seconds is None:
        raise InputError(
            f"The part '{who}' needs to know how long each client takes; this server has not profiled them."
        )
    found: NDArray[np.float64] = pool.seconds[pool.ids].cpu().numpy().astype(np.float64)
    return found


@part("select")
def fastest_in_time(seconds: Positive | None = None, candidates: PositiveShare = 1.0) -> Part:
    """As many clients as finish within a deadline, the fastest first (FedCS, Nishio and Yonetani 2019).

    Of a random fraction of those who are there (``candidates``), at most the cohort. ``seconds`` defaults to the
    round's deadline. FedCS adds up uploads over one shared channel; here links are separate, so a client's own time
    decides. If nobody is fast enough, the fastest trains alone.
    """

    def select(s: Tree, rnd: Round, pool: Pool) -> Tensor:
        limit = seconds if seconds is not None else rnd.deadline if rnd.deadline is not None else float("inf")
        count = max(rnd.cohort, int(np.ceil(candidates * len(pool.ids))))
        asked = draw(rnd._replace(cohort=min(count, len(pool.ids))), pool.ids, np.zeros(len(pool.ids)))
        need = seconds_of(pool._replace(ids=asked), "fastest_in_time")
        order = np.argsort(need, kind="stable")[: rnd.cohort]
        in_time = order[need[order] <= limit]
        return asked[torch.from_numpy(in_time if len(in_time) else order[:1])]

    return Part(select=select)


@part("select")
def tiers_of_speed(tiers: Count = 5, interval: Count = 20, credits: CountOrZero = 0, always: bool = False) -> Part:
    """A round's clients all come from one tier of like speed (TiFL, Chai et al. 2020, Algorithm 2).

    Tiers are equally many clients each, by profiled time. At first every tier is as likely; every ``interval`` rounds
    the probabilities are set anew in proportion to the tiers' ranks by mean training loss, the largest first (TiFL
    takes the accuracy on held-out data of each tier, which the server does not see here): if the tier of that round
    has not become better since the last time, or ``always``. ``credits``: how often a tier
    may be chosen (0: without limit).
    """

    def init(setting: Setting) -> Tree:
        seconds = setting.seconds if setting.seconds is not None else torch.zeros(setting.n_clients)
        tier = tier_of(seconds.tolist(), tiers)
        left = torch.full((tiers,), float(credits or float("inf")))
        return {
            "tier": tier,
            "share": torch.full((tiers,), 1.0 / tiers),
            "left": left,
            "loss": torch.zeros(tiers),
            "before": torch.full((tiers,), float("inf")),
        }

    def select(s: Tree, rnd: Round, pool: Pool) -> Tensor:
        tier = s["tier"].cpu()[pool.ids].numpy()
        there = np.bincount(tier, minlength=tiers) > 0
        share = np.where(there & (s["left"].cpu().numpy() > 0), s["share"].cpu().numpy().astype(np.float64), 0.0)
        share = share if share.sum() > 0 else there.astype(np.float64)
        chosen = rnd.key.fold("tier").generator().choice(tiers, p=share / share.sum())
        members = pool.ids[torch.from_numpy(np.flatnonzero(tier == chosen))]
        return draw(rnd._replace(cohort=min(rnd.cohort, len(members))), members, np.zeros(len(members)))

    def observe(s: Tree, rnd: Round, updates: Updates) -> Tree:
        loss = s["loss"].clone()
        for m in range(tiers):
            mine = s["tier"].to(updates.ids.device)[updates.ids] == m
            if bool(mine.any()):
                loss[m] = updates.loss[mine].mean()
        return {**s, "loss": loss}

    def conclude(s: Tree, rnd: Round, outcomes: Outcomes) -> Tree:
        used = torch.bincount(s["tier"].cpu()[outcomes.ids], minlength=tiers) > 0
        left, share = s["left"] - used.to(s["left"]), s["share"]
        if rnd.number % interval == 0:
            worse = bool((s["loss"] >= s["before"])[used.to(s["loss"].device)].any())
            if always or worse:
                rank = torch.argsort(torch.argsort(s["loss"], stable=True), stable=True) + 1.0
                share = rank / rank.sum()
            return {**s, "left": left, "share": share, "before": s["loss"].clone()}
        return {**s, "left": left, "share": share}

    return Part(init=init, select=select, observe=observe, conclude=conclude)


@part("select")
def oort(
    exploration: Share = 0.9,
    decay: Share = 0.98,
    least: Share = 0.2,
    alpha: NotNegative = 2.0,
    cutoff: Share = 0.95,
    clip: Share = 0.95,
    percentile: Share = 0.3,
    pace: NotNegative = 0.05,
    window: Count = 20,
    explore_by_speed: bool = True,
) -> Part:
    """Explores new clients, exploits those with a large loss that are fast enough (Oort, Lai et al. 2021, Algorithm 1).

    ``U_k = n_k * loss_k`` clipped at a quantile and scaled to [0, 1], plus ``sqrt(0.1 ln(t) / last_k)``, times
    ``(T / t_k)^alpha`` where the client took longer than T; T is a percentile of the observed times that grows by
    ``pace`` whenever the utility of a window of rounds falls below that of the window before. Exploited clients are
    drawn in proportion to U among those above ``cutoff`` times the last one that would get a place; a share of the
    cohort, falling from ``exploration`` to ``least``, goes to clients never tried, drawn in proportion to their speed
    where the server has profiled them (``explore_by_speed``; otherwise all alike). Oort takes the root mean square of
    the samples' losses; a client here sends their mean.
    """

    def init(setting: Setting) -> Tree:
        zeros = torch.zeros(setting.n_clients)
        state = {"utility": zeros, "last": zeros, "seconds": zeros}
        numbers = torch.tensor([percentile, 0.0, 0.0])  # percentile now, utility in this window and in the last
        return {**{name: column.clone() for name, column in state.items()}, "pacer": numbers}

    def select(s: Tree, rnd: Round, pool: Pool) -> Tensor:
        tried = (s["last"].cpu()[pool.ids] > 0).numpy()
        new, known = pool.ids[torch.from_numpy(~tried)], pool.ids[torch.from_numpy(tried)]
        share = max(least, exploration * decay ** (rnd.number - 1))
        explored = min(len(new), max(round(share * rnd.cohort), rnd.cohort - len(known)))
        speed = _speeds(pool, new) if explore_by_speed else np.zeros(len(new))
        first = draw(rnd._replace(cohort=explored), new, speed, "explore")
        places = min(rnd.cohort - explored, len(known))
        if not places:
            return first
        score = oort_scores(s, rnd.number, known, alpha, clip)
        bar = cutoff * np.sort(score)[-places]
        good = torch.from_numpy(np.flatnonzero(score >= bar))
        return torch.cat([first, draw(rnd._replace(cohort=places), known[good], score[good.numpy()], "exploit")])

    def observe(s: Tree, rnd: Round, updates: Updates) -> Tree:
        gain = updates.n * updates.loss
        pacer = s["pacer"].clone()
        pacer[1] += gain.sum().to(pacer)
        return {
            "utility": remember(s["utility"], updates.ids, gain),
            "last": remember(s["last"], updates.ids, torch.full_like(gain, rnd.number)),
            "seconds": remember(s["seconds"], updates.ids, updates.duration),
            "pacer": pacer,
        }

    def conclude(s: Tree, rnd: Round, outcomes: Outcomes) -> Tree:
        if rnd.number % window:
            return s
        at, now, before = s["pacer"].tolist()
        slower = min(1.0, at + pace) if now < before else at
        return {**s, "pacer": torch.tensor([slower, 0.0, now])}

    return Part(init=init, select=select, observe=observe, conclude=conclude)


def _speeds(pool: Pool, ids: Tensor) -> NDArray[np.float64]:
    """Tasks per second of some clients; all 0 where that is not known, or where a task takes no time."""
    if pool.seconds is None:
        return np.zeros(len(ids))
    seconds = pool.seconds.cpu()[ids].numpy().astype(np.float64)
    known = len(seconds) > 0 and seconds.min() > 0
    return np.asarray(1.0 / seconds if known else np.zeros(len(ids)))


def oort_scores(s: Tree, t: int, ids: Tensor, alpha: float, clip: float) -> NDArray[np.float64]:
    """Utilities of clients that have been tried: [A], above 0."""
    gain, last, seconds = (s[name].cpu()[ids].numpy().astype(np.float64) for name in ("utility", "last", "seconds"))
    gain = np.minimum(gain, np.quantile(gain, clip))
    gain = (gain - gain.min()) / max(np.ptp(gain), 1e-12) + np.sqrt(0.1 * np.log(t) / last)
    tried = s["last"].cpu().numpy() > 0
    preferred = np.quantile(s["seconds"].cpu().numpy()[tried], float(s["pacer"][0]))
    slow = np.where(seconds > preferred, (preferred / np.maximum(seconds, 1e-12)) ** alpha, 1.0)
    return np.asarray(np.maximum(gain * slow, 1e-12))


@part("select")
def fair_queues(fraction: Share = 0.5, penalty: NotNegative = 1.0) -> Part:
    """Fast cohorts under a guaranteed rate of participation (RBCS-F, Huang et al. 2020, with known times).

    Client k has a queue ``Z_k = max(0, Z_k + target - chosen_k)`` with ``target = fraction * cohort / N``; the cohort S
    minimises ``penalty * max_S(t_k) - sum_S Z_k`` (t in units of the mean time), found exactly. RBCS-F estimates times
    by a bandit; as in FreezeFL's comparison they are known here.
    """
    if not 0 <= fraction <= 1:
        raise InputError(f"fair_queues guarantees a fraction of {fraction} of the even rate; give 0 to 1.")

    def init(setting: Setting) -> Tree:
        return {"queue": torch.zeros(setting.n_clients)}

    def select(s: Tree, rnd: Round, pool: Pool) -> Tensor:
        shuffled = rnd.key.fold("select").generator().permutation(len(pool.ids))  # equal ones in random order
        need = seconds_of(pool, "fair_queues")[shuffled]
        queue = s["queue"].cpu()[pool.ids].numpy().astype(np.float64)[shuffled]
        best = best_cohort(need / (need.mean() or 1.0), queue, rnd.cohort, penalty)
        return pool.ids[torch.from_numpy(shuffled[best])]

    def conclude(s: Tree, rnd: Round, outcomes: Outcomes) -> Tree:
        n = len(s["queue"])
        chosen = torch.bincount(outcomes.ids, minlength=n).to(s["queue"])
        return {"queue": (s["queue"] + fraction * rnd.cohort / n - chosen).clamp_min(0.0)}

    return Part(init=init, select=select, conclude=conclude)


def best_cohort(seconds: NDArray[np.float64], queue: NDArray[np.float64], k: int, penalty: float) -> NDArray[np.int64]:
    """The k places that minimise ``penalty * max(seconds) - sum(queue)``.

    For each candidate slowest client, the best others are the longest queues among the faster ones.
    """
    order = np.argsort(seconds, kind="stable")
    held: list[float] = []  # the k - 1 longest queues so far
    total, best, where = 0.0, float("inf"), k - 1
    for place, client in enumerate(order):
        if place >= k - 1:
            value = penalty * seconds[client] - total - queue[client]
            if value < best - 1e-12:
                best, where = value, place
        if k > 1:
            total += queue[client]
            heapq.heappush(held, float(queue[client]))
            if len(held) > k - 1:
                total -= heapq.heappop(held)
    faster = order[:where]
    others = faster[np.argsort(-queue[faster], kind="stable")[: k - 1]]
    return np.concatenate([others, order[where : where + 1]]).astype(np.int64)
