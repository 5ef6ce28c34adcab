"""How much each client trains."""

from __future__ import annotations

import torch
from torch import Tensor

from motley.core.part import Part, part
from motley.core.types import Plan, Round, Tree


@part("workload")
def partial_work() -> Part:
    """Takes whatever a client managed before it had to stop, instead of all or nothing (FedProx)."""

    def plan(s: Tree, rnd: Round, ids: Tensor, plan: Plan) -> Plan:
        return plan._replace(floor=torch.zeros_like(plan.epochs), partial=torch.ones_like(plan.epochs))

    return Part(plan=plan)
