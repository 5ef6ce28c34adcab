"""How much each client trains."""

from __future__ import annotations

import torch
from torch import Tensor

from motley.core.part import Part, part
from motley.core.ranges import Share
from motley.core.types import Plan, Round, Tree


@part("workload")
def partial_work() -> Part:
    """Takes whatever a client managed before it had to stop, instead of all or nothing (FedProx)."""

    def plan(s: Tree, rnd: Round, ids: Tensor, plan: Plan) -> Plan:
        return plan._replace(floor=torch.zeros_like(plan.epochs), partial=torch.ones_like(plan.epochs))

    return Part(plan=plan)


@part("workload", neutral={"fraction": 1.0}, example={"fraction": 0.5})
def less_work_when_limited(fraction: Share = 0.5) -> Part:
    """Computing-limited clients are asked for a fraction of the epochs (FedProx in AMA-FES's comparison).

    AMA-FES says that FedProx lets limited devices "conduct fewer rounds of local updates" and that all of them are
    alike, but not how many; half is our choice.
    """

    def plan(s: Tree, rnd: Round, ids: Tensor, plan: Plan) -> Plan:
        if plan.limited is None:
            return plan
        share = 1.0 - (1.0 - fraction) * plan.limited
        return plan._replace(epochs=plan.epochs * share, floor=plan.floor * share)

    return Part(plan=plan)
