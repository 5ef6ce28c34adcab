"""Workloads that follow what each client has managed so far (FedSAE, Li et al. 2021).

Every client has a pair (L, H) of easy and hard workloads in epochs. It is asked for H; if it must stop before, it sends
its state after L epochs; if it does not even reach L, nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from motley.core.errors import InputError
from motley.core.part import Part, part
from motley.core.ranges import NotNegative, Share
from motley.core.types import Outcomes, Plan, Round, Setting, Tree


class Workload(NamedTuple):
    """Easy and hard workload of one client, in epochs."""

    easy: float
    hard: float


def ordered(a: float, b: float, least: float = 0.0) -> Workload:
    """The two as (L, H) with L <= H, none below ``least``."""
    return Workload(max(min(a, b), least), max(a, b, least))


def inverse_ratio(now: Workload, done: float, u: float) -> Workload:
    """The next pair by Ira (Algorithm 2, eq. 3), from the epochs whose result came: H, L or 0."""
    grown = now.easy + u / now.easy
    if done >= now.hard:
        return ordered(grown, now.hard + u / now.hard)
    if done >= now.easy:
        return ordered(grown, now.hard / 2)
    return Workload(now.easy / 2, now.hard / 2)


def fast_then_slow(now: Workload, done: float, threshold: float, fast: float, slow: float) -> Workload:
    """The next pair by Fassa (Algorithm 3, eq. 5); ``threshold`` is theta before this round's result is counted."""
    step_easy = slow if threshold <= now.easy else fast
    if done >= now.hard:
        return ordered(now.easy + step_easy, now.hard + (fast if threshold > now.hard else slow))
    if done >= now.easy:
        return ordered(now.easy + step_easy, now.hard / 2)
    return Workload(now.easy / 2, now.hard / 2)


Transition = Callable[[Workload, float, float], Workload]


def _workload(transition: Transition, easy: float, hard: float, alpha: float, history: str) -> Part:
    """The two algorithms differ in the transition alone; Ira does not read the threshold."""
    if not 0 < easy <= hard:
        raise InputError(f"FedSAE's first workloads are easy={easy} and hard={hard}; it needs 0 < easy <= hard.")
    if history not in ("done", "reached"):
        raise InputError(f"FedSAE's history is '{history}'; choose 'done' or 'reached'.")

    def init(setting: Setting) -> Tree:
        full, n = torch.full, setting.n_clients
        steps = torch.ones(n) if setting.n is None else torch.ceil(setting.n.cpu() / setting.batch_size)
        return {"easy": full((n,), easy), "hard": full((n,), hard), "threshold": torch.zeros(n), "least": 1.0 / steps}

    def plan(s: Tree, rnd: Round, ids: Tensor, plan: Plan) -> Plan:
        at = ids.to(s["easy"].device)
        wanted = {"epochs": s["hard"][at], "floor": s["easy"][at], "partial": torch.zeros(len(ids))}
        return plan._replace(**{name: column.to(plan.epochs) for name, column in wanted.items()})

    def conclude(s: Tree, rnd: Round, outcomes: Outcomes) -> Tree:
        table = {name: column.clone() for name, column in s.items()}
        managed = outcomes.done if history == "done" else outcomes.reached
        for k, client in enumerate(outcomes.ids.tolist()):
            assigned = Workload(float(outcomes.floor[k]), float(outcomes.assigned[k]))
            threshold = float(table["threshold"][client])
            after = transition(assigned, float(outcomes.done[k]), threshold)
            table["easy"][client], table["hard"][client] = ordered(*after, least=float(table["least"][client]))
            table["threshold"][client] = alpha * threshold + (1.0 - alpha) * float(managed[k])
        return table

    both = "both decide what a client that stops early sends (fedprox(partial=false) leaves it to the other)"
    return Part(init=init, plan=plan, conclude=conclude, refuses={"partial_work": both})


@part("workload", example={})
def workload_by_inverse_ratio(u: NotNegative = 10.0, easy: float = 1.0, hard: float = 2.0) -> Part:
    """Asks for more by U / workload after success, for half after failure (FedSAE-Ira, Algorithm 2).

    All of H came: ``L + U/L, H + U/H``. The state at L came: the smaller and the larger of ``L + U/L`` and ``H/2``.
    Nothing came: ``L/2, H/2``. Where growth would put L above H, the two change places (L <= H always); no workload
    falls below one minibatch.
    """
    return _workload(lambda now, done, _: inverse_ratio(now, done, u), easy, hard, 0.0, "done")


@part("workload", example={})
def workload_by_threshold(
    alpha: Share = 0.95,
    fast: NotNegative = 3.0,
    slow: NotNegative = 1.0,
    easy: float = 1.0,
    hard: float = 2.0,
    history: str = "done",
) -> Part:
    """Asks for more by gamma1 below a client's usual workload, by gamma2 above it (FedSAE-Fassa, Algorithm 3).

    The usual workload is ``theta = alpha theta + (1 - alpha) E`` with E the epochs behind the last update (H, L or 0;
    ``history="reached"`` takes the epochs the device says it trained), starting at 0. ``fast`` and ``slow`` are gamma1
    and gamma2. Lines 22-24 are read as ``theta <= L``: min and max of ``L + gamma2`` and ``H/2``.
    """
    return _workload(lambda now, done, theta: fast_then_slow(now, done, theta, fast, slow), easy, hard, alpha, history)
